"""Episodes that are good or bad by themselves, each a group of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lit_agentrl.data import labels
from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import Kind, scored
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import read_dialogue, read_label
from lit_agentrl.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Unpaired(Kind):
    """Rows: ``prompt`` and ``completion``, or ``messages``, with ``label`` (true or false) or ``score``.

    Where ``score`` is a list: with ``scores``, numbers by name, or a column of each name; one may be missing.
    """

    several: ClassVar[bool] = True
    score: str | Sequence[str] = "success"

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from ([episode] for episode in episodes)

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        opening, replies = read_dialogue(row, "completion")
        if not self.heads:
            return [scored(read.episode(opening, replies), read_label(row))]
        given = row.get("scores")
        worth = labels.labels_of(row if given is None else given, self.heads, "scores")
        return [labels.labelled(read.episode(opening, replies), worth)]
