"""Write a function that passes hidden tests: one sandboxed program per turn, with feedback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng, stable_hash
from lit_agentrl.envs.tasks.code_tasks import CodeTask, draw_inputs, draw_task
from lit_agentrl.envs.tasks.sandbox import Limits, RunResult, run

_TASK, _INPUTS, _OTHER = 81, 82, 83  # purpose keys
_EXAMPLES = 3
_FENCE = "```"


class Code(TextEnv):
    """One function per episode; an action is a whole program, fenced by ``` or not.

    The program runs on the examples, and the feedback has what it printed, raised and returned.  It then runs again on
    hidden tests: it receives their inputs one by one and never their right answers, and the feedback of that run is
    only whether all were right.  If so, the episode ends with reward 1.

    Random play writes the solution of another task, best play the solution of this one.

    Args:
        steps: steps of the function before its last one.
        tests: number of hidden calls.
        tries: programs per episode.
        seconds, max_memory_mb: limits of one call of a program.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: an option is out of range, or the library is missing.
    """

    def __init__(
        self,
        *,
        steps: int = 2,
        tests: int = 8,
        tries: int = 4,
        seconds: float = 2.0,
        max_memory_mb: int = 64,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_whole("steps", steps, 1, 8)
        require_whole("tests", tests, 1, 100)
        require_whole("tries", tries, 1)
        require_number("seconds", seconds, "a number > 0", lambda value: value > 0)
        require_whole("max_memory_mb", max_memory_mb, 8)
        self._num_steps, self._num_tests, self._tries = steps, tests, tries
        self._limits = Limits(seconds, max_memory_mb)
        self._turn, self._feedback = 0, ""
        self._load_task(draw_task(keyed_rng(0, 0, _TASK), steps))
        run("", [], self._limits)  # raises if the library is missing

    @property
    def system_text(self) -> str:
        return (
            "Write a function in Python. Each reply is a whole program that defines it.\n"
            "It is run: you read what it prints, and what it gives for the examples. You may repair it.\n"
            "There are no files, no network, no yield and few modules.\n"
            "Rewards: 1 when it passes all tests, also those that you do not see."
        )

    def random_action(self, rng: np.random.Generator) -> str:
        return draw_task(keyed_rng(int(rng.integers(2**31)), 0, _OTHER), self._num_steps).solution

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the solution; None after the end of the episode."""
        require_whole("horizon", horizon, 1)
        return [self._task.solution] if self._is_running else None

    def _load_task(self, task: CodeTask) -> None:
        rng = keyed_rng(_hash_inputs_seed(task), 0, _INPUTS)
        self._task, inputs = task, draw_inputs(rng, _EXAMPLES + self._num_tests)
        self._example_inputs = inputs[1 : _EXAMPLES + 1]
        self._hidden_inputs = [inputs[0], *inputs[_EXAMPLES + 1 :]]

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[CodeTask]:
            yield draw_task(keyed_rng(seed, attempt, _TASK), self._num_steps)

        self._load_task(draw_for_split(propose, lambda task: task.question, split=self.split))
        self._turn, self._feedback = 0, ""
        return self._task.question

    def _observe(self) -> str:
        examples = [f"f({xs}) == {self._task.compute(xs)!r}" for xs in self._example_inputs]
        return "\n".join(
            [*([self._feedback] if self._feedback else []), self._task.question, "For example:", *examples]
        )

    def _play(self, action: str) -> Outcome:
        program, self._turn = strip_fence(action), self._turn + 1
        example_run = run(program, [("f", (xs,)) for xs in self._example_inputs], self._limits)
        feedback = self._find_first_wrong(example_run, self._example_inputs)
        is_solved = False
        if feedback:
            self._feedback = f"{_format_output(example_run)}{feedback}"
        else:
            hidden = run(program, [("f", (xs,)) for xs in self._hidden_inputs], self._limits)
            is_solved = not self._find_first_wrong(hidden, self._hidden_inputs)
            verdict = (
                "All tests are passed." if is_solved else "The examples are right, and other tests are not."
            )
            self._feedback = f"{_format_output(example_run)}{verdict}"
        is_over = is_solved or self._turn == self._tries
        return Outcome({"tests": float(is_solved)}, terminated=is_over, success=is_solved)

    def _find_first_wrong(self, result: RunResult, inputs: list[list[int]]) -> str:
        """Return the feedback about the first wrong call; empty if all are right."""
        for xs, value in zip(inputs, result.results, strict=False):
            if value != repr(self._task.compute(xs)):
                return f"f({xs}) gave {value}"
        if len(result.results) == len(inputs):
            return ""
        where = f"f({inputs[len(result.results)]})" if result.is_loaded else "The program"
        return f"{where} failed: {result.error}"

    def _get_state(self) -> dict[str, Any]:
        steps = [[index, list(numbers)] for index, numbers in self._task.steps]
        return {"steps": steps, "turn": self._turn, "told": self._feedback}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._load_task(CodeTask(tuple((index, tuple(numbers)) for index, numbers in state["steps"])))
        self._turn, self._feedback = state["turn"], state["told"]


def strip_fence(text: str) -> str:
    """Return a program without the fence around it; text outside the fence leaves it unchanged."""
    lines = text.strip().split("\n")
    is_fenced = len(lines) > 1 and lines[0].startswith(_FENCE) and lines[-1].strip() == _FENCE
    return "\n".join(lines[1:-1]) if is_fenced else text


def _format_output(result: RunResult) -> str:
    return f"It printed:\n{result.printed.rstrip()}\n" if result.printed.strip() else ""


def _hash_inputs_seed(task: CodeTask) -> int:
    """Return the seed of a task's inputs, which depend on the task alone."""
    return stable_hash(json.dumps(task.steps), purpose="inputs")
