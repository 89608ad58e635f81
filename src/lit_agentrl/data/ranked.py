"""All answers to a prompt with a score each, a group of K."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import Kind, replies, scored
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.messages import BadRow, ranked_of
from lit_agentrl.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Ranked(Kind):
    """Rows: ``prompt``, ``completions`` and ``scores``, lists of one length; points, the more the better."""

    smallest: ClassVar[int] = 2

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        if len({episode.training_return for episode in episodes}) > 1:
            yield episodes

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        opening, given, points = ranked_of(row)
        group = [
            scored(read.episode(opening, each), value) for each, value in zip(given, points, strict=True)
        ]
        if len({replies(episode) for episode in group}) < 2:
            raise BadRow("identical", "all completions are the same")
        return group
