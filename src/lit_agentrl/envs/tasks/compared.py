"""Tasks with answers of known worth: rows of files, or made of questions of mathematics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lit_agentrl.envs.tasks.maths_answers import judge
from lit_agentrl.envs.tasks.maths_tasks import TOPICS, Draw
from lit_agentrl.envs.tasks.messages import (
    BadRow,
    Messages,
    dialogue,
    labelled,
    pair_of,
    pair_worth,
    ranked_of,
)
from lit_agentrl.envs.tasks.rows import Files, deal

_DRAWS = 20  # for each further answer


@dataclass(frozen=True)
class Compared:
    """A task and the answers to it.

    Attributes:
        asked: the messages that are answered.
        answers: the messages of each answer.
        worth: of each answer; of a single one a share, from 0 to 1.
        place: file and line; empty where it was made.
    """

    asked: Messages
    answers: Sequence[Messages]
    worth: Sequence[float]
    place: str = ""

    @property
    def question(self) -> str:
        """What is asked, as a text."""
        return json.dumps(self.asked, ensure_ascii=False)


def read_compared(files: Files) -> Mapping[str, tuple[Compared, ...]]:
    """The rows of each split, in the formats of ``data=pairs``, ``ranked`` and ``unpaired``.

    Files that have not changed are read once in a process.

    Raises:
        ValueError: a row that cannot be used, a prompt in two splits, or a split without rows.
    """
    return _read(files)


@lru_cache(maxsize=16)
def _read(files: Files) -> Mapping[str, tuple[Compared, ...]]:
    return deal(files, _of_row, "its prompt")


def _of_row(row: Mapping[str, Any], place: str) -> Compared:
    if row.get("chosen") is not None or row.get("rejected") is not None:
        asked, answers = pair_of(row)
        worth = pair_worth(row)
    elif row.get("completions") is not None:
        asked, answers, worth = ranked_of(row)
    elif row.get("completion") is not None or row.get("messages") is not None:
        share, (before, rest) = labelled(row), dialogue(row, "completion")
        asked, answer = _parted(before, rest)
        if not 0 <= share <= 1:
            raise BadRow(
                "bad_number", f"the score of a single answer is {share:g}; write a share from 0 to 1"
            )
        answers, worth = [answer], [share]
    else:
        told = ", ".join(map(str, row)) or "none"
        raise BadRow(
            "no_column",
            f"it has neither chosen and rejected, nor completions, nor completion, nor messages (there are {told})",
        )
    if len(answers) > 1 and all(each == answers[0] for each in answers):
        raise BadRow("identical", "all answers are the same")
    return Compared(asked, answers, worth, place)


def _parted(before: Messages, rest: Messages) -> tuple[Messages, Messages]:
    """What is asked, and the answer to it from its first reply on.

    Raises:
        BadRow: nothing is asked, or nothing is answered.
    """
    first = next((place for place, each in enumerate(rest) if each["role"] == "assistant"), None)
    if first is None:
        raise BadRow("no_reply", "it has no assistant message to judge")
    if not (asked := [*before, *rest[:first]]):
        raise BadRow("no_prompt", "it begins with an assistant message, which answers nothing")
    return asked, rest[first:]


def made(rng: np.random.Generator, count: int) -> Iterator[Compared]:
    """A question of mathematics of the lowest level with one right answer, at place 0, and wrong ones; or none.

    Args:
        rng: of the draws.
        count: of answers.
    """
    topic = list(TOPICS.values())[int(rng.integers(len(TOPICS)))]
    problem = topic(Draw(rng, 1))
    answers = [problem.answer]
    for _ in range(_DRAWS * (count - 1)):
        if len(answers) == count:
            break
        other = topic(Draw(rng, 1)).answer
        if other not in answers and not judge(other, problem.answer, problem.form, problem.unknown).is_right:
            answers.append(other)
    if len(answers) == count:
        yield Compared(
            [{"role": "user", "content": problem.question}],
            [[{"role": "assistant", "content": f"The answer is {answer}."}] for answer in answers],
            [1.0, *[0.0] * (count - 1)],
        )
