"""Open the vault: a game of one's own whose actions are calls of two tools, played with ``env=vault``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lit_agentrl.actions import ToolCall, ToolSpec
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

COLOURS = ("red", "green", "blue")


def _tool(name: str, does: str, **properties: Mapping[str, Any]) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name, does, schema)


class Vault(TextEnv):
    """Three notes each hold a number; the vault opens with that of the note whose colour is named."""

    rules = "Open the vault with the number on the note that you are told.\nRewards: -0.1 for a call, 1 for the vault."
    max_solution = 2

    def tools(self) -> Sequence[ToolSpec]:
        return (
            _tool("read", "Shows the number on a note.", note={"type": "string", "enum": list(COLOURS)}),
            _tool(
                "unlock",
                "Tries a number on the vault.",
                code={"type": "integer", "minimum": 0, "maximum": 999},
            ),
        )

    def random_action(self, rng: np.random.Generator) -> str:
        if rng.random() < 0.5:
            return str(ToolCall("read", {"note": COLOURS[rng.integers(3)]}))
        return str(ToolCall("unlock", {"code": int(rng.integers(1000))}))

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        return [str(ToolCall("unlock", {"code": self.codes[self.goal]}))]

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[tuple[list[int], str]]:
            rng = keyed_rng(seed, attempt, 1)
            yield rng.integers(1000, size=3).tolist(), COLOURS[rng.integers(3)]

        codes, self.goal = draw_for_split(propose, str, split=self.split)
        self.codes, self.shown = (
            dict(zip(COLOURS, codes, strict=True)),
            f"The vault wants the {self.goal} note.",
        )
        return str((codes, self.goal))

    def _observe(self) -> str:
        return self.shown

    def _play(self, action: str) -> Outcome:
        call = json.loads(action)  # has been checked by the tool's schema
        if call["name"] == "read":
            self.shown = f"The {call['arguments']['note']} note says {self.codes[call['arguments']['note']]}."
            return Outcome({"call": -0.1})
        is_open = call["arguments"]["code"] == self.codes[self.goal]
        self.shown = "The vault is open." if is_open else "The vault stays shut."
        return Outcome({"call": -0.1, "vault": float(is_open)}, terminated=is_open, success=is_open)

    def _get_state(self) -> dict[str, Any]:
        return {"codes": dict(self.codes), "goal": self.goal, "shown": self.shown}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.codes, self.goal, self.shown = dict(state["codes"]), state["goal"], state["shown"]
