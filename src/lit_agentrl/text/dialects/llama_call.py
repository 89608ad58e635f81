"""The grammar ``{"name": …, "parameters": {…}}`` of Llama 3.1 and 3.2, after optional thinking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.text.dialects.bare_calls import BareCalls, NotACall, find_json_end, is_end, skip_blank

_TAG = "<|python_tag|>"  # some of these models write it before a call


@dataclass(frozen=True)
class LlamaCalls(BareCalls):
    """JSON after an optional ``<|python_tag|>``; a semicolon separates several calls."""

    key: ClassVar[str] = "parameters"
    form: ClassVar[str] = (
        'Write the call as JSON with the keys "name" and "parameters", and nothing after it.'
    )

    def split_calls(self, text: str) -> list[str]:
        """See `BareCalls`."""
        at = skip_blank(text, 0)
        at = skip_blank(text, at + len(_TAG)) if text.startswith(_TAG, at) else at
        calls: list[str] = []
        while True:
            if not text.startswith("{", at):
                raise NotACall("no call" if not calls else "something else than a call after a semicolon")
            end = find_json_end(text, at)
            calls.append(text[at:end])
            if is_end(text, end):
                return calls
            at = skip_blank(text, end)
            if not text.startswith(";", at):
                raise NotACall("something else after its call")
            at = skip_blank(text, at + 1)

    def join_calls(self, actions: Sequence[str]) -> str:
        """See `BareCalls`."""
        # in canonical JSON the first match is the key itself: quotes inside a name are escaped
        return "; ".join(action.replace('"arguments": ', '"parameters": ', 1) for action in actions)
