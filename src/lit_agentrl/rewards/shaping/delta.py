"""DELTA's schedule: dense rewards first, then only the outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardPart, Rewards, Stage, replace_by_outcome


@dataclass(kw_only=True)
class Delta(RewardPart):
    """Switch from dense to binary rewards: DELTA, arXiv 2509.21016.

    Before the switch the environment's rewards are used; after it ``solved * 1[success]`` at the last turn.  There are
    three optional triggers; the first one to fire switches permanently.

    Args:
        at_iteration: switch after this many iterations.
        patience: switch when the mean return has had no new maximum for this many iterations.
        share: switch when this share of the groups of an iteration has a success.
        solved: reward of a success after the switch.
        keep_penalties: add the protocol penalties after the switch.
    """

    stage: ClassVar[Stage] = Stage.TASK
    sees: ClassVar[Literal["own", "all"]] = "all"
    at_iteration: int | None = 50
    patience: int | None = None
    share: float | None = None
    solved: float = 1.0
    keep_penalties: bool = True
    _is_binary: bool = field(default=False, init=False, repr=False)
    _best: float = field(default=-math.inf, init=False, repr=False)
    _num_stalled: int = field(default=0, init=False, repr=False)  # iterations since the best mean

    def __post_init__(self) -> None:
        for name in ("at_iteration", "patience"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 1)
        if self.share is not None:
            require_number("share", self.share, "in (0, 1]", lambda value: 0 < value <= 1)
        if self.at_iteration is None and self.patience is None and self.share is None:
            raise ValueError("at_iteration=null never switches; set at_iteration, patience or share")
        require_number("solved", self.solved, "> 0", lambda value: value > 0)
        require(isinstance(self.keep_penalties, bool), "keep_penalties", self.keep_penalties, "true or false")

    def is_binary(self, iteration: int) -> bool:
        """Return True after the switch."""
        return self._is_binary or (self.at_iteration is not None and iteration >= self.at_iteration)

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the rewards unchanged, or after the switch the outcome only."""
        if not self.is_binary(iteration):
            return rewards
        return replace_by_outcome(
            episodes, [self.solved * e.success for e in episodes], keep_penalties=self.keep_penalties
        )

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Return ``phase``: 1 is dense, 2 is binary."""
        return {"phase": 2.0 if self.is_binary(iteration) else 1.0}

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        """Check the triggers."""
        returns = self.gather_numbers([e.total_reward for e in episodes])
        mean = math.fsum(returns) / len(returns)
        self._num_stalled = 0 if mean > self._best else self._num_stalled + 1
        self._best = max(self._best, mean)
        groups = set(self.gather_numbers([e.group for e in episodes]))
        solved = set(self.gather_numbers([e.group for e in episodes if e.success]))
        if self.patience is not None and self._num_stalled >= self.patience:
            self._is_binary = True
        if self.share is not None and len(solved) >= self.share * len(groups):
            self._is_binary = True

    def state_dict(self) -> dict[str, Any]:
        """Return whether a trigger fired, the best mean return and its age."""
        return {"is_binary": self._is_binary, "best": self._best, "waited": self._num_stalled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        self._is_binary, self._best, self._num_stalled = state["is_binary"], state["best"], state["waited"]
