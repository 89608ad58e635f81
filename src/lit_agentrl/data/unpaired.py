"""Episodes that are good or bad by themselves, each a group of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.data.conversations import Reader, dialogue, number
from lit_agentrl.data.kinds import BadRow, Kind, scored
from lit_agentrl.data.recordings import Group
from lit_agentrl.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Unpaired(Kind):
    """Rows: ``prompt`` and ``completion``, or ``messages``, with ``label`` (true or false) or ``score``."""

    score: str = "success"

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from ([episode] for episode in episodes)

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        opening, replies = dialogue(row, "completion")
        label = row.get("label")
        if label is None and row.get("score") is None:
            raise BadRow("no_label", "it has neither label nor score; write label: true or false")
        if label is not None and not (isinstance(label, bool) or label in (0, 1)):
            raise BadRow("no_label", f"column label is {label!r}; write true or false")
        worth = float(label) if label is not None else number(row, "score")
        return [scored(read.episode(opening, replies), worth)]
