"""All scored answers to a prompt, as a group of K."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import Kind, list_replies, set_return
from lit_agentrl.data.labels import add_labels, has_different_labels, read_labels
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import BadRow, read_answers, read_ranked
from lit_agentrl.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Ranked(Kind):
    """Rows with ``prompt``, ``completions`` and ``scores``, lists of equal length.

    A higher score is better.  If ``score`` is a list, each of ``scores`` holds a number for each name; a
    name may be missing.
    """

    smallest: ClassVar[int] = 2
    several: ClassVar[bool] = True

    def make_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        if has_different_labels(episodes):
            yield episodes

    def read_group(self, row: Mapping[str, Any], reader: Reader) -> Group:
        group = self._make_labelled(row, reader) if self.heads else self._make_scored(row, reader)
        if len({list_replies(episode) for episode in group}) < 2:
            raise BadRow("identical", "all completions are the same")
        return group

    def _make_scored(self, row: Mapping[str, Any], reader: Reader) -> list[Episode]:
        opening, answers, rewards = read_ranked(row)
        return [
            set_return(reader.make_episode(opening, answer), reward)
            for answer, reward in zip(answers, rewards, strict=True)
        ]

    def _make_labelled(self, row: Mapping[str, Any], reader: Reader) -> list[Episode]:
        opening, answers, scores = read_answers(row)
        labels = [read_labels(answer, self.heads, "scores") for answer in scores]
        group: list[Episode] = [
            add_labels(reader.make_episode(opening, answer), answer_labels)
            for answer, answer_labels in zip(answers, labels, strict=True)
        ]
        if not has_different_labels(group):
            raise BadRow("tie", "all scores are equal for each head")
        return group
