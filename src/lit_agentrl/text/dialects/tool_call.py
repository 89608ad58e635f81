"""The grammar ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` of Hermes and Qwen models.

Thinking may precede the calls.  A reply holds one call or several.  The JSON is read strictly and checked against the
tool's schema.  The first call that is malformed, of an unknown tool or with wrong arguments ends the reply: that call
and the rest are not played, the reply is charged once and answered by a message that names the error.  A missing
think block is accepted and recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lit_agentrl.actions import Actions, Format
from lit_agentrl.checks import require
from lit_agentrl.text.dialects.base import Reply, Stop
from lit_agentrl.text.dialects.blocks import (
    EXAMPLE_CALL,
    THINK_START,
    Block,
    NoStop,
    Tag,
    read_calls,
    write_think_lines,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TAG = Tag("tool_call", "call")
_NO_CALL = {
    "no_call": "it had no tool call",
    "two_calls": "it had more than one tool call",
    "unclosed_call": "its tool call was not closed",
}


@dataclass(frozen=True)
class ToolCalls:
    """The grammar of models trained to call tools; for games whose actions are tools.

    Args:
        parallel: Whether a reply may hold several calls, up to ``env.max_actions_per_turn``.  It then ends where the
            model ends it, not at the first call.
        in_template: Whether the tokenizer's chat template lists the tools and the form, as the model was taught.

    Raises:
        ValueError: If an argument is neither true nor false.
    """

    parallel: bool = False
    in_template: bool = False
    formats = frozenset[Format]({"tools"})
    think_start = THINK_START

    def __post_init__(self) -> None:
        require(isinstance(self.parallel, bool), "parallel", self.parallel, "true or false")
        require(isinstance(self.in_template, bool), "in_template", self.in_template, "true or false")

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`."""
        lines, many = write_think_lines(think), self.parallel and max_actions > 1
        beginning = f"Each reply calls up to {max_actions}" if many else "Each reply calls one"
        if self.in_template:
            return "\n".join([*lines, f"{beginning} of the tools."])
        lines += [
            f"{beginning} of these tools:",
            "<tools>",
            *(tool.text for tool in actions.tools),
            "</tools>",
        ]
        how = (
            "each call as JSON inside its own <tool_call> </tool_call>"
            if many
            else "the call as JSON inside <tool_call> </tool_call>, once"
        )
        lines += [f"Write {how}.", "For example:"]
        example = self.write([EXAMPLE_CALL], thought="what I know and why I call" if think else None)
        return "\n".join([*lines, example])

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """See `Dialect`."""
        parts = TAG.find_parts(text, think=think)
        looked_at = parts.answers[-1:] if self.parallel else parts.answers
        if problem := TAG.find_problem(looked_at):
            return Reply(False, (), problem, parts.think, parts.has_think, False, _NO_CALL[problem])
        bodies = [text[block.body_start : block.body_end] for block in parts.answers]
        played, problem, complaint = read_calls(*bodies, tools=actions.tools)
        if problem:
            is_json = problem != "malformed_call"
            return Reply(False, played, problem, parts.think, parts.has_think, is_json, complaint)
        problem = "no_think" if think and not parts.has_think else ""
        return Reply(True, played, problem, parts.think, parts.has_think)

    def rejected(self, action: str) -> tuple[str, str]:
        """See `Dialect`."""
        return "refused_call", f"the call {action} cannot be made here"

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        return TAG.spans(text, in_think=in_think)

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> Stop:
        """Return the rule that stops at ``</tool_call>``; with ``parallel`` the model ends the reply."""
        return NoStop() if self.parallel else TAG.stop(tokenizer)

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """See `Dialect`; each action is a call's JSON."""
        return TAG.write(actions, thought=thought)
