"""Questions and scorers of reasoning-gym, limited to the tasks that are safe to use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.adapters.base import make_missing_error
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng, stable_hash

_QUESTION = 62  # purpose key
_LONGEST = 10_000  # characters of an answer; a longer one is wrong

# These tasks are repeatable in every process and quick.  Their scorers accept the right answer, give nothing for
# nonsense (that of complex_arithmetic accepts nan), terminate (that of coin_flip computes 1e999999999) and do not
# evaluate the answer as Python (those of countdown, puzzle24, n_queens and others do).
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


class _Question(NamedTuple):
    """A question of the library with its answer, and the scorer of other answers."""

    scorer: Any
    entry: dict[str, Any]


class ReasoningGym(TextEnv):
    """One question per episode, answered in free text.

    Random play answers with the answer to another question of the same task, best play with the right one.

    Args:
        tasks: names from `TASKS`, drawn equally often; None: all.
        settings: arguments of the tasks' generators by task, such as ``{chain_sum: {max_terms: 3}}``.
        tries: answers per episode; a right one ends it earlier.
        partial: whether a partly right answer earns the scorer's share; False: only 1 for a right one.
        retry: shown after a wrong answer.
        split: ``train``, ``val`` or ``test``, by the hash of the question.

    Raises:
        ValueError: the library is missing, a task is not in `TASKS`, or its generator refuses the settings.
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
        self._task, self._number, self._turn, self._feedback = self._tasks[0], 0, 0, ""
        self._question = self._make_question(self._task, 0)
        for name in self._settings:
            self._make_question(name, 0)

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options with the names of the tasks, also where all are used."""
        return {**options, "tasks": list(options["tasks"] or TASKS)}

    @property
    def system_text(self) -> str:
        return "Answer the question."

    def random_action(self, rng: np.random.Generator) -> str:
        """Return the answer to another question of this task."""
        question = self._make_question(self._task, int(rng.integers(2**31)))
        return str(question.entry["answer"])

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the answer; None after the end of the episode."""
        require_whole("horizon", horizon, 1)
        return [str(self._question.entry["answer"])] if self._is_running else None

    def state_key(self) -> int:
        return stable_hash(f"ReasoningGym {self._turn} {_get_content((self._task, self._question.entry))}")

    def _make_question(self, task: str, number: int) -> _Question:
        """Create the question of a task that a number addresses."""
        try:
            import reasoning_gym
        except ImportError as error:
            raise make_missing_error("reasoning-gym", "reasoning", error) from error
        try:
            data = reasoning_gym.create_dataset(task, size=1, seed=number, **self._settings.get(task, {}))
        except (AssertionError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            values = self._settings.get(task)
            raise ValueError(
                f"settings.{task}={values} is refused by its generator ({reason}); change them"
            ) from error
        return _Question(data, data[0])

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[tuple[str, dict[str, Any]]]:
            rng = keyed_rng(seed, attempt, _QUESTION)
            self._task = self._tasks[int(rng.integers(len(self._tasks)))]
            self._number = int(rng.integers(2**31))
            self._question = self._make_question(self._task, self._number)
            yield self._task, self._question.entry

        self._turn, self._feedback = 0, ""
        return _get_content(draw_for_split(propose, _get_content, split=self.split))

    def _observe(self) -> str:
        question = str(self._question.entry["question"]).strip()
        return f"{self._feedback}\n{question}" if self._feedback else question

    def _play(self, action: str) -> Outcome:
        score = self._score(action)
        self._turn, self._feedback = self._turn + 1, self._retry
        is_right = score >= 1
        reward = score if self._partial else float(is_right)
        return Outcome({"answer": reward}, terminated=is_right or self._turn == self._tries, success=is_right)

    def _score(self, answer: str) -> float:
        """Score an answer between 0 and 1; an unreadable answer is wrong."""
        if len(answer) > _LONGEST:
            return 0.0
        scorer, entry = self._question
        try:
            score = float(scorer.score_answer(answer.strip(), entry))
        except Exception:  # scorers do not expect arbitrary text of a policy
            return 0.0
        return min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0

    def _get_state(self) -> dict[str, Any]:
        return {"task": self._task, "number": self._number, "turn": self._turn, "told": self._feedback}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._task, self._number = str(state["task"]), int(state["number"])
        self._turn, self._feedback = state["turn"], state["told"]
        require(self._task in TASKS, "task", self._task, "one of the tasks that docs/adapters.md lists")
        self._question = self._make_question(self._task, self._number)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_question"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._question = self._make_question(self._task, self._number)


def _get_content(task_and_entry: tuple[str, dict[str, Any]]) -> str:
    task, entry = task_and_entry
    return f"{task}\n{' '.join(str(entry['question']).split())}\n{entry['answer']}"
