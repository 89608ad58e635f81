"""``{"name": …, "parameters": {…}}``, as Llama 3.1 and 3.2 write calls; thinking before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.text.dialects.bare_calls import BareCalls, NotWritten, is_end, one_json, past_blank

_TAG = "<|python_tag|>"  # which some of them write before


@dataclass(frozen=True)
class LlamaCalls(BareCalls):
    """JSON alone, after ``<|python_tag|>`` or nothing; several calls are separated by a semicolon."""

    key: ClassVar[str] = "parameters"
    form: ClassVar[str] = (
        'Write the call as JSON with the keys "name" and "parameters", and nothing after it.'
    )

    def bodies(self, text: str) -> list[str]:
        """See `BareCalls`."""
        at = past_blank(text, 0)
        at = past_blank(text, at + len(_TAG)) if text.startswith(_TAG, at) else at
        found: list[str] = []
        while True:
            if not text.startswith("{", at):
                raise NotWritten("no call" if not found else "something else than a call after a semicolon")
            end = one_json(text, at)
            found.append(text[at:end])
            if is_end(text, end):
                return found
            at = past_blank(text, end)
            if not text.startswith(";", at):
                raise NotWritten("something else after its call")
            at = past_blank(text, at + 1)

    def joined(self, actions: Sequence[str]) -> str:
        """See `BareCalls`."""
        # of canonical JSON the first is the key itself: quotes inside a name are escaped
        return "; ".join(action.replace('"arguments": ', '"parameters": ', 1) for action in actions)
