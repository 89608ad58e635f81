"""Base class of worlds that wrap another world and change a part of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lit_agentrl.actions import Format, ToolSpec
from lit_agentrl.envs.world import World


class WrappedWorld(World):
    """A world that forwards these methods to another world unless a subclass changes them.

    A subclass implements ``reset`` and ``step``, and ``rekey``, ``state_dict`` and ``load_state_dict`` if it has state.

    Args:
        world: the world that is wrapped.
    """

    def __init__(self, world: World) -> None:
        super().__init__(split=world.split)
        self._world = world
        self.max_solution, self.instances, self.has_state = (
            world.max_solution,
            world.instances,
            world.has_state,
        )

    def locate(self, seed: int) -> int | None:
        return self._world.locate(seed)

    def interrupt(self) -> None:
        self._world.interrupt()

    def close(self) -> None:
        self._world.close()

    @property
    def rules(self) -> str:
        return self._world.rules

    @property
    def system_text(self) -> str | None:
        return self._world.system_text

    def action_names(self) -> list[str] | None:
        return self._world.action_names()

    def tools(self) -> Sequence[ToolSpec]:
        return self._world.tools()

    def action_format(self) -> Format:
        return self._world.action_format()

    def random_action(self, rng: np.random.Generator) -> str | None:
        return self._world.random_action(rng)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        return self._world.optimal_actions(horizon=horizon)

    def best_thought(self) -> str | None:
        return self._world.best_thought()

    def state_key(self) -> int:
        return self._world.state_key()
