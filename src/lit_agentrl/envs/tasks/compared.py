"""Tasks with answers of known scores: rows of files, or generated questions of mathematics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lit_agentrl.envs.tasks.maths_answers import judge
from lit_agentrl.envs.tasks.maths_tasks import TOPICS, Sampler
from lit_agentrl.envs.tasks.messages import (
    BadRow,
    Messages,
    read_dialogue,
    read_label,
    read_pair,
    read_pair_scores,
    read_ranked,
)
from lit_agentrl.envs.tasks.row_formats import convert_row
from lit_agentrl.envs.tasks.rows import Files, divide_into_splits
from lit_agentrl.envs.tasks.spelling import spell_out

_DRAWS = 20  # attempts for each further answer


@dataclass(frozen=True)
class Compared:
    """A task and its answers with known scores.

    Attributes:
        prompt: the messages to answer.
        answers: the messages of each answer.
        scores: score of each answer; the score of a single answer is a share from 0 to 1.
        location: file and line; empty for a generated task.
    """

    prompt: Messages
    answers: Sequence[Messages]
    scores: Sequence[float]
    location: str = ""

    @property
    def question(self) -> str:
        """The messages to answer, as text."""
        return json.dumps(self.prompt, ensure_ascii=False)


def read_compared(files: Files) -> Mapping[str, tuple[Compared, ...]]:
    """Return the rows of each split, in the formats of ``data=pairs``, ``ranked`` and ``unpaired``.

    Unchanged files are read once per process.

    Raises:
        ValueError: a row that cannot be used, a prompt in two splits, or a split without rows.
    """
    return _read(files)


@lru_cache(maxsize=16)
def _read(files: Files) -> Mapping[str, tuple[Compared, ...]]:
    return divide_into_splits(files, _read_row, "its prompt")


def _read_row(original: Mapping[str, Any], location: str) -> Compared:
    row = convert_row(original, Path(location.rsplit(" ", 2)[0]).suffix.lower()).row  # "FILE line 3"
    if row.get("chosen") is not None or row.get("rejected") is not None:
        prompt, answers = read_pair(row)
        scores = read_pair_scores(row)
    elif row.get("completions") is not None:
        prompt, answers, scores = read_ranked(row)
    elif row.get("completion") is not None or row.get("messages") is not None:
        share, (context, rest) = read_label(row), read_dialogue(row, "completion")
        prompt, answer = _separate_answer(context, rest)
        if not 0 <= share <= 1:
            raise BadRow(
                "bad_number", f"the score of a single answer is {share:g}; write a share from 0 to 1"
            )
        answers, scores = [answer], [share]
    else:
        columns = ", ".join(map(str, original)) or "none"
        raise BadRow(
            "no_column",
            f"it has neither chosen and rejected, nor completions, nor completion, nor messages (there are {columns})",
        )
    if len(answers) > 1 and all(other == answers[0] for other in answers):
        raise BadRow("identical", "all answers are the same")
    return Compared(spell_out(prompt), [spell_out(answer) for answer in answers], scores, location)


def _separate_answer(context: Messages, rest: Messages) -> tuple[Messages, Messages]:
    """Separate the prompt from the answer, which starts with the first assistant message.

    Raises:
        BadRow: there is no prompt, or no answer.
    """
    first = next((index for index, message in enumerate(rest) if message["role"] == "assistant"), None)
    if first is None:
        raise BadRow("no_reply", "it has no assistant message to judge")
    if not (prompt := [*context, *rest[:first]]):
        raise BadRow("no_prompt", "it begins with an assistant message, which answers nothing")
    return prompt, rest[first:]


def draw_compared(rng: np.random.Generator, count: int) -> Iterator[Compared]:
    """Draw an easy question of mathematics, its right answer and then wrong ones.

    Yield nothing if too few different wrong answers are drawn.

    Args:
        rng: generator of the draws.
        count: number of answers.
    """
    topic = list(TOPICS.values())[int(rng.integers(len(TOPICS)))]
    problem = topic(Sampler(rng, 1))
    answers = [problem.answer]
    for _ in range(_DRAWS * (count - 1)):
        if len(answers) == count:
            break
        other = topic(Sampler(rng, 1)).answer
        if other not in answers and not judge(other, problem.answer, problem.form, problem.unknown).is_right:
            answers.append(other)
    if len(answers) == count:
        yield Compared(
            [{"role": "user", "content": problem.question}],
            [[{"role": "assistant", "content": f"The answer is {answer}."}] for answer in answers],
            [1.0, *[0.0] * (count - 1)],
        )
