"""Questions that reasoning-gym generates, judged by its own scorers: those tasks of it that can be trusted to be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.adapters.base import missing
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng, stable_hash

_QUESTION = 62  # purpose key
_LONGEST = 10_000  # characters of an answer that a scorer reads

# Repeatable in every process, quick, and with a scorer that accepts its own answer, gives nothing for nonsense (that of
# complex_arithmetic takes nan), comes to an end (that of coin_flip computes 1e999999999) and does not evaluate the
# answer as Python (those of countdown, puzzle24, n_queens and others do).
TASKS = (
    *("ab", "aiw", "base_conversion", "basic_arithmetic", "binary_alternation", "bitwise_arithmetic"),
    *("caesar_cipher", "calendar_arithmetic", "chain_sum", "circuit_logic"),
    *("count_bits", "count_primes", "course_schedule", "cryptarithm", "dice", "family_relationships"),
    *("game_of_life", "gcd", "jugs", "kakurasu", "knights_knaves", "largest_island", "lcm", "leg_counting"),
    *("letter_counting", "letter_jumble", "manipulate_matrix", "maze", "mini_sudoku", "modulo_grid"),
    *("needle_haystack", "number_filtering", "number_format", "number_sequence", "number_sorting"),
    *(
        "palindrome_partitioning",
        "path_star",
        "products",
        "rotate_matrix",
        "rotten_oranges",
        "self_reference",
    ),
    *("shortest_path", "simple_equations", "simple_geometry", "string_manipulation", "string_splitting"),
    *("string_synthesis", "survo", "syllogism", "time_intervals", "word_sequence_reversal"),
    "word_sorting",
)


class ReasoningGym(TextEnv):
    """One question an episode; free text is the answer.

    Chance answers with the answer to another question of the same task, the oracle with the right one.

    Args:
        tasks: names of `TASKS`, equally often; None: all.
        settings: arguments of the tasks' generators by task, such as ``{chain_sum: {max_terms: 3}}``.
        tries: answers that an episode may hold; a right one ends it before.
        partial: pay the scorer's share for an answer that is partly right; False: only 1 for a right one.
        retry: what is shown after an answer that is not right.
        split: ``train``, ``val`` or ``test``, by the hash of the question.

    Raises:
        ValueError: the library is missing, a task that is not in `TASKS`, or settings that its generator refuses.
    """

    def __init__(
        self,
        *,
        tasks: Sequence[str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        tries: int = 1,
        partial: bool = False,
        retry: str = "That is not right. Try again.",
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        self._tasks = list(TASKS if tasks is None else tasks)
        self._settings = {name: dict(values) for name, values in (settings or {}).items()}
        require(bool(self._tasks), "tasks", "[]", "at least one task; null stands for all")
        for name in [*self._tasks, *self._settings]:
            require(name in TASKS, "tasks", name, "one of the tasks that docs/adapters.md lists")
        for name, values in self._settings.items():
            require(not {"seed", "size"} & set(values), f"settings.{name}", values, "free of seed and size")
        require_whole("tries", tries, 1)
        require(isinstance(partial, bool), "partial", partial, "true or false")
        require(bool(retry.strip()), "retry", repr(retry), "a text that is not blank")
        self._tries, self._partial, self._retry = tries, partial, retry
        self._task, self._number, self._turn, self._told = self._tasks[0], 0, 0, ""
        self._asked: tuple[Any, dict[str, Any]] = self._made(self._task, 0)
        for name in self._settings:
            self._made(name, 0)

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The names of the tasks, also where all are asked."""
        return {**options, "tasks": list(options["tasks"] or TASKS)}

    @property
    def system_text(self) -> str:
        return "Answer the question."

    def random_action(self, rng: np.random.Generator) -> str:
        """The answer to another question of this task."""
        _, entry = self._made(self._task, int(rng.integers(2**31)))
        return str(entry["answer"])

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """The answer; None once the episode is over."""
        require_whole("horizon", horizon, 1)
        return [str(self._asked[1]["answer"])] if self._is_running else None

    def state_key(self) -> int:
        return stable_hash(f"ReasoningGym {self._turn} {_get_content((self._task, self._asked[1]))}")

    def _made(self, task: str, number: int) -> tuple[Any, dict[str, Any]]:
        """What scores, and the question of a task that a number addresses."""
        try:
            import reasoning_gym
        except ImportError as error:
            raise missing("reasoning-gym", "reasoning", error) from error
        try:
            data = reasoning_gym.create_dataset(task, size=1, seed=number, **self._settings.get(task, {}))
        except (AssertionError, TypeError, ValueError) as error:
            what = " ".join(str(error).split())
            values = self._settings.get(task)
            raise ValueError(
                f"settings.{task}={values} is refused by its generator ({what}); change them"
            ) from error
        return data, data[0]

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[tuple[str, dict[str, Any]]]:
            rng = keyed_rng(seed, attempt, _QUESTION)
            self._task, self._number = (
                self._tasks[int(rng.integers(len(self._tasks)))],
                int(rng.integers(2**31)),
            )
            self._asked = self._made(self._task, self._number)
            yield self._task, self._asked[1]

        self._turn, self._told = 0, ""
        return _get_content(draw_for_split(propose, _get_content, split=self.split))

    def _observe(self) -> str:
        question = str(self._asked[1]["question"]).strip()
        return f"{self._told}\n{question}" if self._told else question

    def _play(self, action: str) -> Outcome:
        score = self._score(action)
        self._turn, self._told = self._turn + 1, self._retry
        is_right = score >= 1
        points = score if self._partial else float(is_right)
        return Outcome({"answer": points}, terminated=is_right or self._turn == self._tries, success=is_right)

    def _score(self, answer: str) -> float:
        """Between 0 and 1; what a scorer cannot read is wrong."""
        if len(answer) > _LONGEST:
            return 0.0
        data, entry = self._asked
        try:
            score = float(data.score_answer(answer.strip(), entry))
        except Exception:  # scorers are not made for what a policy may write
            return 0.0
        return min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0

    def _get_state(self) -> dict[str, Any]:
        return {"task": self._task, "number": self._number, "turn": self._turn, "told": self._told}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._task, self._number = str(state["task"]), int(state["number"])
        self._turn, self._told = state["turn"], state["told"]
        require(self._task in TASKS, "task", self._task, "one of the tasks that docs/adapters.md lists")
        self._asked = self._made(self._task, self._number)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_asked"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._asked = self._made(self._task, self._number)


def _get_content(asked: tuple[str, dict[str, Any]]) -> str:
    task, entry = asked
    return f"{task}\n{' '.join(str(entry['question']).split())}\n{entry['answer']}"
