"""What a dialect is: everything that the project knows about how a reply is written."""

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
        is_valid: whether all of it could be played; if not, ``invalid_penalty`` is charged once.
        actions: those to play, in order; may be non-empty although ``is_valid`` is False.
        problem: a short name for what is wrong, or only noteworthy; empty if nothing is.
        think: text of the closed think blocks.
        has_think: a closed think block stands before the action.
        is_well_formed: the markup is in order, whatever is named inside.
        complaint: how the policy is told of the problem, as "it had …"; empty if the reply is valid.
    """

    is_valid: bool
    actions: tuple[str, ...]
    problem: str
    think: str
    has_think: bool = False
    is_well_formed: bool = True
    complaint: str = ""


class Stop(Protocol):
    """Tells token by token when a reply is complete; keeps a short string of state, one of few."""

    def update(self, row_state: str, token_id: int) -> tuple[str, bool]: ...


class Dialect(Protocol):
    """A reply grammar.  Its methods are linear in the length of a reply and total: no reply makes them raise."""

    @property
    def formats(self) -> frozenset[Format]:
        """The kinds of actions that it can write."""

    @property
    def think_start(self) -> str:
        """What opens a think block; ends the reply header where thinking is forced."""

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """The grammar in words, with an example, for a policy that has never seen it."""

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """The actions of a reply.

        Args:
            text: decoded, a forced beginning included.
            actions: what the game can play now.
            think: whether the format has a think block; if False its tags are plain text.
        """

    def rejected(self, action: str) -> tuple[str, str]:
        """Problem and complaint of a well-formed action that the game then refused."""

    def spans(self, text: str, *, in_think: bool) -> Sequence[Block]:
        """The think and answer blocks of a reply as sampled, in order; ``in_think``: it begins inside one."""

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> Stop:
        """The rule that ends sampling."""

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """A reply that plays these actions; without a think block if ``thought`` is None."""


@runtime_checkable
class LeavesTools(Protocol):
    """A dialect that may leave it to the chat template to tell of tools, in the words that the model was taught."""

    @property
    def in_template(self) -> bool:
        """Whether it does."""


def leaves_tools(dialect: Dialect) -> bool:
    """Whether the chat template tells of the tools."""
    return isinstance(dialect, LeavesTools) and dialect.in_template


@runtime_checkable
class ManyCalls(Protocol):
    """A dialect that may write several calls of tools in one reply."""

    @property
    def parallel(self) -> bool:
        """Whether it does."""


def may_call_often(dialect: Dialect) -> bool:
    """Whether a reply may hold several calls."""
    return isinstance(dialect, ManyCalls) and dialect.parallel
