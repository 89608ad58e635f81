"""Base of the dialects that write tool calls without tags around them."""

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
    read_calls,
    write_think_lines,
)

THINK_END = "</think>"
_ONLY_ENDS = re.compile(r"(?:\s|<\|\w+\|>|</s>)*")  # end-of-reply tokens and white space, and nothing else
_TRAILING_ENDS = re.compile(r"(?:<\|\w+\|>|</s>)\s*\Z")


class NotACall(ValueError):
    """A reply has no valid calls; the message continues the words "it had"."""


@dataclass(frozen=True)
class BareCalls:
    """Base of dialects whose reply is a think block and then calls until its end.

    The first call that is malformed, of an unknown tool or with wrong arguments ends the reply: that call and the
    rest are not played, and the reply gets one penalty and a message as its answer.  A missing think block is accepted
    and recorded.

    Args:
        parallel: Whether a reply may hold several calls, up to ``env.max_actions_per_turn``.
        in_template: Whether the tokenizer's chat template lists the tools and the form, as the model was taught.

    Attributes:
        key: JSON key of a call's arguments.
        form: Description of the form, for the instructions.
        example: An example call, for the instructions.
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

    def split_calls(self, text: str) -> list[str]:
        """Return the JSON of each call in a reply without its thinking.

        Raises:
            NotACall: If the text does not have the form.
        """
        raise NotImplementedError

    def join_calls(self, actions: Sequence[str]) -> str:
        """Write calls in the form of the dialect."""
        raise NotImplementedError

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`."""
        allows_many = self.parallel and max_actions > 1
        beginning = f"Each reply calls up to {max_actions}" if allows_many else "Each reply calls one"
        if self.in_template:
            return "\n".join([*write_think_lines(think), f"{beginning} of the tools."])
        lines = [
            *write_think_lines(think),
            f"{beginning} of these tools:",
            *(tool.text for tool in actions.tools),
        ]
        example = self.write([self.example], thought="what I know and why I call" if think else None)
        return "\n".join([*lines, self.form, "For example:", example])

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """See `Dialect`."""
        thought, rest, has_think = split_thinking(text, think=think)
        try:
            bodies = self.split_calls(rest)
        except NotACall as error:
            return Reply(False, (), "no_call", thought, has_think, False, f"it had {error}")
        if len(bodies) > 1 and not self.parallel:
            return Reply(False, (), "two_calls", thought, has_think, False, "it had more than one tool call")
        played, problem, complaint = read_calls(*bodies, tools=actions.tools, key=self.key)
        if problem:
            return Reply(False, played, problem, thought, has_think, problem != "malformed_call", complaint)
        return Reply(True, played, "no_think" if think and not has_think else "", thought, has_think)

    def rejected(self, action: str) -> tuple[str, str]:
        """See `Dialect`."""
        return "refused_call", f"the call {action} cannot be made here"

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        return find_thinking(text, in_think=in_think)

    def stop(self, tokenizer: object) -> Stop:
        """Return a rule that never stops: the model ends a reply."""
        return NoStop()

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """See `Dialect`; each action is a call's JSON."""
        think_block = "" if thought is None else f"{THINK_START}{thought}{THINK_END}"
        return think_block + self.join_calls(actions)


def split_thinking(text: str, *, think: bool) -> tuple[str, str, bool]:
    """Return thinking, the text after it, and whether there is a closed think block."""
    at = text.find(THINK_END) if think else -1
    if at < 0:
        return "", text, False
    return text[:at].replace(THINK_START, "", 1).strip(), text[at + len(THINK_END) :], True


def find_thinking(text: str, *, in_think: bool) -> list[Block]:
    """Return the think block of a reply and the block of the text after it."""
    at = text.find(THINK_END)
    if at < 0:
        return [Block("think", 0, 0, len(text), len(text), False)] if in_think else _make_answer(text, 0)
    start = 0 if in_think else max(text.find(THINK_START, 0, at), 0)
    end = at + len(THINK_END)
    text_start = start if in_think or not text.startswith(THINK_START, start) else start + len(THINK_START)
    return [Block("think", start, text_start, at, end, True), *_make_answer(text, end)]


def _make_answer(text: str, start: int) -> list[Block]:
    return [Block("answer", start, start, len(text), len(text), True)] if start < len(text) else []


def find_json_end(text: str, start: int) -> int:
    """Return the end of the JSON value that begins here.

    Raises:
        NotACall: If no complete JSON value begins here.
    """
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):  # ValueError also for numbers of thousands of digits
        raise NotACall("no whole JSON where a call should stand") from None


def skip_blank(text: str, start: int) -> int:
    """Return the position of the first character that is not white space."""
    return next((at for at in range(start, len(text)) if not text[at].isspace()), len(text))


def is_end(text: str, start: int) -> bool:
    """Return whether only end-of-reply tokens and white space follow."""
    return _ONLY_ENDS.fullmatch(text, start) is not None


def strip_end_marks(text: str) -> str:
    """Return the text without the end-of-reply tokens at its end."""
    return _TRAILING_ENDS.sub("", text)
