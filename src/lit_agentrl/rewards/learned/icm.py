"""Novelty by what a model of the game cannot yet foresee, in features that say what the actions did."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lit_agentrl import seeds
from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.base import RewardContext
from lit_agentrl.rewards.learned.rnd import embed, network
from lit_agentrl.rewards.shaping.novelty import Novelty


@dataclass(kw_only=True)
class IntrinsicCuriosity(Novelty):
    """``b(s_{k+1}) = |phi_hat(s_{k+1}) - phi(s_{k+1})|^2 / 2``: Pathak et al., arXiv 1705.05363, on texts.

    ``phi_hat`` is foretold from ``phi(s_k)`` and the actions of turn k.  ``phi`` learns with an inverse model, which
    tells the actions from ``phi(s_k)`` and ``phi(s_{k+1})``, so that it keeps what actions change.  The loss of a
    transition is ``(1 - beta) L_inverse + beta L_forward``, ``L_forward`` the error above, ``L_inverse`` the mean
    squared error over the hashed words of the actions, since a turn has several; the paper has the cross-entropy of
    one action.  Observations and actions are hashed as `embed` does.  All runs on the CPU, over distinct transitions
    in sorted order.

    Args:
        features: entries of the vector of a text.
        hidden, outputs: width of the networks, and of phi.
        beta: see above.
        lr: of Adam.
        steps: full-batch steps an iteration on its distinct transitions.
    """

    features: int = 256
    hidden: int = 64
    outputs: int = 32
    beta: float = 0.2
    lr: float = 1e-3
    steps: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("features", "hidden", "outputs", "steps"):
            require_whole(name, getattr(self, name), 1)
        require_number("beta", self.beta, "in (0, 1)", lambda value: 0 < value < 1)
        require_number("lr", self.lr, "> 0", lambda value: value > 0)

    def setup(self, context: RewardContext) -> None:
        """Make the three networks, by the run's seed."""

        def made(purpose: str, read: int, told: int) -> nn.Module:
            return network(read, self.hidden, told, key=seeds.make_key(context.seed, f"icm-{purpose}"))

        self._networks = nn.ModuleDict({
            "encoder": made("encoder", self.features, self.outputs),
            "forecast": made("forecast", self.outputs + self.features, self.outputs),
            "inverse": made("inverse", 2 * self.outputs, self.features),
        })  # fmt: skip
        self._optimizer = torch.optim.Adam(self._networks.parameters(), lr=self.lr)

    def novelty(self, arrivals: Sequence[Turn], episodes: Sequence[Episode]) -> list[float]:
        """Of the observations before these turns, which the turns before them led to."""
        found = self._distinct(episodes)
        if not found:
            return []
        with torch.no_grad():
            error = dict(zip(found, self._errors(found)[0].tolist(), strict=True))
        return [error[each] for episode in episodes for each in transitions(episode)]

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        """Train all networks on the iteration's transitions."""
        super().learn(episodes, iteration=iteration)
        found = self._distinct(episodes)
        if not found:
            return
        with torch.enable_grad():
            for _ in range(self.steps):
                self._optimizer.zero_grad()
                forward_A, inverse_A = self._errors(found)
                loss = (self.beta * forward_A + (1 - self.beta) * inverse_A).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
        self._optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Also the networks and the optimizer."""
        own = {"networks": self._networks.state_dict(), "optimizer": self._optimizer.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        super().load_state_dict(state)
        self._networks.load_state_dict(state["networks"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _distinct(self, episodes: Sequence[Episode]) -> list[str]:
        """What was done by any process, and what came of it."""
        return sorted(set(self.everyones_texts(sorted({t for e in episodes for t in transitions(e)}))))

    def _errors(self, found: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Of each transition, the error of what was foretold, and that of the actions that were told from it."""
        before, done, after = (
            torch.stack([embed(text, self.features) for text in column])
            for column in zip(*map(json.loads, found), strict=True)
        )
        phi, phi_next = (self._networks["encoder"](words) for words in (before, after))
        foretold = self._networks["forecast"](torch.cat([phi, done], dim=1))
        told = self._networks["inverse"](torch.cat([phi, phi_next], dim=1))
        return (foretold - phi_next).square().sum(1) / 2, (told - done).square().mean(1)


def transitions(episode: Episode) -> list[str]:
    """What was seen, done, and seen then, of each turn but the last, as JSON."""
    return [
        json.dumps([turn.observation, "\n".join(turn.actions), after.observation])
        for turn, after in pairwise(episode.turns)
    ]
