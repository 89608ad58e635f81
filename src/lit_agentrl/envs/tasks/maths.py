"""Questions of mathematics with exact answers, in a few tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng
from lit_agentrl.envs.tasks.maths_answers import judge
from lit_agentrl.envs.tasks.maths_tasks import LEVELS, TOPICS, Problem, Sampler

_TASK, _OTHER = 85, 86  # purpose keys
_SHOWN = 60  # characters of an answer that the feedback repeats


class Maths(TextEnv):
    """One question per episode; all equal forms of the right answer are accepted.

    After a wrong answer the episode says so and asks the question again.  A right answer ends it with reward 1.  Random
    play gives the answer to another question of the same topic and level, best play the right answer.

    Args:
        topics: some of `TOPICS`; None: all.
        levels: levels of difficulty, some of 1, 2, 3.
        tries: answers per episode.
        split: ``train``, ``val`` or ``test``, decided by the question.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        *,
        topics: Sequence[str] | None = None,
        levels: Sequence[int] = LEVELS,
        tries: int = 3,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        is_known = topics is None or (not isinstance(topics, str) and bool(topics) and {*topics} <= {*TOPICS})
        require(is_known, "topics", topics, f"null, or a list of some of {', '.join(TOPICS)}")
        is_known = not isinstance(levels, str) and bool(levels) and {*levels} <= {*LEVELS}
        require(is_known, "levels", levels, "a list of some of 1, 2, 3")
        require_whole("tries", tries, 1)
        self._topics, self._levels = sorted({*(topics or TOPICS)}), sorted({*levels})
        self._tries, self._turn, self._feedback = tries, 0, ""
        self._topic, self._level, self._problem = "", 0, Problem("", "0")

    @property
    def system_text(self) -> str:
        return (
            "Answer a question of mathematics. Write the answer alone, and exactly: a number as -7, 2.5 or 3/4, "
            "several numbers with commas between them, an expression as 2x^2 - 3x + 1, multiplied out and with like "
            "terms collected.\nRewards: 1 for the right answer."
        )

    def random_action(self, rng: np.random.Generator) -> str:
        return TOPICS[self._topic](
            Sampler(keyed_rng(int(rng.integers(2**31)), 0, _OTHER), self._level)
        ).answer

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the answer; None after the end of the episode."""
        require_whole("horizon", horizon, 1)
        return [self._problem.answer] if self._is_running else None

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[tuple[str, int, Problem]]:
            rng = keyed_rng(seed, attempt, _TASK)
            topic = self._topics[int(rng.integers(len(self._topics)))]
            level = self._levels[int(rng.integers(len(self._levels)))]
            yield topic, level, TOPICS[topic](Sampler(rng, level))

        instance = draw_for_split(propose, lambda drawn: drawn[2].question, split=self.split)
        self._topic, self._level, self._problem = instance
        self._turn, self._feedback = 0, ""
        return self._problem.question

    def _observe(self) -> str:
        return f"{self._feedback}\n{self._problem.question}" if self._feedback else self._problem.question

    def _play(self, action: str) -> Outcome:
        problem, self._turn = self._problem, self._turn + 1
        judgement = judge(action, problem.answer, problem.form, problem.unknown)
        self._feedback = (
            "Right." if judgement.is_right else f"Your answer is {_shorten(action)}, but {judgement.message}."
        )
        is_over = judgement.is_right or self._turn == self._tries
        return Outcome({"answer": float(judgement.is_right)}, terminated=is_over, success=judgement.is_right)

    def _get_state(self) -> dict[str, Any]:
        problem = asdict(self._problem)
        return {
            "at": [self._topic, self._level],
            "problem": problem,
            "turn": self._turn,
            "told": self._feedback,
        }

    def _set_state(self, state: Mapping[str, Any]) -> None:
        (self._topic, self._level), self._problem = state["at"], Problem(**state["problem"])
        self._turn, self._feedback = state["turn"], state["told"]


def _shorten(answer: str) -> str:
    text = " ".join(answer.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
