"""``a thought => Up, Down;``: a reply grammar of one's own, chosen as ``dialect=arrow``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.actions import Actions, Format
from lit_agentrl.text.dialects.base import Reply
from lit_agentrl.text.dialects.blocks import Block, TagStop

ARROW, END = "=>", ";"


@dataclass(frozen=True)
class Arrow:
    """What stands before the arrow is thought, what stands after it is played, up to a semicolon."""

    formats = frozenset[Format]({"names"})
    think_start = ""  # thinking needs no opening

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`."""
        example = self.write(actions.names[:max_actions][:2], thought="what I see" if think else None)
        names = ", ".join(actions.names)
        return f"Write {ARROW}, actions separated by commas, and {END}. The actions are: {names}.\n{example}"

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """See `Dialect`."""
        thought, arrow, rest = text.partition(ARROW)
        body, end, _ = rest.partition(END)
        if not arrow or not end:
            return Reply(False, (), "no_arrow", "", is_well_formed=False, complaint="it lacked => or ;")
        known = {name.lower(): name for name in actions.names}
        found = [known.get(word.strip().lower()) for word in body.split(",")]
        played = tuple(name for name in found[: (*found, None).index(None)] if name)
        if len(played) < len(found):
            return Reply(
                False, played, *self.rejected("")[:1], thought, bool(thought), complaint=self.rejected("")[1]
            )
        return Reply(True, played, "", thought.strip(), bool(thought.strip()))

    def rejected(self, action: str) -> tuple[str, str]:
        """See `Dialect`."""
        return "unknown_action", "it named an action that does not exist"

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        at, end = text.find(ARROW), text.find(END, max(text.find(ARROW), 0)) + 1
        if at < 0:
            return []
        think = [Block("think", 0, 0, at, at, True)] if at else []
        return [
            *think,
            Block("answer", at, at + 2, (end or len(text)) - bool(end), end or len(text), bool(end)),
        ]

    def stop(self, tokenizer: Any) -> TagStop:
        """At the semicolon."""
        return TagStop(tokenizer, END)

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """See `Dialect`."""
        return f"{thought or ''} {ARROW} {', '.join(actions)}{END}".lstrip()
