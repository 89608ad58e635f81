"""What a judge says of recorded episodes: which of two is better, what is good and bad in one, what was better said."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from lit_agentrl import seeds
from lit_agentrl.episode import Episode
from lit_agentrl.judging import Criteria, Unreadable
from lit_agentrl.rewards.base import Answerer
from lit_agentrl.rewards.learned.asking import Heard, hear


@dataclass(frozen=True)
class Labels:
    """Asks a judge for labels.

    Attributes:
        answerer: the judge.
        criteria: by which it judges.
        seed: of its draws.
        retries: how often a reply that cannot be read is asked for again.
    """

    answerer: Answerer
    criteria: Criteria
    seed: int
    retries: int

    def compared(
        self, pairs: Sequence[tuple[Episode, Episode]], *, address: int
    ) -> list[float | Literal["inconsistent", "unread"]]:
        """Which of two episodes is better, asked in both orders: 1 is the first, 0 the second, 0.5 a tie.

        ``inconsistent``: the two orders had two answers.  ``unread``: one of them had no readable answer.

        Args:
            pairs: each of one prompt.
            address: of the draws, with the place of the pair.
        """
        open_ = {(place, order) for place in range(len(pairs)) for order in (0, 1)}
        found: dict[tuple[int, int], int] = {}
        for attempt in range(self.retries + 1):
            now = sorted(open_ - found.keys())
            texts = [self.criteria.ask_better(*(pairs[p][::-1] if order else pairs[p])) for p, order in now]
            keys = [seeds.make_key(self.seed, "compare", address, *each, attempt) for each in now]
            for each, reply in zip(now, self.answerer.ask(list(zip(texts, keys, strict=True))), strict=True):
                with suppress(Unreadable):
                    found[each] = self.criteria.read_better(reply)
        return [_verdict(found.get((place, 0)), found.get((place, 1))) for place in range(len(pairs))]

    def criticised(
        self, episodes: Sequence[Episode], *, rounds: int, address: int
    ) -> tuple[list[str], Heard[str]]:
        """The very questions that a judge with ``scalar`` is asked, and critiques of each episode.

        Args:
            episodes: that were played.
            rounds: critiques of each.
            address: of the draws, with the place of the episode.
        """
        texts = [self.criteria.ask_critique(episode) for episode in episodes]
        return texts, hear(
            self.answerer, texts, samples=rounds, retries=self.retries, read=self.criteria.read_critique,
            key=lambda *place: seeds.make_key(self.seed, "criticise", address, *place),
        )  # fmt: skip

    def revised(self, turns: Sequence[tuple[Episode, int]], *, address: int) -> Heard[str]:
        """A better reply for each of these turns of episodes, none where the judge's could not be read.

        Args:
            turns: an episode, and the place of a turn in it.
            address: of the draws, with the place among these.
        """
        texts = [self.criteria.ask_revision(episode, place) for episode, place in turns]
        return hear(
            self.answerer, texts, samples=1, retries=self.retries, read=self.criteria.read_revision,
            key=lambda *place: seeds.make_key(self.seed, "revise", address, *place),
        )  # fmt: skip


def _verdict(first: int | None, swapped: int | None) -> float | Literal["inconsistent", "unread"]:
    """Of the answers in both orders: 1, 2, 0 for a tie, or None."""
    if first is None or swapped is None:
        return "unread"
    known: dict[tuple[int, int], float] = {(1, 2): 1.0, (2, 1): 0.0, (0, 0): 0.5}
    return known.get((first, swapped), "inconsistent")
