"""Episodes with a label for every turn, or an answer with one for every step, each a group of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lit_agentrl.checks import require
from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import Kind, scored
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import BadRow, read_dialogue, read_prompt
from lit_agentrl.episode import Episode
from lit_agentrl.facts import READS_STEP_LABELS
from lit_agentrl.requirements import Fact, Requirement


@dataclass(frozen=True, kw_only=True)
class Stepwise(Kind):
    """Rows: ``messages`` and ``labels``; or ``prompt``, ``completions``, the steps of one answer, and ``labels``.

    There is a label for each reply, or for each step.
    A label is true or false, or a number from 0 to 1: of people, or the share of continuations that succeed.  A turn is
    worth what its label adds to the one before, so that the episode has come to the label by then
    (``algo/label=so_far``), and to the last one in the end.  Of recorded episodes ``score=labels`` takes the labels
    that `collect` made of continuations, ``score=success`` the success of the episode for each of its turns.

    Attributes:
        separator: stands behind each step but the last.
    """

    scores: ClassVar[tuple[str, ...]] = ("success", "labels")
    score: str = "success"
    separator: str = "\n"

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        require(isinstance(self.separator, str), "separator", self.separator, "a text")

    @property
    def requires(self) -> list[Fact | Requirement]:
        """An algorithm that reads the labels."""
        reason = "it has a label for every turn"
        return [
            Requirement(READS_STEP_LABELS, reason=reason, remedy="data=demonstrations"),
            *super().requires,
        ]

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from ([each] for each in self._labelled(episodes))

    def judged(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield self._labelled(episodes)

    def _labelled(self, episodes: Sequence[Episode]) -> list[Episode]:
        if self.score == "labels":  # as `collect` has written them
            return list(episodes)
        return [labelled(each, [float(each.success)] * len(each.turns)) for each in episodes]

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        if row.get("completions") is None or row.get("messages") is not None:
            opening, replies = read_dialogue(row, "completions")
            labels = _labels(row, sum(message["role"] == "assistant" for message in replies), "replies")
            return [labelled(read.episode(opening, replies), labels)]
        steps = row["completions"]
        if not isinstance(steps, list) or not all(isinstance(step, str) and step.strip() for step in steps):
            raise BadRow("no_steps", "column completions must be a list of texts, the steps of one answer")
        labels = _labels(row, len(steps), "steps")
        return [labelled(read.steps(read_prompt(row), steps, self.separator), labels)]


def _labels(row: Mapping[str, Any], count: int, what: str) -> list[float]:
    given = row.get("labels")
    if not isinstance(given, list):
        raise BadRow("no_label", f"column labels must be a list with a label for each of the {what}")
    if len(given) != count:
        raise BadRow("no_label", f"column labels has {len(given)} entries, and there are {count} {what}")
    for label in given:
        if not isinstance(label, bool | int | float) or not 0 <= label <= 1:
            raise BadRow(
                "bad_label",
                f"column labels holds {str(label)[:40]!r}; write true, false, or a number from 0 to 1",
            )
    return [float(label) for label in given]


def labelled(episode: Episode, labels: Sequence[float]) -> Episode:
    """The same episode, which comes to these labels turn by turn; a cut-off one to the first of them."""
    kept = labels[: len(episode.turns)]
    steps = [after - before for before, after in zip([0.0, *kept], kept, strict=False)]
    turns = [replace(turn, shaped_reward=step) for turn, step in zip(episode.turns, steps, strict=True)]
    return replace(scored(episode, 0.0), turns=turns)
