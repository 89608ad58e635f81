"""Base class of novelty bonuses, which are normalised and annealed to 0."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.base import Rewards, Shaping
from lit_agentrl.rewards.shaping.moments import Moments


@dataclass(kw_only=True)
class Novelty(Shaping):
    """Novelty bonus for the state that a turn leads to.

    Turn k gets ``max(0, 1 - iteration / anneal_iterations) * b(s_{k+1}) / sigma``; the last turn gets 0, because the
    state after it is not recorded.  ``b`` is the novelty of a state.  ``sigma`` is the running standard deviation, up
    to this iteration, of the sum of b over an episode; b is not centred, so the bonus is never negative (Burda et al.,
    arXiv 1810.12894).

    Args:
        anneal_iterations: number of iterations until the bonus is 0; null: no annealing.
        normalise: whether the bonus is divided by sigma.
    """

    sees: ClassVar[Literal["own", "all"]] = "all"
    weight: float = 0.1
    anneal_iterations: int | None = 100
    normalise: bool = True
    _moments: Moments = field(default_factory=Moments, init=False, repr=False)
    _pending: Moments | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anneal_iterations is not None:
            require_whole("anneal_iterations", self.anneal_iterations, 1)
        require(isinstance(self.normalise, bool), "normalise", self.normalise, "true or false")

    def check_game(self, task: Task, env: World, observation: str) -> None:
        """Refuse a game of one turn, which has no later state."""
        if task.max_turns == 1:
            raise ValueError(f"needs a game of several turns, and {task.name} has one; leave it out")

    @abstractmethod
    def novelty(self, arrivals: Sequence[Turn], episodes: Sequence[Episode]) -> list[float]:
        """Return ``b`` of the states before these turns."""

    def coef(self, iteration: int) -> float:
        """Return the annealing factor of an iteration."""
        if self.anneal_iterations is None:
            return 1.0
        return max(0.0, 1 - iteration / self.anneal_iterations)

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the bonus of each turn."""
        bonuses = self.novelty([turn for e in episodes for turn in e.turns[1:]], episodes)
        remaining = iter(bonuses)
        rows = [[next(remaining) for _ in e.turns[1:]] + [0.0] for e in episodes]
        self._pending = self._moments.merge(self.gather_numbers([math.fsum(row) for row in rows]))
        factor = self.coef(iteration) / (self._pending.scale if self.normalise else 1.0)
        return [[factor * bonus for bonus in row] for row in rows]

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Return ``coef``, and ``mean`` and ``std`` of the sums of b over episodes so far."""
        moments = self._pending or self._moments
        return {"coef": self.coef(iteration), "mean": moments.mean, "std": moments.std}

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        """Store the moments that the last score used."""
        self._moments, self._pending = self._pending or self._moments, None

    def state_dict(self) -> dict[str, Any]:
        """Return the running moments."""
        return {"moments": self._moments.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        self._moments = Moments.from_state_dict(state["moments"])
