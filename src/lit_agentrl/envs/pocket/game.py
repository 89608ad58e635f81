"""PocketWorld: do what the user asks with the apps of a phone, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lit_agentrl.actions import ToolCall, ToolSpec
from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.pocket.phone import Phone, count_changes
from lit_agentrl.envs.pocket.plan import APIS, FINISH, call, is_refusal, judge, list_actions
from lit_agentrl.envs.pocket.scenarios import TASKS, Address, begin, list_addresses

LEVELS = (0, 1, 2, 3)
_FINISH = ToolSpec(
    FINISH,
    "Ends the task when all is done, with an answer where the task asks for one.",
    {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False},
)
_TOOLS = (*(each.spec for each in APIS.values()), _FINISH)


class PocketWorld(TextEnv):
    """One task per episode: calls of the apps, then ``finish``, which is judged.

    A task is solved, with reward 1, if all required changes were made on the phone, nothing else has changed, and the
    answer is right where one was asked for.  Best play knows the calls that solve it.

    Args:
        levels: levels of difficulty; 0: four templates with held-out scenarios, 1: one app, 2: two apps,
            3: three apps or many calls.
        partial: True: the reward is the share of the required changes that were made, but 0 once anything else has
            changed; False: only 1 for a solved task.
        split: ``train``, ``val`` or ``test``, decided by the template above level 0; only ``test`` needs music and
            files.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self, *, levels: Sequence[int] = LEVELS[1:], partial: bool = False, split: str = "train"
    ) -> None:
        super().__init__(split=split)
        is_known = not isinstance(levels, str) and bool(levels) and {*levels} <= {*LEVELS}
        require(is_known, "levels", levels, "a list of some of 0, 1, 2, 3")
        require(isinstance(partial, bool), "partial", partial, "true or false")
        self._partial = partial
        self._tasks = list_addresses(split, tuple(sorted({*levels})))
        self.instances = len(self._tasks)
        self.max_solution = 5 if {*levels} == {0} else 16  # a test checks the plans against it
        self._start_task(self._tasks[0])

    @property
    def rules(self) -> str:
        return (
            "Do what the user asks with the apps of this phone, and change nothing else. Call one tool at a time and "
            "read its answer. Texts and titles are used exactly as the user writes them between ' and '. Lists come in "
            "pages of 5.\nRewards: 1 at the end if all is done."
        )

    @property
    def system_text(self) -> str:
        return f"You help a user with a phone.\n{self.rules}"

    def tools(self) -> Sequence[ToolSpec]:
        return _TOOLS

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the task that a seed addresses.

        Consecutive seeds play each task of the split once.

        ``info`` has the scenario and its number of tasks, from which an evaluation computes the scenario goal
        completion.
        """
        observation, info = super().reset(seed=seed, options=options)
        scenario = f"{self._address.kind}/{self._address.scenario}"
        return observation, {
            **info, "instance_id": f"pocket/{self._address.name}", "scenario": scenario, "scenario_tasks": TASKS,
        }  # fmt: skip

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random call with words of the task, or of the last answer."""
        tool = _TOOLS[int(rng.integers(len(_TOOLS)))]
        texts = f"{self._plan.asks} {self._observation}".split()
        words = [*(text.strip(".,'\"?!{}[]:") for text in texts), "1"]
        return str(
            ToolCall(
                tool.name, {name: _draw_argument(tool, name, words, rng) for name in _list_required(tool)}
            )
        )

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the rest of the plan; None after a call that is not in it."""
        require_whole("horizon", horizon, 1)
        plan = list_actions(self._plan)
        if not self._is_running or self._done is None:
            return None
        return plan[self._done :][:horizon]

    def _start_task(self, address: Address) -> None:
        self._address = address
        self._initial_phone, self._plan = begin(address)
        self._phone = self._initial_phone.copy()
        self._observation = f"The user asks: {self._plan.asks}"
        self._done: int | None = 0  # calls of the plan that were made; None: another call was made

    def locate(self, seed: int) -> int:
        return seed % len(self._tasks)

    def _draw_instance(self, seed: int) -> str:
        self._start_task(self._tasks[self.locate(seed)])
        return self._address.name

    def _observe(self) -> str:
        return self._observation

    def _play(self, action: str) -> Outcome:
        parsed = json.loads(action)
        plan = list_actions(self._plan)
        is_planned = self._done is not None and json.loads(plan[self._done]) == parsed
        self._done = self._done + 1 if is_planned and self._done is not None else None
        if parsed["name"] != FINISH:
            self._observation = call(self._phone, parsed["name"], parsed["arguments"])
            return Outcome(counts={"failed_calls": float(is_refusal(self._observation)), "give_ups": 0.0})
        answer = parsed["arguments"].get("answer", "")
        verdict = judge(self._initial_phone, self._phone, self._plan, answer)
        has_given_up = not answer and not count_changes(self._initial_phone, self._phone)
        self._observation = "The task is solved." if verdict.success else "The task is not solved."
        reward = verdict.share if self._partial else float(verdict.success)
        counts = {"failed_calls": 0.0, "give_ups": float(has_given_up)}
        return Outcome({"task": reward}, terminated=True, success=verdict.success, counts=counts)

    def _get_state(self) -> dict[str, Any]:
        at = [self._address.kind, self._address.scenario, self._address.task]
        phone = self._phone.copy()
        return {
            "at": at,
            "tables": phone.tables,
            "added": phone.added,
            "told": self._observation,
            "done": self._done,
        }

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._start_task(Address(*state["at"]))
        self._phone = Phone(dict(state["tables"]), dict(state["added"])).copy()
        self._observation, self._done = state["told"], state["done"]


def _list_required(tool: ToolSpec) -> list[str]:
    return list(tool.schema.get("required", ()))


def _draw_argument(tool: ToolSpec, name: str, words: Sequence[str], rng: np.random.Generator) -> Any:
    schema = tool.schema["properties"][name]
    word = words[int(rng.integers(len(words)))] or "?"
    if "enum" in schema:
        return schema["enum"][int(rng.integers(len(schema["enum"])))]
    if schema["type"] == "integer":
        return int(rng.integers(1, 100))
    if "YYYY" in schema.get("description", ""):
        return f"2026-{int(rng.integers(3, 6)):02d}-{int(rng.integers(1, 29)):02d}"
    return f"{int(rng.integers(8, 20)):02d}:00" if "HH" in schema.get("description", "") else word
