"""What was found for an iteration's episodes, so that it is not found twice: for their points, and for the curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from lit_agentrl.episode import Episode

T = TypeVar("T")


class Remembered(Generic[T]):
    """What belongs to each of the episodes that were asked for last; all others are forgotten.

    Args:
        find: what belongs to each of some episodes.
    """

    def __init__(self, find: Callable[[Sequence[Episode]], Sequence[T]]) -> None:
        self._find = find
        self._known: dict[int, tuple[Episode, T]] = {}  # an episode that is held keeps its id

    def of(self, episodes: Sequence[Episode]) -> list[T]:
        """What belongs to each, found for those that were not asked for last."""
        new = [episode for episode in episodes if id(episode) not in self._known]
        known = {id(each): self._known[id(each)] for each in episodes if id(each) in self._known}
        found = self._find(new) if new else ()
        self._known = known | {id(each): (each, value) for each, value in zip(new, found, strict=True)}
        return [self._known[id(each)][1] for each in episodes]
