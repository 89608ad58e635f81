"""Episodes that are good or bad by themselves, each a group of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import Kind, scored
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.messages import dialogue, labelled
from lit_agentrl.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Unpaired(Kind):
    """Rows: ``prompt`` and ``completion``, or ``messages``, with ``label`` (true or false) or ``score``."""

    score: str = "success"

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from ([episode] for episode in episodes)

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        opening, replies = dialogue(row, "completion")
        return [scored(read.episode(opening, replies), labelled(row))]
