"""Episodes with a label per turn, or answers with one per step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lit_agentrl.checks import require
from lit_agentrl.data.conversations import Reader, is_learnt_reply
from lit_agentrl.data.kinds import Kind, set_return
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import BadRow, read_dialogue, read_prompt
from lit_agentrl.episode import Episode
from lit_agentrl.facts import READS_STEP_LABELS
from lit_agentrl.requirements import Fact, Requirement


@dataclass(frozen=True, kw_only=True)
class Stepwise(Kind):
    """Rows with ``messages`` and ``labels``, or ``prompt``, ``completions`` and ``labels``.

    ``completions`` are the steps of one answer.  There is a label for each reply, or for each step: true or false, or a
    number from 0 to 1, such as the share of continuations that succeed.  The reward of a turn is its label minus that
    of the previous turn, so the return up to a turn is its label (``algo/label=so_far``).  For recorded episodes,
    ``score=labels`` uses the labels that `collect` made from continuations, and ``score=success`` gives each turn the
    success of the episode as its label.

    Attributes:
        separator: text after each step but the last.
    """

    scores: ClassVar[tuple[str, ...]] = ("success", "labels")
    score: str = "success"
    separator: str = "\n"

    def __post_init__(self) -> None:
        """Check the options."""
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

    def make_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from ([episode] for episode in self._add_labels(episodes))

    def make_held_out_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield self._add_labels(episodes)

    def _add_labels(self, episodes: Sequence[Episode]) -> list[Episode]:
        if self.score == "labels":  # written by `collect`
            return list(episodes)
        return [set_step_returns(e, [float(e.success)] * len(e.turns)) for e in episodes]

    def read_group(self, row: Mapping[str, Any], reader: Reader) -> Group:
        if row.get("completions") is None or row.get("messages") is not None:
            opening, replies = read_dialogue(row, "completions")
            assistant_messages = [message for message in replies if message["role"] == "assistant"]
            labels = _read_labels(row, len(assistant_messages), "replies")
            labels = [
                label
                for label, reply in zip(labels, assistant_messages, strict=True)
                if is_learnt_reply(reply)
            ]
            return [set_step_returns(reader.make_episode(opening, replies), labels)]
        steps = row["completions"]
        if not isinstance(steps, list) or not all(isinstance(step, str) and step.strip() for step in steps):
            raise BadRow("no_steps", "column completions must be a list of texts, the steps of one answer")
        labels = _read_labels(row, len(steps), "steps")
        return [
            set_step_returns(reader.make_stepwise_episode(read_prompt(row), steps, self.separator), labels)
        ]


def _read_labels(row: Mapping[str, Any], count: int, unit: str) -> list[float]:
    labels = row.get("labels")
    if not isinstance(labels, list):
        raise BadRow("no_label", f"column labels must be a list with a label for each of the {unit}")
    if len(labels) != count:
        raise BadRow("no_label", f"column labels has {len(labels)} entries, and there are {count} {unit}")
    for label in labels:
        if not isinstance(label, bool | int | float) or not 0 <= label <= 1:
            raise BadRow(
                "bad_label",
                f"column labels holds {str(label)[:40]!r}; write true, false, or a number from 0 to 1",
            )
    return [float(label) for label in labels]


def set_step_returns(episode: Episode, labels: Sequence[float]) -> Episode:
    """Return a copy of the episode whose return up to each turn is its label."""
    used = labels[: len(episode.turns)]
    steps = [after - before for before, after in zip([0.0, *used], used, strict=False)]
    turns = [replace(turn, shaped_reward=step) for turn, step in zip(episode.turns, steps, strict=True)]
    return replace(set_return(episode, 0.0), turns=turns)
