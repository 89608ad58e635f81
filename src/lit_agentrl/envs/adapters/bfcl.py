"""Multi-turn tasks of the Berkeley Function Calling Leaderboard, with eight stateful APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lit_agentrl.actions import ToolCall, ToolSpec
from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.adapters.base import PrivateGenerators, Replayed
from lit_agentrl.envs.adapters.bfcl_data import (
    check_calls,
    create_apis,
    describe_object,
    execute_call,
    list_tools,
    read_tasks,
)
from lit_agentrl.envs.base import Outcome
from lit_agentrl.envs.splits import draw_for_split, keyed_rng, stable_hash

TASKS = ("base", "miss_func", "miss_param", "long_context")
FINISH = "finish_turn"
_DRAW = 67  # purpose key
_FINISH_TOOL = ToolSpec(
    FINISH,
    "Tells the user that you are done with the last message, or that it cannot be done with these tools or without "
    "knowing more. The user then says what is next.",
    {"type": "object", "properties": {"message": {"type": "string"}}},
)


class BFCL(Replayed):
    """One task per episode: the user makes several requests, one after another, answered by calls.

    At `finish_turn` the checks of the leaderboard compare the changes and the answers of the calls with those of the
    correct calls.  The first request that was not fulfilled ends the episode; a complete task has reward 1.

    Args:
        tasks: some of `TASKS`.  ``miss_func``: a tool comes later; ``miss_param``: a message lacks something;
            ``long_context``: answers are long.
        split: ``train``, ``val`` or ``test``, decided by the number of the task, which its variants share.

    Raises:
        ValueError: bfcl-eval is not installed, or an option is out of range.
    """

    foreign = ("_apis", "_correct_apis")

    def __init__(self, *, tasks: Sequence[str] = TASKS[:3], split: str = "train") -> None:
        super().__init__(split=split)
        is_known = not isinstance(tasks, str) and bool(tasks) and {*tasks} <= {*TASKS}
        require(is_known, "tasks", tasks, f"a list of some of {', '.join(TASKS)}")
        self._tasks = tuple(task for name in dict.fromkeys(tasks) for task in read_tasks(name))
        self._index = 0
        self._apis: Any  # state of the player's calls
        self._correct_apis: Any  # state of the correct calls
        self._open()
        self.max_solution = max(sum(len(turn) + 1 for turn in task["gold"]) for task in self._tasks)

    @property
    def rules(self) -> str:
        return (
            "Do what the user asks, with the tools. Call one tool at a time and read its answer. Call "
            f"{FINISH} when the last message is done, or when it cannot be done.\n"
            "Rewards: 1 at the end if all was done and nothing else."
        )

    @property
    def system_text(self) -> str:
        return self.rules

    def tools(self) -> Sequence[ToolSpec]:
        return (*list_tools(self._task["id"], min(self._turn, len(self._task["gold"]) - 1)), _FINISH_TOOL)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random tool call, with arguments made from words of the task."""
        tool = self.tools()[int(rng.integers(len(self.tools())))]
        words = " ".join(self._task["messages"]).split()
        properties = tool.schema["properties"]
        needed = {name: properties[name] for name in tool.schema.get("required", ())}
        return str(
            ToolCall(tool.name, {name: _draw_value(kind, words, rng) for name, kind in needed.items()})
        )

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the remaining correct calls; None after another call, or at the end."""
        require_whole("horizon", horizon, 1)
        plan = [call for turn in self._task["gold"] for call in (*turn, str(ToolCall(FINISH, {})))]
        done = [json.loads(call) for call in self._done if isinstance(call, str)]
        remaining = plan[len(done) :]
        is_on_path = self._is_running and [json.loads(call) for call in plan[: len(done)]] == done
        return remaining[:horizon] if is_on_path and remaining else None

    @property
    def _task(self) -> Mapping[str, Any]:
        return self._tasks[self._index]

    def _open(self) -> None:
        self._apis, self._correct_apis, self._observation = {}, {}, ""
        self._turn, self._answers = 0, [list[str]()]  # answers to calls, by turn

    def _begin(self, number: int) -> None:
        self._index = number
        self._open()
        self._generators = PrivateGenerators(number)
        with self._generators.install():
            self._apis, self._correct_apis = (create_apis(self._task) for _ in range(2))
        self._observation = f"user: {self._task['messages'][0]}"

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[int]:
            yield int(keyed_rng(seed, attempt, _DRAW).integers(len(self._tasks)))

        def get_number(index: int) -> str:
            return str(self._tasks[index]["id"].rpartition("_")[2])

        self._begin(draw_for_split(propose, get_number, split=self.split))
        return str(self._task["id"])

    def _get_content(self) -> str:
        progress = [self._task["id"], self._turn, self._answers]
        return json.dumps(
            [progress, {name: describe_object(api, ()) for name, api in sorted(self._apis.items())}]
        )

    def state_key(self) -> int:
        return stable_hash(self._get_content())

    def _observe(self) -> str:
        return self._observation

    def _act(self, action: str) -> Outcome:
        call = json.loads(action)
        if call["name"] != FINISH:
            with self._generators.install():
                self._observation = execute_call(self._apis, call)
            self._answers[-1].append(self._observation)
            is_error = self._observation.startswith(('{"error"', "Error during"))
            return Outcome(counts={"failed_calls": float(is_error)})
        if not self._is_right():
            self._observation = "The user is not content."
            return Outcome({"task": 0.0}, terminated=True)
        self._turn += 1
        self._answers.append([])
        if self._turn == len(self._task["gold"]):
            self._observation = "The user thanks you."
            return Outcome({"task": 1.0}, terminated=True, success=True)
        self._observation = f"user: {self._task['messages'][self._turn]}"
        return Outcome()

    def _is_right(self) -> bool:
        """Return whether the leaderboard's own checks accept this turn."""
        calls = self._task["gold"][self._turn]
        with self._generators.install():
            expected = [execute_call(self._correct_apis, json.loads(call)) for call in calls]
        if not calls:
            return True
        answers = [answer for turn in self._answers for answer in turn]
        return bool(self._answers[-1]) and check_calls(self._apis, self._correct_apis, answers, expected)


def _draw_value(kind: Mapping[str, Any], words: Sequence[str], rng: np.random.Generator) -> Any:
    """Draw a value of a schema."""
    if "enum" in kind:
        return kind["enum"][int(rng.integers(len(kind["enum"])))]
    match kind.get("type"):
        case "integer" | "number":
            return int(rng.integers(100))
        case "boolean":
            return bool(rng.integers(2))
        case "array":
            return [_draw_value(kind.get("items", {}), words, rng)]
        case "object":
            properties = kind.get("properties", {})
            return {
                name: _draw_value(properties[name], words, rng)
                for name in kind.get("required", ())
                if name in properties
            }
    return words[int(rng.integers(len(words)))].strip(".,'\"?!") or "?"
