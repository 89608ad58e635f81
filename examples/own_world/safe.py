"""Open the safe: a whole game of two tools in 40 lines, played with ``env=safe dialect=tool_call``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from lit_agentrl.actions import BadCall, ToolSpec
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng
from lit_agentrl.envs.tools import call_tool, describe_tool

NOTES = ["red", "green", "blue"]


class Safe(TextEnv):
    """Each note holds a number; the safe opens with that of the note that is named."""

    rules = "Open the safe with the number on the note that you are told.\nRewards: 1 for the safe."
    max_solution = 2

    def tools(self) -> Sequence[ToolSpec]:
        return describe_tool(self.read), describe_tool(self.unlock)

    def read(self, note: Literal["red", "green", "blue"]) -> Outcome:
        """Shows a number."""
        self.shown = f"It says {self.codes[NOTES.index(note)]}."
        return Outcome({"safe": 0.0})

    def unlock(self, code: int) -> Outcome:
        """Tries a number."""
        is_open = code == self.codes[self.goal]
        self.shown = f"Open: {is_open}"
        return Outcome({"safe": float(is_open)}, terminated=is_open, success=is_open)

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[list[int]]:
            yield keyed_rng(seed, attempt, 1).integers(1000, size=4).tolist()

        *self.codes, number = draw_for_split(propose, str, split=self.split)
        self.goal, self.shown = number % 3, f"The safe wants the {NOTES[number % 3]} note."
        return str([*self.codes, number])

    def _observe(self) -> str:
        return self.shown

    def _play(self, action: str) -> Outcome | BadCall:
        outcome: Outcome | BadCall = call_tool((self.read, self.unlock), action)  # it follows the schema
        return outcome

    def _get_state(self) -> dict[str, Any]:
        return {"codes": self.codes, "goal": self.goal, "shown": self.shown}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.codes, self.goal, self.shown = list(state["codes"]), state["goal"], state["shown"]
