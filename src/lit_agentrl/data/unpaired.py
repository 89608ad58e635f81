"""Episodes with a label or score of their own, as groups of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lit_agentrl.data import labels
from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import Kind, set_return
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import read_dialogue, read_label
from lit_agentrl.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Unpaired(Kind):
    """Rows with ``label`` (true or false) or ``score``.

    The text is in ``prompt`` and ``completion``, or in ``messages``.  If ``score`` is a list of names, rows have
    ``scores``, numbers by name, or a column for each name; some of them may be missing.
    """

    several: ClassVar[bool] = True
    score: str | Sequence[str] = "success"

    def make_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from ([episode] for episode in episodes)

    def read_group(self, row: Mapping[str, Any], reader: Reader) -> Group:
        opening, replies = read_dialogue(row, "completion")
        if not self.heads:
            return [set_return(reader.make_episode(opening, replies), read_label(row))]
        scores = row.get("scores")
        head_labels = labels.read_labels(row if scores is None else scores, self.heads, "scores")
        return [labels.add_labels(reader.make_episode(opening, replies), head_labels)]
