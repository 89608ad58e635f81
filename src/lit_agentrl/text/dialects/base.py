"""The dialect protocol: how the project writes and reads replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lit_agentrl.actions import Actions, Format
from lit_agentrl.text.dialects.blocks import Block

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Reply:
    """A parsed reply.

    Attributes:
        is_valid: Whether the whole reply can be played; if not, ``invalid_penalty`` is charged once.
        actions: The actions to play, in order; may be non-empty even if ``is_valid`` is False.
        problem: Short name of an error or of a noteworthy deviation; empty if there is none.
        think: Text of the closed think blocks.
        has_think: Whether a closed think block precedes the action.
        is_well_formed: Whether the markup is correct, whatever it contains.
        complaint: Description of the error for the policy, as "it had …"; empty if the reply is valid.
    """

    is_valid: bool
    actions: tuple[str, ...]
    problem: str
    think: str
    has_think: bool = False
    is_well_formed: bool = True
    complaint: str = ""


class Stop(Protocol):
    """Decides token by token whether a reply is complete; the state is a short string."""

    def update(self, row_state: str, token_id: int) -> tuple[str, bool]: ...


class Dialect(Protocol):
    """A grammar of replies.

    Its methods take time linear in the reply's length and never raise on a reply.
    """

    @property
    def formats(self) -> frozenset[Format]:
        """The action formats that the dialect can write."""

    @property
    def think_start(self) -> str:
        """The opening think tag; ends the reply header if thinking is forced."""

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """Return the grammar in words, with an example, for a policy new to it."""

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """Parse the actions of a reply.

        Args:
            text: The decoded reply, including a forced beginning.
            actions: The available actions.
            think: Whether the format has a think block; if False, think tags are plain text.
        """

    def rejected(self, action: str) -> tuple[str, str]:
        """Return problem and complaint for a well-formed action that the game refused."""

    def spans(self, text: str, *, in_think: bool) -> Sequence[Block]:
        """Return the think and answer blocks of a reply as sampled, in order.

        ``in_think`` says that the reply begins inside a think block.
        """

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> Stop:
        """Return the rule that ends sampling."""

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """Write a reply that plays these actions; None for ``thought`` omits the think block."""


@runtime_checkable
class ToolsInTemplate(Protocol):
    """A dialect that may let the chat template list the tools."""

    @property
    def in_template(self) -> bool:
        """True if the chat template lists the tools."""


def has_tools_in_template(dialect: Dialect) -> bool:
    """Return whether the chat template lists the tools."""
    return isinstance(dialect, ToolsInTemplate) and dialect.in_template


@runtime_checkable
class ParallelCalls(Protocol):
    """A dialect that may write several tool calls in one reply."""

    @property
    def parallel(self) -> bool:
        """True if a reply may hold several calls."""


def may_hold_several_calls(dialect: Dialect) -> bool:
    """Return whether a reply may hold several calls."""
    return isinstance(dialect, ParallelCalls) and dialect.parallel
