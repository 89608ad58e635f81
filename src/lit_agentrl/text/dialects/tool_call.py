"""``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, as Hermes and Qwen models write it; thinking before it.

A reply is one call.  The JSON is read strictly and checked by the tool's schema; a call that is malformed, of
no known tool or with wrong arguments plays nothing, is charged once and answered by a message that names the
fault.  A missing think block is accepted and recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lit_agentrl.actions import Actions, BadCall, Format, read_call
from lit_agentrl.text.dialects.base import Reply
from lit_agentrl.text.dialects.blocks import Block, TagStop, find_blocks, look

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TAG = "tool_call"
_NO_CALL = {
    "no_call": "it had no tool call",
    "two_calls": "it had more than one tool call",
    "unclosed_call": "its tool call was not closed",
}


@dataclass(frozen=True)
class ToolCalls:
    """The grammar of models that were taught to call tools; for games whose actions are tools."""

    formats = frozenset[Format]({"tools"})
    think_start = "<think>"

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`."""
        example = '{"name": "the tool", "arguments": {"an argument": "its value"}}'
        lines = ["Think inside <think> </think> first, then act."] if think else []
        lines += ["Each reply calls one of these tools:", "<tools>", *(tool.text for tool in actions.tools)]
        lines += ["</tools>", "Write the call as JSON inside <tool_call> </tool_call>, once.", "For example:"]
        return "\n".join(
            [*lines, self.write([example], thought="what I know and why I call" if think else None)]
        )

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """See `Dialect`."""
        found = look(text, TAG, think=think)
        problem = "no_call" if not found.answers else "two_calls" if len(found.answers) > 1 else ""
        if found.answers and not problem and not found.answers[0].is_closed:
            problem = "unclosed_call"
        if problem:
            return Reply(False, (), problem, found.think, found.has_think, False, _NO_CALL[problem])
        [block] = found.answers
        call = read_call(text[block.body_start : block.body_end], actions.tools)
        if isinstance(call, BadCall):
            is_json = call.problem != "malformed_call"
            return Reply(False, (), call.problem, found.think, found.has_think, is_json, call.message)
        problem = "no_think" if think and not found.has_think else ""
        return Reply(True, (str(call),), problem, found.think, found.has_think)

    def rejected(self, action: str) -> tuple[str, str]:
        """See `Dialect`."""
        return "refused_call", f"the call {action} cannot be made here"

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        return find_blocks(text, TAG, in_think=in_think)

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> TagStop:
        """At ``</tool_call>``."""
        return TagStop(tokenizer, f"</{TAG}>")

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """See `Dialect`; each action is a call's JSON."""
        before = "" if thought is None else f"<think>{thought}</think>"
        return before + "".join(f"<{TAG}>{action}</{TAG}>" for action in actions)
