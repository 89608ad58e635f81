"""Contexts: how much of an episode the policy reads before each reply.

A context shows the whole episode, its last turns, or a summary.  An append-only context puts a trajectory into
one row; any other context starts a new row with every turn.  In both cases the tokens submitted to the engine are
the tokens of the row: past replies reuse the sampled ids, and a turn is either shown whole or left out.
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
    """The history of an episode from which the next prompt is built.

    Entry k of each list belongs to turn k.

    Attributes:
        opening: Function that returns the messages before the first reply; with ``message=…`` the dialogue begins
            with that message of a later turn.
        turns: The turns taken so far.
        messages: The environment message before each reply, including the next one; the first is empty, since the
            opening contains it.
        pieces: The tokens of these messages in a dialogue that shows every turn.
    """

    opening: Callable[..., list[dict[str, str]]]
    turns: Sequence[Turn]
    messages: list[str] = field(default_factory=list)
    pieces: list[Prefix] = field(default_factory=list)


class Context(Protocol):
    """Builds the prompt of each reply; see ``docs/concepts.md``."""

    is_append_only: ClassVar[bool]
    """Whether every prompt continues the row of the previous turn; else only those with `Prefix.continues` do."""

    shows_replies: ClassVar[bool]
    """Whether prompts contain past replies as sampled; the chat template must then not change them."""

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """Return the new tokens if they continue the row, else the whole prompt."""


@runtime_checkable
class ShowsMessages(Protocol):
    """A context that can return its prompt as messages, for engines without token ids."""

    def messages(self, past: Past) -> list[Message]:
        """Return the dialogue before the next reply; ``past.turns`` holds the turns taken so far."""


def build_dialogue(past: Past, first: int) -> list[Message]:
    """Return the opening and all turns from ``first`` on; see `Window`."""
    dialogue = past.opening() if first == 0 else past.opening(message=past.messages[first])
    for turn, message in zip(past.turns[first:], past.messages[first + 1 :], strict=True):
        dialogue += [{"role": "assistant", "content": turn.reply_text}, {"role": "user", "content": message}]
    return dialogue


@dataclass(frozen=True)
class Full:
    """The whole episode: each turn appends its message to the tokens before it."""

    is_append_only: ClassVar[bool] = True
    shows_replies: ClassVar[bool] = True

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """Return the tokens of the new message."""
        return past.pieces[-1]

    def messages(self, past: Past) -> list[Message]:
        """See `ShowsMessages`."""
        return build_dialogue(past, 0)


FULL = Full()  # the default of callers without a config


@dataclass(frozen=True)
class Window:
    """The opening, the last turns (message and reply) and the current message.

    If turns are left out, the first message shown replaces the first observation in the opening: the rules stay, and
    two messages of the environment never follow each other.

    Args:
        turns: Number of past turns shown.

    Raises:
        ValueError: If the number is below 1.
    """

    turns: int
    is_append_only: ClassVar[bool] = False
    shows_replies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_whole("turns", self.turns, 1, alternative="; context=single shows no past reply")

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """Return the whole prompt, with past replies as their recorded ids."""
        first = max(0, len(past.turns) - self.turns)
        start = (
            past.pieces[0] if first == 0 else chat.render_opening(past.opening(message=past.messages[first]))
        )
        tokens, segments, broken = list(start.tokens), list(start.segments), start.broken
        for turn, piece in zip(past.turns[first:], past.pieces[first + 1 :], strict=True):
            tokens += [*turn.reply_tokens.tolist(), *piece.tokens]
            segments += [*[int(Segment.PAST)] * len(turn.reply_tokens), *piece.segments]
            broken += piece.broken
        return Prefix(tokens, segments, broken)

    def messages(self, past: Past) -> list[Message]:
        """See `ShowsMessages`."""
        return build_dialogue(past, max(0, len(past.turns) - self.turns))


@dataclass(frozen=True)
class Single:
    """One message: the opening, a summary of the past turns, and the current message.

    Args:
        condense: Function from the past turns (at least one) to the summary, which may be empty.

    Raises:
        ValueError: If ``condense`` is not callable; later also if it fails or does not return a text.
    """

    condense: Condense
    is_append_only: ClassVar[bool] = False
    shows_replies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(callable(self.condense), "condense", self.condense, f"a function: {_REMEDY}")

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """Return the whole prompt; it contains no reply, unless the summary quotes one."""
        return chat.render_opening(self.messages(past)) if past.turns else past.pieces[0]

    def messages(self, past: Past) -> list[Message]:
        """See `ShowsMessages`."""
        if not past.turns:
            return past.opening()
        parts = (self._condense_turns(past.turns), past.messages[-1])
        return past.opening(message="\n".join(part for part in parts if part))

    def _condense_turns(self, turns: Sequence[Turn]) -> str:
        try:
            text = self.condense(tuple(turns))
        except Exception as error:  # a part of the run, not a game: it fails the run, not one episode
            raise ValueError(f"context.condense failed: {type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            raise ValueError(f"context.condense returned {type(text).__name__}; {_REMEDY}")
        return text
