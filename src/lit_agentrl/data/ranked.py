"""All answers to a prompt with a score each, a group of K."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import Kind, replies, scored
from lit_agentrl.data.labels import differ, labelled, labels_of
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import BadRow, read_answers, read_ranked
from lit_agentrl.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Ranked(Kind):
    """Rows: ``prompt``, ``completions`` and ``scores``, lists of one length; points, the more the better.

    Where ``score`` is a list, each of ``scores`` holds a number for each name of it; one may be missing.
    """

    smallest: ClassVar[int] = 2
    several: ClassVar[bool] = True

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        if differ(episodes):
            yield episodes

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        group = self._several(row, read) if self.heads else self._one(row, read)
        if len({replies(episode) for episode in group}) < 2:
            raise BadRow("identical", "all completions are the same")
        return group

    def _one(self, row: Mapping[str, Any], read: Reader) -> list[Episode]:
        opening, answers, points = read_ranked(row)
        return [scored(read.episode(opening, each), p) for each, p in zip(answers, points, strict=True)]

    def _several(self, row: Mapping[str, Any], read: Reader) -> list[Episode]:
        opening, answers, scores = read_answers(row)
        worth = [labels_of(each, self.heads, "scores") for each in scores]
        group: list[Episode] = [
            labelled(read.episode(opening, each), own) for each, own in zip(answers, worth, strict=True)
        ]
        if not differ(group):
            raise BadRow("tie", "to each head all scores are equal, so that none is better")
        return group
