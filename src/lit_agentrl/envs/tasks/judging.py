"""The policy judges answers of known scores, as generative reward models are trained (SPCT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np

from lit_agentrl.checks import require_one_of, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng
from lit_agentrl.envs.tasks.compared import Compared, draw_compared, read_compared
from lit_agentrl.envs.tasks.rows import find_files, hash_contents, resolve_files
from lit_agentrl.episode import EndReason, Episode
from lit_agentrl.judging import Criteria, Unreadable

ASKS = ("scores", "score", "better")
_TASK, _ORDER = 95, 96  # purpose keys
_STEPS = 10  # resolution of random scores
_DEFAULT_ANSWERS = 2  # default number of answers to a generated task
_CHOICES = ("1", "2", "tie")
_SHARES = {1: (1.0, 0.0), 2: (0.0, 1.0), 0: (0.5, 0.5)}  # scores that stand for a verdict about two answers


class Judging(TextEnv):
    """One task with its answers per episode; the policy writes principles, a critique and scores.

    The reward is that of SPCT (arXiv 2504.02495, section 3.2), at the end of the episode::

        +1 if every best answer scores higher than every other one; for a single answer: if the score is the known one
        -1 otherwise, and for a reply that cannot be parsed, which ends the episode

    Answers are shown as data, as in `judging.Criteria`: they cannot close their fence nor spell a verdict.  The order
    of the answers is drawn for each instance.

    Args:
        path: a JSONL or Parquet file in a format of ``data=pairs``, ``ranked`` or ``unpaired``, or one for each of
            ``train``, ``val`` and ``test`` (see `dataset.Dataset`); None: tasks are generated.
        asks: ``scores``: of all answers in one reply; ``score``: of one answer per turn, the question of
            ``reward=judge``; ``better``: the better of two, the question of ``lit-agentrl label``.
        turns: replies per episode.
        answers: number of answers to a generated task; None: 2.
        principles, low, high, most_characters: see `judging.Criteria`.
        split: ``train``, ``val`` or ``test``, decided by the prompt.

    Raises:
        ValueError: a file, a row or an option that cannot be used.
    """

    def __init__(
        self,
        *,
        path: str | Mapping[str, str] | None = None,
        asks: str = "scores",
        turns: int = 1,
        answers: int | None = None,
        principles: Sequence[str] = (),
        low: float = 0.0,
        high: float = 10.0,
        most_characters: int = 20_000,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_one_of("asks", asks, ASKS)
        if answers is not None:
            require_whole("answers", answers, 2, 8)
            if path is not None:
                raise ValueError(
                    f"answers={answers} applies to generated tasks only, and path names rows; leave it out"
                )
        self._criteria = Criteria(principles=principles, low=low, high=high, most_characters=most_characters)
        self._asks, self._num_answers = asks, _DEFAULT_ANSWERS if answers is None else answers
        self._files = None if path is None else find_files(path)
        self.instances = None if self._files is None else len(read_compared(self._files)[split])
        self._require_fit(turns)
        self.max_solution = self._max_answers if asks == "score" else 1
        self._task = Compared([], [], [])
        self._shares: list[float] = []

    @classmethod
    def home(cls, options: Mapping[str, Any]) -> Path:
        return super().home(options) if options["path"] is None else resolve_files(options["path"])["train"]

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with the hash of the files' content in place of their names."""
        path = options["path"]
        return {**options, "path": None if path is None else hash_contents(path)}

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a verdict in the right form."""
        if self._asks == "better":
            return self._criteria.write("better", _CHOICES[int(rng.integers(len(_CHOICES)))])
        count = 1 if self._asks == "score" else len(self._task.answers)
        return self._write_verdict([float(step) / _STEPS for step in rng.integers(_STEPS + 1, size=count)])

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the remaining verdicts; None after the end of the episode."""
        require_whole("horizon", horizon, 1)
        if not self._is_running:
            return None
        scores = self._task.scores
        best = [score if len(scores) == 1 else float(score == max(scores)) for score in scores]
        if self._asks == "better":
            return [self._criteria.write("better", "1" if best[0] else "2")]
        if self._asks == "score":
            return [self._write_verdict([share]) for share in best[len(self._shares) :]][:horizon]
        return [self._write_verdict(best)]

    # ------------------------------------------------------------------ an episode
    def _draw_instance(self, seed: int) -> str:
        if self._files is None:
            task = draw_for_split(
                lambda attempt: draw_compared(keyed_rng(seed, attempt, _TASK), self._num_answers),
                lambda each: each.question,
                split=self.split,
            )
        else:
            rows = read_compared(self._files)[self.split]
            task = rows[int(keyed_rng(seed, 0, _TASK).integers(len(rows)))]
        order = keyed_rng(seed, 0, _ORDER).permutation(len(task.answers))
        self._task = Compared(
            task.prompt, [task.answers[k] for k in order], [task.scores[k] for k in order], task.location
        )
        self._shares = []
        return f"{task.question}\n{task.answers}"

    def _observe(self) -> str:
        shown = [
            Episode(0, 0, 0, 0, "judging", 0, opening=[*self._task.prompt, *answer], end=EndReason.TURN_LIMIT)
            for answer in self._task.answers
        ]
        if self._asks == "better":
            return self._criteria.ask_better(shown[0], shown[1])
        if self._asks == "score" or len(shown) == 1:
            return self._criteria.ask_score(shown[min(len(self._shares), len(shown) - 1)])
        return self._criteria.ask_scores(shown)

    def _play(self, action: str) -> Outcome:
        count = len(self._task.answers)
        try:
            self._shares = [*self._shares, *self._read_shares(action)]
        except Unreadable:
            return Outcome({"unread": -1.0}, terminated=True)
        if len(self._shares) < count:
            return Outcome()
        is_right = has_best_first(self._shares, self._task.scores)
        return Outcome({"judged": 1.0 if is_right else -1.0}, terminated=True, success=is_right)

    def _get_state(self) -> dict[str, Any]:
        return {"item": asdict(self._task), "shares": self._shares}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._task, self._shares = Compared(**state["item"]), list(state["shares"])

    # ------------------------------------------------------------------ verdicts
    def _read_shares(self, reply: str) -> Sequence[float]:
        count = len(self._task.answers)
        if self._asks == "better":
            return _SHARES[self._criteria.read_better(reply)]
        if self._asks == "score" or count == 1:
            return [self._criteria.read_score(reply)]
        return self._criteria.read_scores(reply, count)

    def _write_verdict(self, shares: Sequence[float]) -> str:
        """Write a reply whose scores are these shares of the range from lowest to highest."""
        low, high = self._criteria.low, self._criteria.high
        numbers = [f"{low + share * (high - low):.9f}".rstrip("0").rstrip(".") for share in shares]
        return self._criteria.write("scores" if len(numbers) > 1 else "score", ", ".join(numbers))

    @property
    def _max_answers(self) -> int:
        if self._files is None:
            return self._num_answers
        return max(len(row.answers) for row in read_compared(self._files)[self.split])

    def _require_fit(self, turns: int) -> None:
        """Check that every task can be asked about in this form."""
        require_whole("turns", turns, 1)
        if self._asks == "score" and self._max_answers > turns:
            raise ValueError(
                f"turns={turns} is too few: asks=score shows one answer a turn, and a task has up to "
                f"{self._max_answers} answers; raise env.max_turns"
            )
        if self._asks != "better":
            return
        if self._files is None and self._num_answers != _DEFAULT_ANSWERS:
            raise ValueError(f"answers={self._num_answers}: asks=better compares two; leave it out")
        rows = [] if self._files is None else read_compared(self._files)[self.split]
        if unfit := next((row for row in rows if len(row.answers) != 2), None):
            raise ValueError(
                f"path={unfit.location}: it has {len(unfit.answers)} answers, and asks=better compares two; set "
                "asks=scores"
            )


def has_best_first(shares: Sequence[float], known_scores: Sequence[float]) -> bool:
    """Return whether every best answer scores higher than every other one.

    For a single answer: whether its score, as a share of the range from lowest to highest, is the known one.

    Args:
        shares: the scores.
        known_scores: of several, not all equal.
    """
    if len(known_scores) == 1:
        return isclose(shares[0], known_scores[0], abs_tol=1e-6)
    best = max(known_scores)
    pairs = list(zip(shares, known_scores, strict=True))
    return min(share for share, known in pairs if known == best) > max(
        share for share, known in pairs if known < best
    )
