"""Questions that are asked several times, and again where a reply cannot be read."""

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
class Heard(Generic[T]):
    """What came of questions.

    Attributes:
        found: of each question: what was read of its replies, beside these.
        counts: replies that were ``asked`` for, and those that could not be read by reason, as ``unread_form``.
        first: the first of these, to end a message with; empty where there is none.
    """

    found: list[list[tuple[T, str]]]
    counts: Counter[str] = field(default_factory=Counter)
    first: str = ""


def hear(
    answerer: Answerer,
    texts: Sequence[str],
    *,
    samples: int,
    retries: int,
    key: Callable[[int, int, int], int],
    read: Callable[[str], T],
) -> Heard[T]:
    """Ask each question several times.

    Args:
        answerer: who answers.
        texts: the questions.
        samples: replies to each.
        retries: how often a reply that cannot be read is asked for again.
        key: of the draws: of the place of a question, the number of the sample and of the attempt.
        read: what a reply says; raises `Unreadable`.
    """
    heard = Heard[T]([[] for _ in texts])
    open_ = [(place, sample) for place in range(len(texts)) for sample in range(samples)]
    for attempt in range(retries + 1):
        replies = answerer.ask([(texts[place], key(place, sample, attempt)) for place, sample in open_])
        heard.counts["asked"] += len(open_)
        unread = []
        for (place, sample), reply in zip(open_, replies, strict=True):
            try:
                heard.found[place].append((read(reply), reply))
            except Unreadable as error:
                unread.append((place, sample))
                heard.counts[f"unread_{error}"] += 1
                heard.first = heard.first or f'; the first: "{escape_unprintable(reply[:80])}" ({error})'
        open_ = unread
    return heard
