"""The context of programs, which decide what the policy reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.text.chat import ChatRenderer, Prefix
from lit_agentrl.text.context import Past


@dataclass(frozen=True)
class Calls:
    """The calls of a program: each continues a row or begins one."""

    is_append_only: ClassVar[bool] = False
    shows_replies: ClassVar[bool] = True

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """Refuse the prompt of a game.

        Raises:
            ValueError: Always; programs have no prompts of the run.
        """
        raise ValueError("context=program is for env=program alone; set context=full")
