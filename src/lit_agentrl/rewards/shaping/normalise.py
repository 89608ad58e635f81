"""Normalisation of training returns to unit standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, ClassVar, Literal

from lit_agentrl.checks import require, require_one_of
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardPart, Rewards, Stage
from lit_agentrl.rewards.shaping.moments import Moments


@dataclass(kw_only=True)
class Normalise(RewardPart):
    """Rewards divided by the standard deviation (ddof 1) of returns, unless it is 0.

    Args:
        by: the returns to use: of the iteration (``batch``), of the episode's group (``group``) or of all iterations so
            far (``running``); ``none`` does not normalise.
        centre: also subtract ``mean / std`` of these returns at the last turn.
    """

    stage: ClassVar[Stage] = Stage.SCALE
    sees: ClassVar[Literal["own", "all"]] = "all"
    by: Literal["batch", "group", "running", "none"] = "running"
    centre: bool = False
    _moments: Moments = field(default_factory=Moments, init=False, repr=False)
    _pending: Moments | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        require_one_of("by", self.by, ("batch", "group", "running", "none"))
        require(isinstance(self.centre, bool), "centre", self.centre, "true or false")
        if self.centre and self.by == "none":
            raise ValueError("centre=true would be ignored with by=none; choose batch, group or running")

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the normalised reward of each turn."""
        if self.by == "none":
            return rewards
        returns = [fsum(row) for row in rewards]
        if self.by == "group":
            groups: dict[int, list[float]] = {}
            for e, value in zip(episodes, returns, strict=True):
                groups.setdefault(e.group, []).append(value)
            moments = {group: Moments().merge(values) for group, values in groups.items()}
            return [self._scale_row(row, moments[e.group]) for row, e in zip(rewards, episodes, strict=True)]
        before = self._moments if self.by == "running" else Moments()
        self._pending = before.merge(self.gather_numbers(returns))
        return [self._scale_row(row, self._pending) for row in rewards]

    def _scale_row(self, row: Sequence[float], moments: Moments) -> list[float]:
        scaled = [value / moments.scale for value in row]
        if self.centre:
            scaled[-1] -= moments.mean / moments.scale
        return scaled

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        """Store the running moments."""
        if self.by == "running":
            self._moments, self._pending = self._pending or self._moments, None

    def state_dict(self) -> dict[str, Any]:
        """Return the running moments, if they are used."""
        return {"moments": self._moments.state_dict()} if self.by == "running" else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        self._moments = Moments.from_state_dict(state["moments"])
