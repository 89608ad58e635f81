"""Ask questions several times, with retries for replies that cannot be parsed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.judging import Unreadable
from lit_agentrl.rewards.base import Answerer

T = TypeVar("T")


@dataclass
class Answers(Generic[T]):
    """The parsed replies to questions.

    Attributes:
        parsed: for each question, pairs of a parsed value and its reply.
        counts: number of replies ``asked`` for, and of unreadable replies by reason, such as ``unread_form``.
        first: the first unreadable reply, as the end of an error message; empty without any.
    """

    parsed: list[list[tuple[T, str]]]
    counts: Counter[str] = field(default_factory=Counter)
    first: str = ""


def ask_questions(
    answerer: Answerer,
    texts: Sequence[str],
    *,
    samples: int,
    retries: int,
    key: Callable[[int, int, int], int],
    read: Callable[[str], T],
) -> Answers[T]:
    """Ask each question several times and parse the replies.

    Args:
        answerer: the model that answers.
        texts: the questions.
        samples: number of replies to each question.
        retries: how often to ask again for a reply that cannot be parsed.
        key: returns the sampling key for the index of a question, the number of the sample and of the attempt.
        read: parses a reply; raises `Unreadable`.
    """
    answers = Answers[T]([[] for _ in texts])
    unanswered = [(index, sample) for index in range(len(texts)) for sample in range(samples)]
    for attempt in range(retries + 1):
        replies = answerer.ask([(texts[index], key(index, sample, attempt)) for index, sample in unanswered])
        answers.counts["asked"] += len(unanswered)
        unread = []
        for (index, sample), reply in zip(unanswered, replies, strict=True):
            try:
                answers.parsed[index].append((read(reply), reply))
            except Unreadable as error:
                unread.append((index, sample))
                answers.counts[f"unread_{error}"] += 1
                answers.first = answers.first or f'; the first: "{escape_unprintable(reply[:80])}" ({error})'
        unanswered = unread
    return answers
