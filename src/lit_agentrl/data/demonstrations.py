"""Demonstrations: episodes to imitate, in groups of size one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.checks import require_one_of
from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import Kind, set_return
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import read_dialogue
from lit_agentrl.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Demonstrations(Kind):
    """Rows with ``messages``, or ``prompt`` and ``completion``; their return is 1.

    Attributes:
        keep: which recorded episodes are used: ``all``, or ``success``.
    """

    keep: str = "all"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        require_one_of("keep", self.keep, ("all", "success"))

    def make_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from ([episode] for episode in episodes if episode.success or self.keep == "all")

    def read_group(self, row: Mapping[str, Any], reader: Reader) -> Group:
        opening, replies = read_dialogue(row, "completion")
        return [set_return(reader.make_episode(opening, replies), 1.0)]
