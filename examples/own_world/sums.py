"""Add two numbers: a world of three methods, played with ``env=sums prompt=full``."""

from collections.abc import Iterator
from typing import Any

from gymnasium.error import ResetNeeded

from lit_agentrl.envs.splits import draw_for_split, keyed_rng
from lit_agentrl.envs.world import World


class Sums(World):
    """A question, and one answer in any words."""

    rules = "Answer with the sum alone.\nRewards: 1 for the right number."

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        seed = self.choose_seed(seed)  # None: the next of a sequence, as in Gymnasium

        def propose(attempt: int) -> Iterator[tuple[int, int]]:
            first, second = keyed_rng(seed, attempt, 1).integers(50, size=2).tolist()
            yield first, second

        self.numbers = draw_for_split(propose, str, split=self.split)
        self.is_over = False
        return f"{self.numbers[0]} + {self.numbers[1]} = ?", {"instance_id": str(self.numbers)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.is_over:
            raise ResetNeeded("the question is answered; call reset")
        self.is_over = True
        is_right = action.strip() == str(sum(self.numbers))
        return "", float(is_right), True, False, {"success": is_right}

    def close(self) -> None:
        """Release what the world holds: here nothing, so that this method could be left out."""
