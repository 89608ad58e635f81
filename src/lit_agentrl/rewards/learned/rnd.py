"""Random network distillation: novelty as the error of a learnt predictor."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lit_agentrl import seeds
from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.base import RewardContext
from lit_agentrl.rewards.shaping.novelty import Novelty

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(kw_only=True)
class RandomNetworkDistillation(Novelty):
    """``b(o) = |f_hat(o) - f(o)|^2`` on the text of observations: Burda et al., arXiv 1810.12894.

    ``f`` is a frozen random network; ``f_hat`` is trained to match it on the observations so far.  A text becomes a
    vector of hashed words: each counts once on its own and once with its line and its position in the line, because
    words alone do not say where something is on a map.  Both networks run on the CPU, over distinct observations in
    sorted order.

    Args:
        features: size of the vector.
        hidden, outputs: widths of the networks.
        lr: learning rate of Adam.
        steps: full-batch steps per iteration on its distinct observations.
    """

    features: int = 256
    hidden: int = 64
    outputs: int = 32
    lr: float = 1e-3
    steps: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("features", "hidden", "outputs", "steps"):
            require_whole(name, getattr(self, name), 1)
        require_number("lr", self.lr, "> 0", lambda value: value > 0)

    def setup(self, context: RewardContext) -> None:
        """Create both networks from the run's seed."""
        widths = (self.features, self.hidden, self.hidden, self.outputs)
        self._target = build_network(*widths, key=seeds.make_key(context.seed, "rnd-target")).requires_grad_(
            False
        )
        self._predictor = build_network(*widths, key=seeds.make_key(context.seed, "rnd-predictor"))
        self._optimizer = torch.optim.Adam(self._predictor.parameters(), lr=self.lr)

    def novelty(self, arrivals: Sequence[Turn], episodes: Sequence[Episode]) -> list[float]:
        """Return the prediction error of the observations before these turns."""
        texts = self._list_distinct(arrivals)
        if not texts:
            return []
        with torch.no_grad():
            error = dict(zip(texts, self._compute_error(texts).tolist(), strict=True))
        return [error[turn.observation] for turn in arrivals]

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        """Train the predictor on the iteration's observations."""
        super().learn(episodes, iteration=iteration)
        texts = self._list_distinct([turn for e in episodes for turn in e.turns])
        with torch.enable_grad():
            for _ in range(self.steps):
                self._optimizer.zero_grad()
                self._compute_error(texts).mean().backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
        self._optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Add both networks and the optimizer."""
        networks = {
            "target": self._target.state_dict(),
            "predictor": self._predictor.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        return super().state_dict() | networks

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        super().load_state_dict(state)
        self._target.load_state_dict(state["target"])
        self._predictor.load_state_dict(state["predictor"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _list_distinct(self, turns: Sequence[Turn]) -> list[str]:
        """List the distinct observations of all processes, sorted."""
        return sorted(set(self.gather_texts(sorted({turn.observation for turn in turns}))))

    def _compute_error(self, texts: Sequence[str]) -> Tensor:
        words = torch.stack([embed(text, self.features) for text in texts])
        error: Tensor = (self._predictor(words) - self._target(words)).square().sum(1)
        return error


def build_network(*widths: int, key: int) -> nn.Sequential:
    """Build linear layers with ReLU between them, initialised from the seed ``key``.

    The global random generator is not changed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key)
        layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@lru_cache(maxsize=4096)
def embed(text: str, size: int) -> Tensor:
    """Embed a text as ``size`` numbers of unit mean square.

    Words, and words with line and position, are hashed to an entry and a sign.
    """
    vector = torch.zeros(size)
    for i, line in enumerate(text.splitlines()):
        for j, word in enumerate(_WORD.findall(line)):
            for item in (word, f"{i}|{j}|{word}"):
                seed = int.from_bytes(blake2b(item.encode(), digest_size=8).digest(), "little")
                vector[(seed >> 1) % size] += 1.0 if seed & 1 else -1.0
    norm = float(vector.square().sum()) ** 0.5
    scaled: Tensor = vector * (math.sqrt(size) / max(norm, 1.0))
    return scaled
