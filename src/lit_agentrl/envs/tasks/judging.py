"""The policy is a judge of answers whose worth is known: how generative reward models are trained (SPCT)."""

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
from lit_agentrl.envs.tasks.compared import Compared, made, read_compared
from lit_agentrl.envs.tasks.rows import contents, find_files, named_files
from lit_agentrl.episode import EndReason, Episode
from lit_agentrl.judging import Criteria, Unreadable

ASKS = ("scores", "score", "better")
_TASK, _ORDER = 95, 96  # purpose keys
_STEPS = 10  # of the scores that chance gives
_MADE = 2  # answers to a task, unless it is said
_CHOICES = ("1", "2", "tie")
_SHARES = {1: (1.0, 0.0), 2: (0.0, 1.0), 0: (0.5, 0.5)}  # that stand for a verdict about two


class Judging(TextEnv):
    """A task and answers to it an episode; the policy writes what a judge writes: principles, critique, scores.

    The reward is that of SPCT (arXiv 2504.02495, section 3.2), at the end of the episode::

        +1 if every best answer has a higher score than every other one; of a single answer: if the score is its worth
        -1 else, also for a reply that cannot be read, which ends the episode

    What is shown is data, as `judging.Criteria` has it: it cannot close its fence, nor spell a verdict.  The order of
    the answers is drawn for each instance.

    Args:
        path: a JSONL or Parquet file in a format of ``data=pairs``, ``ranked`` or ``unpaired``, or one for each of
            ``train``, ``val`` and ``test`` (see `dataset.Dataset`); None: tasks are made.
        asks: ``scores``: for all of them in one reply; ``score``: for one answer in each turn, the question of
            ``reward=judge``; ``better``: for the better of two, the question of ``lit-agentrl label``.
        turns: replies that an episode may hold.
        answers: of a task that is made; None: 2.
        principles, low, high, most_characters: see `judging.Criteria`.
        split: ``train``, ``val`` or ``test``, by what is asked.

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
                    f"answers={answers} is of tasks that are made, and path names rows; leave it out"
                )
        self._criteria = Criteria(principles=principles, low=low, high=high, most_characters=most_characters)
        self._asks, self._count = asks, _MADE if answers is None else answers
        self._files = None if path is None else find_files(path)
        self.instances = None if self._files is None else len(read_compared(self._files)[split])
        self._require_fit(turns)
        self.max_solution = self._most_answers if asks == "score" else 1
        self._item = Compared([], [], [])
        self._shares: list[float] = []

    @classmethod
    def home(cls, options: Mapping[str, Any]) -> Path:
        return super().home(options) if options["path"] is None else named_files(options["path"])["train"]

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The content of the files in place of their names."""
        path = options["path"]
        return {**options, "path": None if path is None else contents(path)}

    def random_action(self, rng: np.random.Generator) -> str:
        """A verdict in the right form."""
        if self._asks == "better":
            return self._criteria.write("better", _CHOICES[int(rng.integers(len(_CHOICES)))])
        count = 1 if self._asks == "score" else len(self._item.answers)
        return self._written([float(step) / _STEPS for step in rng.integers(_STEPS + 1, size=count)])

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """The verdicts that are left; None once the episode is over."""
        require_whole("horizon", horizon, 1)
        if not self._is_running:
            return None
        worth = self._item.worth
        best = [each if len(worth) == 1 else float(each == max(worth)) for each in worth]
        if self._asks == "better":
            return [self._criteria.write("better", "1" if best[0] else "2")]
        if self._asks == "score":
            return [self._written([share]) for share in best[len(self._shares) :]][:horizon]
        return [self._written(best)]

    # ------------------------------------------------------------------ an episode
    def _draw_instance(self, seed: int) -> str:
        if self._files is None:
            item = draw_for_split(
                lambda attempt: made(keyed_rng(seed, attempt, _TASK), self._count),
                lambda each: each.question,
                split=self.split,
            )
        else:
            rows = read_compared(self._files)[self.split]
            item = rows[int(keyed_rng(seed, 0, _TASK).integers(len(rows)))]
        order = keyed_rng(seed, 0, _ORDER).permutation(len(item.answers))
        self._item = Compared(
            item.asked, [item.answers[k] for k in order], [item.worth[k] for k in order], item.place
        )
        self._shares = []
        return f"{item.question}\n{item.answers}"

    def _observe(self) -> str:
        shown = [
            Episode(0, 0, 0, 0, "judging", 0, opening=[*self._item.asked, *answer], end=EndReason.TURN_LIMIT)
            for answer in self._item.answers
        ]
        if self._asks == "better":
            return self._criteria.ask_better(shown[0], shown[1])
        if self._asks == "score" or len(shown) == 1:
            return self._criteria.ask_score(shown[min(len(self._shares), len(shown) - 1)])
        return self._criteria.ask_scores(shown)

    def _play(self, action: str) -> Outcome:
        count = len(self._item.answers)
        try:
            self._shares = [*self._shares, *self._read(action)]
        except Unreadable:
            return Outcome({"unread": -1.0}, terminated=True)
        if len(self._shares) < count:
            return Outcome()
        is_right = ranks_rightly(self._shares, self._item.worth)
        return Outcome({"judged": 1.0 if is_right else -1.0}, terminated=True, success=is_right)

    def _get_state(self) -> dict[str, Any]:
        return {"item": asdict(self._item), "shares": self._shares}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._item, self._shares = Compared(**state["item"]), list(state["shares"])

    # ------------------------------------------------------------------ verdicts
    def _read(self, reply: str) -> Sequence[float]:
        count = len(self._item.answers)
        if self._asks == "better":
            return _SHARES[self._criteria.read_better(reply)]
        if self._asks == "score" or count == 1:
            return [self._criteria.read_score(reply)]
        return self._criteria.read_scores(reply, count)

    def _written(self, shares: Sequence[float]) -> str:
        """A reply that gives these shares of the way from the lowest score to the highest."""
        low, high = self._criteria.low, self._criteria.high
        numbers = [f"{low + share * (high - low):.9f}".rstrip("0").rstrip(".") for share in shares]
        return self._criteria.write("scores" if len(numbers) > 1 else "score", ", ".join(numbers))

    @property
    def _most_answers(self) -> int:
        if self._files is None:
            return self._count
        return max(len(row.answers) for row in read_compared(self._files)[self.split])

    def _require_fit(self, turns: int) -> None:
        """Every task can be asked about in this form."""
        require_whole("turns", turns, 1)
        if self._asks == "score" and self._most_answers > turns:
            raise ValueError(
                f"turns={turns} is less than the {self._most_answers} answers of a task, each of which asks=score "
                "shows in a turn of its own; raise env.max_turns"
            )
        if self._asks != "better":
            return
        if self._files is None and self._count != _MADE:
            raise ValueError(f"answers={self._count}: asks=better compares two; leave it out")
        rows = [] if self._files is None else read_compared(self._files)[self.split]
        if other := next((row for row in rows if len(row.answers) != 2), None):
            raise ValueError(
                f"path={other.place}: it has {len(other.answers)} answers, and asks=better compares two; set "
                "asks=scores"
            )


def ranks_rightly(shares: Sequence[float], worth: Sequence[float]) -> bool:
    """Whether every best answer, by its worth, has a higher score than every other one.

    Of a single answer: whether its score, as a share of the way from the lowest to the highest, is its worth.

    Args:
        shares: the scores.
        worth: as many; of several not all equal.
    """
    if len(worth) == 1:
        return isclose(shares[0], worth[0], abs_tol=1e-6)
    best = max(worth)
    pairs = list(zip(shares, worth, strict=True))
    return min(s for s, w in pairs if w == best) > max(s for s, w in pairs if w < best)
