"""The context of programs, which decide what the policy reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.checks import require
from lit_agentrl.text.chat import ChatRenderer, Prefix
from lit_agentrl.text.context import Past


@dataclass(frozen=True)
class Calls:
    """A context of program calls: each call continues a row or begins one.

    Args:
        show_tools: Whether the policy reads the declarations of tools that a program offers.  A policy that was trained
            on the tools, or reads about them in the program's messages, needs no declarations.

    Raises:
        ValueError: ``show_tools`` is neither true nor false.
    """

    show_tools: bool = True
    is_append_only: ClassVar[bool] = False
    shows_replies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(isinstance(self.show_tools, bool), "show_tools", self.show_tools, "true or false")

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """Refuse the prompt of a game.

        Raises:
            ValueError: Always, because a program writes its own prompts.
        """
        raise ValueError("context=program is for env=program alone; set context=full")
