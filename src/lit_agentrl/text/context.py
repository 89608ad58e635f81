"""What of an episode the policy reads before each reply: all of it, its last turns, or a summary.

A context that only appends puts a trajectory into one row; any other one starts a row with every turn.  In
both the tokens submitted to the engine are the tokens of the row: past replies are put again as the ids that
were sampled, and what is left out is left out whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from lit_agentrl.checks import require, require_whole
from lit_agentrl.episode import Message, Segment, Turn
from lit_agentrl.text.chat import ChatRenderer, Prefix

Condense = Callable[[Sequence[Turn]], str]
_REMEDY = "give it a _target_ that takes the past turns and returns a text"


@dataclass
class Past:
    """An episode as its next prompt may need it; entry k of the lists is about turn k.

    Attributes:
        opening: the messages before the first reply; with ``message=…`` those of a dialogue that begins with
            the message of a later turn.
        turns: the turns that were taken.
        messages: what the game said before each reply, the one awaited included; the first is empty, since
            the opening holds it.
        pieces: the tokens of these messages in a dialogue that shows every turn.
    """

    opening: Callable[..., list[dict[str, str]]]
    turns: Sequence[Turn]
    messages: list[str] = field(default_factory=list)
    pieces: list[Prefix] = field(default_factory=list)


class Context(Protocol):
    """Decides what is read before a reply; see ``docs/concepts.md``."""

    is_append_only: ClassVar[bool]
    """Whether a prompt continues the row before it; otherwise each turn is a row and starts an empty one."""

    shows_replies: ClassVar[bool]
    """Whether past replies stand in prompts as they were sampled, which the chat template must then leave alone."""

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """The tokens to submit for the next reply: what is new if append-only, else the whole prompt."""


@runtime_checkable
class ShowsMessages(Protocol):
    """A context that can also say what it shows as messages, for engines that take no token ids."""

    def messages(self, past: Past) -> list[Message]:
        """The dialogue before the next reply; ``past.turns`` are those that were taken."""


def _dialogue(past: Past, first: int) -> list[Message]:
    """The opening, and all turns from ``first`` on; see `Window`."""
    found = past.opening() if first == 0 else past.opening(message=past.messages[first])
    for turn, message in zip(past.turns[first:], past.messages[first + 1 :], strict=True):
        found += [{"role": "assistant", "content": turn.reply_text}, {"role": "user", "content": message}]
    return found


@dataclass(frozen=True)
class Full:
    """Everything: each turn appends its message to what was read and written before."""

    is_append_only: ClassVar[bool] = True
    shows_replies: ClassVar[bool] = True

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """The new message."""
        return past.pieces[-1]

    def messages(self, past: Past) -> list[Message]:
        """See `ShowsMessages`."""
        return _dialogue(past, 0)


FULL = Full()  # what callers without a config get


@dataclass(frozen=True)
class Window:
    """The opening, the last turns (message and reply) and the present message.

    Where turns are left out, the first message shown stands in the opening in place of the first observation:
    the rules stay, and no two messages of the game follow each other.

    Args:
        turns: past turns shown.

    Raises:
        ValueError: fewer than one.
    """

    turns: int
    is_append_only: ClassVar[bool] = False
    shows_replies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_whole("turns", self.turns, 1, alternative="; context=single shows no past reply")

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """The whole prompt; past replies are their recorded ids."""
        first = max(0, len(past.turns) - self.turns)
        start = past.pieces[0] if first == 0 else chat.opening(past.opening(message=past.messages[first]))
        tokens, segments, broken = list(start.tokens), list(start.segments), start.broken
        for turn, piece in zip(past.turns[first:], past.pieces[first + 1 :], strict=True):
            tokens += [*turn.reply_tokens.tolist(), *piece.tokens]
            segments += [*[int(Segment.PAST)] * len(turn.reply_tokens), *piece.segments]
            broken += piece.broken
        return Prefix(tokens, segments, broken)

    def messages(self, past: Past) -> list[Message]:
        """See `ShowsMessages`."""
        return _dialogue(past, max(0, len(past.turns) - self.turns))


@dataclass(frozen=True)
class Single:
    """One message: the opening, the past turns condensed to a text, the present message.

    Args:
        condense: gives the text, which may be empty, from the past turns, of which there is at least one.

    Raises:
        ValueError: it is no function; later also: it fails, or returns something else than a text.
    """

    condense: Condense
    is_append_only: ClassVar[bool] = False
    shows_replies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(callable(self.condense), "condense", self.condense, f"a function: {_REMEDY}")

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """The whole prompt; no reply is in it, unless the text quotes one."""
        return chat.opening(self.messages(past)) if past.turns else past.pieces[0]

    def messages(self, past: Past) -> list[Message]:
        """See `ShowsMessages`."""
        if not past.turns:
            return past.opening()
        parts = (self._condensed(past.turns), past.messages[-1])
        return past.opening(message="\n".join(part for part in parts if part))

    def _condensed(self, turns: Sequence[Turn]) -> str:
        try:
            text = self.condense(tuple(turns))
        except Exception as error:  # a part of the run, unlike a game: it does not fail for one episode only
            raise ValueError(f"context.condense failed: {type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            raise ValueError(f"context.condense returned {type(text).__name__}; {_REMEDY}")
        return text
