"""Calls without tags around them: what the dialects of models that mark calls otherwise share."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.actions import Actions, Format
from lit_agentrl.checks import require
from lit_agentrl.text.dialects.base import Reply, Stop
from lit_agentrl.text.dialects.blocks import (
    EXAMPLE_CALL,
    THINK_START,
    Block,
    NoStop,
    read_played,
    think_first,
)

THINK_END = "</think>"
_END = re.compile(r"(?:\s|<\|\w+\|>|</s>)*")  # what a tokenizer writes where a reply ends
_ENDS = re.compile(r"(?:<\|\w+\|>|</s>)\s*\Z")


class NotWritten(ValueError):
    """A reply that writes no calls; the message completes "it had"."""


@dataclass(frozen=True)
class BareCalls:
    """A think block, then calls to the end of the reply, which is where the model ends it.

    The first call that is malformed, of no known tool or with wrong arguments ends the reply: it and what follows play
    nothing, it is charged once and answered by a message.  A missing think block is accepted and recorded.

    Args:
        parallel: whether a reply may hold several calls, as many as ``env.max_actions_per_turn``.
        in_template: whether the tokenizer's chat template tells of the tools and of the form, as the model was taught.

    Attributes:
        key: what the arguments of a call stand under.
        form: the form in words, for the instructions.
        example: a call, for the instructions.
    """

    parallel: bool = False
    in_template: bool = False
    formats = frozenset[Format]({"tools"})
    think_start = THINK_START
    key: ClassVar[str] = "arguments"
    form: ClassVar[str] = ""
    example: ClassVar[str] = EXAMPLE_CALL

    def __post_init__(self) -> None:
        require(isinstance(self.parallel, bool), "parallel", self.parallel, "true or false")
        require(isinstance(self.in_template, bool), "in_template", self.in_template, "true or false")

    def bodies(self, text: str) -> list[str]:
        """The JSON of each call of a reply without its thinking.

        Raises:
            NotWritten: it is not of the form.
        """
        raise NotImplementedError

    def joined(self, actions: Sequence[str]) -> str:
        """These calls in the form."""
        raise NotImplementedError

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`."""
        many = self.parallel and max_actions > 1
        each = f"Each reply calls up to {max_actions}" if many else "Each reply calls one"
        if self.in_template:
            return "\n".join([*think_first(think), f"{each} of the tools."])
        lines = [*think_first(think), f"{each} of these tools:", *(tool.text for tool in actions.tools)]
        example = self.write([self.example], thought="what I know and why I call" if think else None)
        return "\n".join([*lines, self.form, "For example:", example])

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """See `Dialect`."""
        told, rest, has_think = parted(text, think=think)
        try:
            bodies = self.bodies(rest)
        except NotWritten as error:
            return Reply(False, (), "no_call", told, has_think, False, f"it had {error}")
        if len(bodies) > 1 and not self.parallel:
            return Reply(False, (), "two_calls", told, has_think, False, "it had more than one tool call")
        played, problem, complaint = read_played(*bodies, tools=actions.tools, key=self.key)
        if problem:
            return Reply(False, played, problem, told, has_think, problem != "malformed_call", complaint)
        return Reply(True, played, "no_think" if think and not has_think else "", told, has_think)

    def rejected(self, action: str) -> tuple[str, str]:
        """See `Dialect`."""
        return "refused_call", f"the call {action} cannot be made here"

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        return think_spans(text, in_think=in_think)

    def stop(self, tokenizer: object) -> Stop:
        """Nowhere: the model ends a reply."""
        return NoStop()

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """See `Dialect`; each action is a call's JSON."""
        before = "" if thought is None else f"{THINK_START}{thought}{THINK_END}"
        return before + self.joined(actions)


def parted(text: str, *, think: bool) -> tuple[str, str, bool]:
    """The thinking of a reply, what stands behind it, and whether there is a closed think block."""
    at = text.find(THINK_END) if think else -1
    if at < 0:
        return "", text, False
    return text[:at].replace(THINK_START, "", 1).strip(), text[at + len(THINK_END) :], True


def think_spans(text: str, *, in_think: bool) -> list[Block]:
    """The think block of a reply, and what stands behind it."""
    at = text.find(THINK_END)
    if at < 0:
        return [Block("think", 0, 0, len(text), len(text), False)] if in_think else _answer(text, 0)
    start = 0 if in_think else max(text.find(THINK_START, 0, at), 0)
    end = at + len(THINK_END)
    opened = start if in_think or not text.startswith(THINK_START, start) else start + len(THINK_START)
    return [Block("think", start, opened, at, end, True), *_answer(text, end)]


def _answer(text: str, start: int) -> list[Block]:
    return [Block("answer", start, start, len(text), len(text), True)] if start < len(text) else []


def one_json(text: str, start: int) -> int:
    """Where the JSON value that begins here ends.

    Raises:
        NotWritten: none begins here, or it is not whole.
    """
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):  # also numbers of thousands of digits
        raise NotWritten("no whole JSON where a call should stand") from None


def past_blank(text: str, start: int) -> int:
    """Where white space from here on ends."""
    return next((at for at in range(start, len(text)) if not text[at].isspace()), len(text))


def is_end(text: str, start: int) -> bool:
    """Whether nothing follows but what a tokenizer writes at an end."""
    return _END.fullmatch(text, start) is not None


def without_end(text: str) -> str:
    """The text without what a tokenizer writes where a reply ends."""
    return _ENDS.sub("", text)
