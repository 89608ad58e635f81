"""A task whose episodes an agent program plays, with limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from lit_agentrl.checks import require, require_one_of
from lit_agentrl.envs.base import Task


@dataclass(frozen=True)
class ProgramTask(Task):
    """A program that is played through its chat requests; ``max_turns`` bounds its calls.

    The world only waits for other processes, so it is hosted in threads.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("hosting.where", self.hosting.where, ("thread",))
        require(
            self.invalid_penalty == 0, "invalid_penalty", self.invalid_penalty, "0: the program scores itself"
        )
        require(self.max_actions_per_turn == 1, "max_actions_per_turn", self.max_actions_per_turn, "1")
        require(self.max_actions == self.max_turns, "max_actions", self.max_actions, "max_turns")

    @property
    def is_parallel(self) -> bool:
        """True if the program may make several calls at once."""
        return isinstance(self.game, partial) and bool(self.game.keywords.get("parallel", False))

    @property
    def play_class(self) -> Callable[..., Any]:
        """See `Task`."""
        from lit_agentrl.experimental.gateway.play import ProgramInPlay

        return ProgramInPlay

    @property
    def remedy(self) -> str:
        """See `Task`."""
        return "repair the program, or the option that names it (docs/agents.md)"
