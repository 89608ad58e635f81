"""Prompts with reference answers from your files, scored by your Python function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import keyed_rng
from lit_agentrl.envs.tasks.functions import get_function_name, list_arguments
from lit_agentrl.envs.tasks.rows import Row, Source, find_files, hash_contents, resolve_files

_ROW = 51  # purpose key
_TRIED_ROWS = 8  # rows on which the reward function is tried before a run
# what a reward function may ask for besides the columns of the data
GIVEN = ("question", "reference", "answer", "turn")


@dataclass(frozen=True)
class Verdict:
    """A detailed result of a reward function.

    Attributes:
        points: reward of the answer.
        success: whether it solves the question, which ends the episode.
        feedback: what the policy reads before its next try; empty: the option ``retry``.
    """

    points: float
    success: bool
    feedback: str = ""


Reward = Callable[..., float | Verdict]


def exact(*, answer: str, reference: str) -> bool:
    """Return whether the answer equals the reference, apart from white space and case."""
    return answer.casefold().split() == reference.casefold().split()


class Dataset(TextEnv):
    """One row per episode: it shows the question, and a function scores the free-text answer.

    The reward function is called by name with those of its arguments that are ``question``, ``reference``, ``answer``,
    ``turn`` (number of earlier answers) or a column of the data; constants are set next to its ``_target_``.  It
    returns a reward (1 or more, or True, counts as solved), or a `Verdict`.

    Random play answers with the reference of a random row, best play with that of the row itself; without references
    neither is known.

    Args:
        path: a JSONL, JSON, CSV or Parquet file, or one for each of ``train``, ``val`` and ``test``.  A split without
            its own file takes its share of the rows of ``train``: 10 % by the hash of the question.
        question: column of the question: a text, or a list of a user message, which a system message may precede.
        reference: column of the answer; dots in its name lead to nested fields.  None: there is none.
        reward: see above.
        instruction: beginning of the system message, where there is one (``prompt=full``).
        tries: answers per episode; a success ends it earlier.
        retry: shown after an answer that does not solve the question.
        repeat_question: whether the question follows ``retry``; a context that drops earlier turns needs it.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: a file or row cannot be used; the message names file, line, column and remedy.  Or the reward
            function asks for a column that no row has, raises an error, or does not count a reference as solved.
    """

    def __init__(
        self,
        *,
        path: str | Mapping[str, str],
        question: str = "question",
        reference: str | None = "answer",
        reward: Reward = exact,
        instruction: str = "Answer the question.",
        tries: int = 1,
        retry: str = "That is not right. Try again.",
        repeat_question: bool = True,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_whole("tries", tries, 1)
        require(callable(reward), "reward", reward, "a function: a _target_ with _partial_: true")
        require(bool(retry.strip()), "retry", repr(retry), "a text that is not blank")
        source = Source(find_files(path), question, reference)
        self._reward, self._names = reward, list_arguments(reward, "reward")
        needed = [name for name, is_needed in self._names.items() if is_needed and name not in GIVEN]
        if reference is None and self._names.get("reference"):
            raise ValueError(
                f"reward={get_function_name(reward)} asks for reference, and reference=null; name its column"
            )
        self._source = replace(source, needed=tuple(needed))
        self.instances = len(self._rows)
        self._instruction, self._retry = instruction, retry
        self._tries, self._repeats = tries, repeat_question
        self._index, self._turn, self._feedback = 0, 0, ""
        self._try_out()

    @classmethod
    def home(cls, options: Mapping[str, Any]) -> Path:
        return resolve_files(options["path"])["train"]

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with the hash of the files' content in place of their names."""
        reward = options["reward"]
        constants = reward.keywords if isinstance(reward, partial) else {}
        return {
            **options,
            "path": hash_contents(options["path"]),
            "reward": [get_function_name(reward), dict(constants)],
        }

    @property
    def system_text(self) -> str:
        return self._instruction

    def random_action(self, rng: Any) -> str | None:
        """Return the reference of a random row."""
        return self._rows[int(rng.integers(len(self._rows)))].reference

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the reference; None where there is none, or after the end of the episode."""
        require_whole("horizon", horizon, 1)
        reference = self._rows[self._index].reference
        return None if reference is None or self._turn == self._tries else [reference]

    @property
    def _rows(self) -> tuple[Row, ...]:
        return self._source.read()[self.split]

    def locate(self, seed: int) -> int:
        """Return the row of a seed, counted from 0 in the file's order."""
        return int(keyed_rng(seed, 0, _ROW).integers(len(self._rows)))

    def _draw_instance(self, seed: int) -> str:
        self._index = self.locate(seed)
        self._turn, self._feedback = 0, ""
        row = self._rows[self._index]
        return f"{row.question}\n{row.reference}"

    def _observe(self) -> str:
        question = self._rows[self._index].question
        if not self._feedback:
            return question
        return f"{self._feedback}\n{question}" if self._repeats else self._feedback

    def _play(self, action: str) -> Outcome:
        verdict = self._judge(self._rows[self._index], action, self._turn)
        self._turn, self._feedback = self._turn + 1, verdict.feedback or self._retry
        is_over = verdict.success or self._turn == self._tries
        return Outcome({"answer": verdict.points}, terminated=is_over, success=verdict.success)

    def _get_state(self) -> dict[str, Any]:
        question = self._rows[self._index].question
        return {"question": question, "row": self._index, "turn": self._turn, "told": self._feedback}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._index, self._turn, self._feedback = state["row"], state["turn"], state["told"]

    def _judge(self, row: Row, answer: str, turn: int) -> Verdict:
        given = {"question": row.question, "reference": row.reference, "answer": answer, "turn": turn}
        available = {**row.columns, **given}
        arguments = {name: available[name] for name in self._names if name in available}
        try:
            result = self._reward(**arguments)
            verdict = result if isinstance(result, Verdict) else _convert_score(result)
            points = float(verdict.points)
            if not math.isfinite(points):
                raise ValueError(f"{points} points are not finite")
        except (Exception, SystemExit) as error:  # anything can fail in a user's function
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(
                f"reward={get_function_name(self._reward)} fails on {row.location} ({message}); fix the function"
            ) from error
        return Verdict(points, bool(verdict.success), str(verdict.feedback))

    def _try_out(self) -> None:
        """Try the reward function once per process and game.

        An environment that is made later in the run must find the same files.
        """
        earlier = next((source for reward, source in reversed(_tried) if reward is self._reward), None)
        if earlier == self._source:
            return
        # Only a partial surely belongs to this run's config: a bare function may serve several data sets.
        if earlier is not None and isinstance(self._reward, partial) and earlier.paths == self._source.paths:
            raise ValueError(
                f"path={self._source.paths[0]} has changed since the run began; start a new run for it"
            )
        for row in self._source.read()["train"][:_TRIED_ROWS]:
            self._judge(row, "?", 0)
            if row.reference is not None and not self._judge(row, row.reference, 0).success:
                raise ValueError(
                    f"reward={get_function_name(self._reward)} does not count the reference of {row.location} itself "
                    "as solved; fix the function (1 or more is solved, or a Verdict with success=True), or set "
                    "reference=null and let it take the column by its name"
                )
        _tried.append((self._reward, self._source))
        del _tried[:-16]


_tried: list[tuple[Reward, Source]] = []  # the most recent, by identity: a function need not be hashable


def _convert_score(result: object) -> Verdict:
    if result is None or isinstance(result, str):
        raise ValueError(f"it must return a number, True, False or a Verdict, not {result!r}")
    points = float(result)  # type: ignore[arg-type]
    return Verdict(points, points >= 1)
