"""The grammar of free texts: the whole reply, apart from thinking, is the action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.actions import Actions, Format
from lit_agentrl.text.dialects.bare_calls import THINK_END, find_thinking, split_thinking, strip_end_marks
from lit_agentrl.text.dialects.base import Reply, Stop
from lit_agentrl.text.dialects.blocks import THINK_START, Block, NoStop, write_think_lines


@dataclass(frozen=True)
class Plain:
    """``<think>free text</think>`` or nothing, then one action up to the end of the reply.

    The action has no tags, so a reply reads as in an ordinary chat.  A reply that is blank, or that ends inside its
    thinking, plays no action and costs one penalty.
    """

    formats = frozenset[Format]({"text"})
    think_start = THINK_START

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`."""
        return "\n".join([*write_think_lines(think), "Your reply is taken as it stands."])

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """See `Dialect`."""
        thought, rest, has_think = split_thinking(text, think=think)
        if think and not has_think and rest.lstrip().startswith(THINK_START):
            return Reply(False, (), "unclosed_think", "", False, False, "its think block was not closed")
        action = strip_end_marks(rest)
        if not action.strip():
            return Reply(False, (), "empty_reply", thought, has_think, False, "it was empty")
        return Reply(True, (action,), "no_think" if think and not has_think else "", thought, has_think)

    def rejected(self, action: str) -> tuple[str, str]:
        """See `Dialect`."""
        return "refused_reply", "it cannot be played here"

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        return find_thinking(text, in_think=in_think)

    def stop(self, tokenizer: object) -> Stop:
        """Return a rule that never stops: the model ends a reply."""
        return NoStop()

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """See `Dialect`."""
        return ("" if thought is None else f"{THINK_START}{thought}{THINK_END}") + "".join(actions)
