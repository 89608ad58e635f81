"""Count-based novelty bonus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lit_agentrl.envs.base import Task
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.shaping.novelty import Novelty


@dataclass(kw_only=True)
class Count(Novelty):
    """``b(s) = 1 / sqrt(N(s))``, where N counts visits of state s.

    Visits are counted by ``Turn.state_key``, including all of the current iteration.  All visits of one iteration get
    the same bonus, so the order of episodes does not matter.
    """

    _visits: Counter[int] = field(default_factory=Counter, init=False, repr=False)

    def check_game(self, task: Task, env: World, observation: str) -> None:
        """Refuse also a game without a state key, whose states cannot be distinguished."""
        super().check_game(task, env, observation)
        if not env.state_key():
            raise ValueError(
                f"counts states, and {task.name} has no state_key; leave it out, or use reward=rnd"
            )

    def novelty(self, arrivals: Sequence[Turn], episodes: Sequence[Episode]) -> list[float]:
        """Return the bonus of the states before these turns."""
        now = self._count_visits(episodes)
        return [(self._visits[turn.state_key] + now[turn.state_key]) ** -0.5 for turn in arrivals]

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Add ``states``, the number of distinct states so far."""
        metrics = {"states": float(len(self._visits.keys() | self._count_visits(episodes).keys()))}
        return super().curves(episodes, iteration=iteration) | metrics

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        """Add the visits of the iteration."""
        super().learn(episodes, iteration=iteration)
        self._visits.update(self._count_visits(episodes))

    def _count_visits(self, episodes: Sequence[Episode]) -> Counter[int]:
        keys = torch.tensor([turn.state_key for e in episodes for turn in e.turns], dtype=torch.int64)
        return Counter(self.gather_rows(keys).tolist())

    def state_dict(self) -> dict[str, Any]:
        """Add the visits, sorted by state."""
        visits = torch.tensor(sorted(self._visits.items()), dtype=torch.int64).reshape(-1, 2)
        return super().state_dict() | {"visits": visits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        super().load_state_dict(state)
        self._visits = Counter({int(key): int(count) for key, count in state["visits"].tolist()})
