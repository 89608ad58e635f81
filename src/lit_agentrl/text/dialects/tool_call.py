"""``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, as Hermes and Qwen models write it; thinking before it.

A reply is one call.  The JSON is read strictly and checked by the tool's schema; a call that is malformed, of
no known tool or with wrong arguments plays nothing, is charged once and answered by a message that names the
fault.  A missing think block is accepted and recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lit_agentrl.actions import Actions, Format
from lit_agentrl.text.dialects.base import Reply
from lit_agentrl.text.dialects.blocks import (
    EXAMPLE_CALL,
    THINK_START,
    Block,
    Tag,
    TagStop,
    read_played,
    think_first,
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
    """The grammar of models that were taught to call tools; for games whose actions are tools."""

    formats = frozenset[Format]({"tools"})
    think_start = THINK_START

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`."""
        lines = think_first(think)
        lines += ["Each reply calls one of these tools:", "<tools>", *(tool.text for tool in actions.tools)]
        lines += ["</tools>", "Write the call as JSON inside <tool_call> </tool_call>, once.", "For example:"]
        example = self.write([EXAMPLE_CALL], thought="what I know and why I call" if think else None)
        return "\n".join([*lines, example])

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """See `Dialect`."""
        found = TAG.look(text, think=think)
        if problem := TAG.problem(found.answers):
            return Reply(False, (), problem, found.think, found.has_think, False, _NO_CALL[problem])
        [block] = found.answers
        played, problem, complaint = read_played(text[block.body_start : block.body_end], actions.tools)
        if problem:
            is_json = problem != "malformed_call"
            return Reply(False, (), problem, found.think, found.has_think, is_json, complaint)
        problem = "no_think" if think and not found.has_think else ""
        return Reply(True, played, problem, found.think, found.has_think)

    def rejected(self, action: str) -> tuple[str, str]:
        """See `Dialect`."""
        return "refused_call", f"the call {action} cannot be made here"

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        return TAG.spans(text, in_think=in_think)

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> TagStop:
        """At ``</tool_call>``."""
        return TAG.stop(tokenizer)

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """See `Dialect`; each action is a call's JSON."""
        return TAG.write(actions, thought=thought)
