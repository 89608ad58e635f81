"""Rewards for progress: a network learns from which states the policy succeeds, and pays for what the chance rises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lit_agentrl import seeds
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardContext, Rewards, Shaping
from lit_agentrl.rewards.learned.rnd import embed


@dataclass(kw_only=True)
class Progress(Shaping):
    """``p(s_{k+1}) - p(s_k)`` for turn k, p the chance of success that the network sees in an observation.

    After the last turn p is 0, so an episode earns ``-p(s_0)`` in all and no policy gains by it (Ng et al. 1999).

    Args:
        features: numbers that a text is turned into.
        hidden: width of the network.
        lr: of Adam.
        steps: full-batch steps an iteration.
    """

    sees: ClassVar[Literal["own", "all"]] = "all"  # it learns, and every process must learn the same
    weight: float = 0.5
    features: int = 128
    hidden: int = 32
    lr: float = 0.01
    steps: int = 4

    def setup(self, context: RewardContext) -> None:
        self._device = context.device
        with torch.random.fork_rng(devices=[]):  # leaves the global generator as it was
            torch.manual_seed(seeds.make_key(context.seed, "progress"))
            self._network = nn.Sequential(
                nn.Linear(self.features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1)
            )
        self._network.to(self._device)
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=self.lr)

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        rows = []
        for episode in episodes:
            with torch.no_grad():
                chances = [*self._logits(self._texts([episode])).sigmoid().tolist(), 0.0]
            rows.append([after - before for before, after in zip(chances, chances[1:], strict=False)])
        return rows

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        solved = [float(e.success) for e in episodes for _ in e.turns]
        texts, targets = self.gather_rows(self._texts(episodes)), self.gather_rows(torch.tensor(solved))
        with torch.enable_grad():
            for _ in range(self.steps):
                self._optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(
                    self._logits(texts), targets.to(self._device)
                )
                loss.backward()
                self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {"network": self._network.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _texts(self, episodes: Sequence[Episode]) -> Tensor:
        """One row a turn: what the policy saw before it."""
        rows = [embed(turn.observation, self.features) for e in episodes for turn in e.turns]
        return torch.stack(rows) if rows else torch.empty(0, self.features)

    def _logits(self, texts: Tensor) -> Tensor:
        logits: Tensor = self._network(texts.to(self._device)).squeeze(1)
        return logits
