"""To the door: a whole game in 30 lines, played with ``env=corridor``."""

from collections.abc import Iterator, Mapping
from typing import Any

from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

LENGTH = 12


class Corridor(TextEnv):
    """A corridor with a player P and a door D."""

    rules = "Go to the door D. You are P.\nRewards: 1 at the door."
    max_solution = LENGTH - 1

    def action_names(self) -> list[str]:
        return ["Left", "Right"]

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[list[int]]:
            yield keyed_rng(seed, attempt, 1).choice(LENGTH, size=2, replace=False).tolist()

        self.player, self.door = draw_for_split(propose, str, split=self.split)
        return str([self.player, self.door])

    def _observe(self) -> str:
        return " ".join("P" if i == self.player else "D" if i == self.door else "_" for i in range(LENGTH))

    def _play(self, action: str) -> Outcome:
        self.player = min(max(self.player + (1 if action == "Right" else -1), 0), LENGTH - 1)
        found = self.player == self.door
        return Outcome({"door": float(found)}, terminated=found, success=found)

    def _get_state(self) -> dict[str, Any]:
        return {"player": self.player, "door": self.door}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.player, self.door = state["player"], state["door"]
