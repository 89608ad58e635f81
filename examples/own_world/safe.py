"""Open the safe: a whole game of two tools in 40 lines, played with ``env=safe dialect=tool_call``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lit_agentrl.actions import ToolSpec
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

NOTES = ["red", "green", "blue"]
NOTE = {"type": "object", "properties": {"note": {"enum": NOTES}}, "required": ["note"]}
CODE = {"type": "object", "properties": {"code": {"type": "integer"}}, "required": ["code"]}


class Safe(TextEnv):
    """Each note holds a number; the safe opens with that of the note that is named."""

    rules = "Open the safe with the number on the note that you are told.\nRewards: 1 for the safe."
    max_solution = 2

    def tools(self) -> Sequence[ToolSpec]:
        return ToolSpec("read", "Shows a number.", NOTE), ToolSpec("unlock", "Tries a number.", CODE)

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[list[int]]:
            yield keyed_rng(seed, attempt, 1).integers(1000, size=4).tolist()

        *self.codes, number = draw_for_split(propose, str, split=self.split)
        self.goal, self.shown = number % 3, f"The safe wants the {NOTES[number % 3]} note."
        return str([*self.codes, number])

    def _observe(self) -> str:
        return self.shown

    def _play(self, action: str) -> Outcome:
        name, arguments = json.loads(action).values()  # they follow the schema
        is_open = name == "unlock" and arguments["code"] == self.codes[self.goal]
        self.shown = (
            f"It says {self.codes[NOTES.index(arguments['note'])]}." if name == "read" else f"Open: {is_open}"
        )
        return Outcome({"safe": float(is_open)}, terminated=is_open, success=is_open)

    def _get_state(self) -> dict[str, Any]:
        return {"codes": self.codes, "goal": self.goal, "shown": self.shown}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.codes, self.goal, self.shown = list(state["codes"]), state["goal"], state["shown"]
