"""Labels of recorded episodes by a judge: comparisons, critiques and revisions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from lit_agentrl import seeds
from lit_agentrl.episode import Episode
from lit_agentrl.judging import Criteria, Unreadable
from lit_agentrl.rewards.base import Answerer
from lit_agentrl.rewards.learned.asking import Answers, ask_questions


@dataclass(frozen=True)
class Labels:
    """Questions to a judge about recorded episodes.

    Attributes:
        answerer: the judge.
        criteria: the questions and the parsers of replies.
        seed: seed of sampling.
        retries: number of times to ask again for a reply that cannot be parsed.
    """

    answerer: Answerer
    criteria: Criteria
    seed: int
    retries: int

    def compare(
        self, pairs: Sequence[tuple[Episode, Episode]], *, address: int
    ) -> list[float | Literal["inconsistent", "unread"]]:
        """Ask in both orders which of two episodes is better.

        Args:
            pairs: pairs of episodes of one prompt.
            address: part of the sampling key, together with the index of the pair.

        Returns:
            1 if the first is better, 0 if the second is, 0.5 for a tie; ``inconsistent`` if the answers in the two
            orders differ; ``unread`` if one of them could not be parsed.
        """
        questions = {(index, order) for index in range(len(pairs)) for order in (0, 1)}
        answers: dict[tuple[int, int], int] = {}
        for attempt in range(self.retries + 1):
            unanswered = sorted(questions - answers.keys())
            texts = [
                self.criteria.ask_better(*(pairs[p][::-1] if order else pairs[p])) for p, order in unanswered
            ]
            keys = [
                seeds.make_key(self.seed, "compare", address, *question, attempt) for question in unanswered
            ]
            replies = self.answerer.ask(list(zip(texts, keys, strict=True)))
            for question, reply in zip(unanswered, replies, strict=True):
                with suppress(Unreadable):
                    answers[question] = self.criteria.read_better(reply)
        return [
            _combine_verdicts(answers.get((index, 0)), answers.get((index, 1))) for index in range(len(pairs))
        ]

    def criticise(
        self, episodes: Sequence[Episode], *, rounds: int, address: int
    ) -> tuple[list[str], Answers[str]]:
        """Ask for critiques, and return the questions with the answers.

        The questions equal those of ``reward=judge`` with ``scalar``.

        Args:
            episodes: the episodes to criticise.
            rounds: number of critiques per episode.
            address: part of the sampling key, together with the index of the episode.
        """
        texts = [self.criteria.ask_critique(episode) for episode in episodes]
        return texts, ask_questions(
            self.answerer, texts, samples=rounds, retries=self.retries, read=self.criteria.read_critique,
            key=lambda *position: seeds.make_key(self.seed, "criticise", address, *position),
        )  # fmt: skip

    def revise(self, turns: Sequence[tuple[Episode, int]], *, address: int) -> Answers[str]:
        """Ask for a better reply to each turn.

        ``parsed`` is empty for a turn whose revision cannot be read.

        Args:
            turns: pairs of an episode and the index of a turn in it.
            address: part of the sampling key, together with the index of the pair.
        """
        texts = [self.criteria.ask_revision(episode, turn_index) for episode, turn_index in turns]
        return ask_questions(
            self.answerer, texts, samples=1, retries=self.retries, read=self.criteria.read_revision,
            key=lambda *position: seeds.make_key(self.seed, "revise", address, *position),
        )  # fmt: skip


def _combine_verdicts(first: int | None, swapped: int | None) -> float | Literal["inconsistent", "unread"]:
    """Combine the answers in both orders, each 1, 2, 0 (a tie) or None (unreadable)."""
    if first is None or swapped is None:
        return "unread"
    verdicts: dict[tuple[int, int], float] = {(1, 2): 1.0, (2, 1): 0.0, (0, 0): 0.5}
    return verdicts.get((first, swapped), "inconsistent")
