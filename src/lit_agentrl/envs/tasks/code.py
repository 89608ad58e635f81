"""Write a function that passes hidden tests: a program a turn, run in a sandbox, with what it gave told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng, stable_hash
from lit_agentrl.envs.tasks.code_tasks import CodeTask, draw_inputs, draw_task
from lit_agentrl.envs.tasks.sandbox import Limits, Ran, run

_TASK, _INPUTS, _OTHER = 81, 82, 83  # purpose keys
_EXAMPLES = 3
_FENCE = "```"


class Code(TextEnv):
    """One function an episode; an action is a whole program, in a fence of ``` or without.

    The program is run with the examples, and what it printed, raised and gave is told.  It is then run anew with hidden
    tests, whose values it is given one by one and whose right answers it never holds; nothing of that run is told but
    whether all were right.  If so, the episode ends with 1 point.

    Chance writes the solution of another task, the oracle that of the task.

    Args:
        steps: steps of the function before its last one.
        tests: hidden calls.
        tries: programs that an episode may hold.
        seconds, max_memory_mb: of one call of a program.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: an option out of range, or the library is missing.
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
        self._steps, self._tests, self._tries = steps, tests, tries
        self._limits = Limits(seconds, max_memory_mb)
        self._turn, self._told = 0, ""
        self._take_up(draw_task(keyed_rng(0, 0, _TASK), steps))
        run("", [], self._limits)  # tells that the library is missing

    @property
    def system_text(self) -> str:
        return (
            "Write a function in Python. Each reply is a whole program that defines it.\n"
            "It is run: you read what it prints, and what it gives for the examples. You may repair it.\n"
            "There are no files, no network, no yield and few modules.\n"
            "Rewards: 1 when it passes all tests, also those that you do not see."
        )

    def random_action(self, rng: np.random.Generator) -> str:
        return draw_task(keyed_rng(int(rng.integers(2**31)), 0, _OTHER), self._steps).solution

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """The solution; None once the episode is over."""
        require_whole("horizon", horizon, 1)
        return [self._task.solution] if self._is_running else None

    def _take_up(self, task: CodeTask) -> None:
        rng = keyed_rng(_address(task), 0, _INPUTS)
        self._task, drawn = task, draw_inputs(rng, _EXAMPLES + self._tests)
        self._seen, self._hidden = drawn[1 : _EXAMPLES + 1], [drawn[0], *drawn[_EXAMPLES + 1 :]]

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[CodeTask]:
            yield draw_task(keyed_rng(seed, attempt, _TASK), self._steps)

        self._take_up(draw_for_split(propose, lambda task: task.question, split=self.split))
        self._turn, self._told = 0, ""
        return self._task.question

    def _observe(self) -> str:
        examples = [f"f({xs}) == {self._task.right(xs)!r}" for xs in self._seen]
        return "\n".join(
            [*([self._told] if self._told else []), self._task.question, "For example:", *examples]
        )

    def _play(self, action: str) -> Outcome:
        program, self._turn = unfenced(action), self._turn + 1
        tried = run(program, [("f", (xs,)) for xs in self._seen], self._limits)
        wrong = self._first_wrong(tried, self._seen)
        is_solved = False
        if wrong:
            self._told = f"{_printed(tried)}{wrong}"
        else:
            hidden = run(program, [("f", (xs,)) for xs in self._hidden], self._limits)
            is_solved = not self._first_wrong(hidden, self._hidden)
            said = (
                "All tests are passed." if is_solved else "The examples are right, and other tests are not."
            )
            self._told = f"{_printed(tried)}{said}"
        is_over = is_solved or self._turn == self._tries
        return Outcome({"tests": float(is_solved)}, terminated=is_over, success=is_solved)

    def _first_wrong(self, ran: Ran, inputs: list[list[int]]) -> str:
        """What is said of the first call that went wrong; empty: none did."""
        for xs, found in zip(inputs, ran.results, strict=False):
            if found != repr(self._task.right(xs)):
                return f"f({xs}) gave {found}"
        if len(ran.results) == len(inputs):
            return ""
        where = f"f({inputs[len(ran.results)]})" if ran.is_loaded else "The program"
        return f"{where} failed: {ran.error}"

    def _get_state(self) -> dict[str, Any]:
        steps = [[place, list(own)] for place, own in self._task.steps]
        return {"steps": steps, "turn": self._turn, "told": self._told}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._take_up(CodeTask(tuple((place, tuple(own)) for place, own in state["steps"])))
        self._turn, self._told = state["turn"], state["told"]


def unfenced(text: str) -> str:
    """A program without the fence around it; one that has text before or after its fence is left as it is."""
    lines = text.strip().split("\n")
    is_fenced = len(lines) > 1 and lines[0].startswith(_FENCE) and lines[-1].strip() == _FENCE
    return "\n".join(lines[1:-1]) if is_fenced else text


def _printed(ran: Ran) -> str:
    return f"It printed:\n{ran.printed.rstrip()}\n" if ran.printed.strip() else ""


def _address(task: CodeTask) -> int:
    """Of the inputs of a task: they belong to it, not to the seed that drew it."""
    return stable_hash(json.dumps(task.steps), purpose="inputs")
