"""All answers to a prompt with a score each, a group of K."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lit_agentrl.data.conversations import Messages, Reader, messages_of, number, prompt_of
from lit_agentrl.data.kinds import BadRow, Kind, replies, scored
from lit_agentrl.data.recordings import Group
from lit_agentrl.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Ranked(Kind):
    """Rows: ``prompt``, ``completions`` and ``scores``, lists of one length; points, the more the better."""

    smallest: ClassVar[int] = 2

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        if len({episode.training_return for episode in episodes}) > 1:
            yield episodes

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        opening, given = _answers(row, "completions")
        worth = row.get("scores")
        if not isinstance(worth, list) or len(worth) != len(given):
            raise BadRow("no_scores", "column scores must be a list with a number for each of completions")
        points = [number({"scores": each}, "scores") for each in worth]
        if len(set(points)) < 2:
            raise BadRow("tie", "all scores are equal, so that none is better")
        group = [
            scored(read.episode(opening, each), value) for each, value in zip(given, points, strict=True)
        ]
        if len({replies(episode) for episode in group}) < 2:
            raise BadRow("identical", "all completions are the same")
        return group


def _answers(row: Mapping[str, Any], column: str) -> tuple[Messages, list[Messages]]:
    """The prompt of a row, and the answers in a list.

    Raises:
        BadRow: it lacks one of them.
    """
    given = row.get(column)
    if not isinstance(given, list) or len(given) < 2:
        raise BadRow("no_column", f"column {column} must be a list of at least two answers")
    return prompt_of(row), [messages_of(each, column, "assistant") for each in given]
