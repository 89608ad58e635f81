"""A cache of one value per episode, used for rewards and metrics of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from lit_agentrl.episode import Episode

T = TypeVar("T")


class EpisodeCache(Generic[T]):
    """A cache of one value for each episode of the last call.

    Args:
        compute: returns the values of some episodes.
    """

    def __init__(self, compute: Callable[[Sequence[Episode]], Sequence[T]]) -> None:
        self._compute = compute
        # the reference to an episode keeps its id unique
        self._entries: dict[int, tuple[Episode, T]] = {}

    def get(self, episodes: Sequence[Episode]) -> list[T]:
        """Return the value of each episode; compute only those not in the last call."""
        new = [episode for episode in episodes if id(episode) not in self._entries]
        cached = {id(e): self._entries[id(e)] for e in episodes if id(e) in self._entries}
        values = self._compute(new) if new else ()
        self._entries = cached | {id(e): (e, value) for e, value in zip(new, values, strict=True)}
        return [self._entries[id(e)][1] for e in episodes]
