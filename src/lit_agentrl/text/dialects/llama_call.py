"""The grammar ``{"name": …, "parameters": {…}}`` of Llama 3.1 and 3.2, after optional thinking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.text.dialects.bare_calls import BareCalls, NotACall, find_json_end, is_end, skip_blank

_TAG = "<|python_tag|>"  # some of these models write it before a call


@dataclass(frozen=True)
class LlamaCalls(BareCalls):
    """Grammar of JSON calls after an optional ``<|python_tag|>``, separated by semicolons."""

    key: ClassVar[str] = "parameters"
    form: ClassVar[str] = (
        'Write the call as JSON with the keys "name" and "parameters", and nothing after it.'
    )

    def split_calls(self, text: str) -> list[str]:
        """See `BareCalls`."""
        position = skip_blank(text, 0)
        position = skip_blank(text, position + len(_TAG)) if text.startswith(_TAG, position) else position
        calls: list[str] = []
        while True:
            if not text.startswith("{", position):
                raise NotACall("no call" if not calls else "something else than a call after a semicolon")
            end = find_json_end(text, position)
            calls.append(text[position:end])
            if is_end(text, end):
                return calls
            position = skip_blank(text, end)
            if not text.startswith(";", position):
                raise NotACall("something else after its call")
            position = skip_blank(text, position + 1)

    def join_calls(self, actions: Sequence[str]) -> str:
        """See `BareCalls`."""
        # in canonical JSON the first match is the key itself: quotes inside a name are escaped
        return "; ".join(action.replace('"arguments": ', '"parameters": ', 1) for action in actions)
