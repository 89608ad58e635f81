"""The grammar ``[TOOL_CALLS] [{"name": …, "arguments": {…}}]`` of Mistral models, after optional thinking."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.text.dialects.bare_calls import BareCalls, NotACall, find_json_end, is_end, skip_blank

_MARK, _ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
_NAME = re.compile(r"\s*([^\s\[\]{}]+)\s*")


@dataclass(frozen=True)
class MistralCalls(BareCalls):
    """A JSON list after ``[TOOL_CALLS]``, or ``[TOOL_CALLS]name[ARGS]{…}`` for each call.

    Newer Mistral models write the second form.
    """

    form: ClassVar[str] = "Write the call as JSON inside [ ], after [TOOL_CALLS], and nothing after it."

    def split_calls(self, text: str) -> list[str]:
        """See `BareCalls`."""
        at = skip_blank(text, 0)
        if not text.startswith(_MARK, at):
            raise NotACall("no call")
        at = skip_blank(text, at + len(_MARK))
        return self._split_list(text, at) if text.startswith("[", at) else self._split_named(text, at)

    def join_calls(self, actions: Sequence[str]) -> str:
        """See `BareCalls`."""
        return f"{_MARK} [{', '.join(actions)}]"

    def _split_list(self, text: str, at: int) -> list[str]:
        calls: list[str] = []
        at = skip_blank(text, at + 1)
        while True:
            end = find_json_end(text, at)
            calls.append(text[at:end])
            at = skip_blank(text, end)
            if text.startswith("]", at) and is_end(text, at + 1):
                return calls
            if not text.startswith(",", at):
                raise NotACall("something else than calls in its list, or after it")
            at = skip_blank(text, at + 1)

    def _split_named(self, text: str, at: int) -> list[str]:
        calls: list[str] = []
        while True:
            name = _NAME.match(text, at)
            if name is None or not text.startswith(_ARGUMENTS, name.end()):
                raise NotACall("no list and no name with [ARGS] after [TOOL_CALLS]")
            start = skip_blank(text, name.end() + len(_ARGUMENTS))
            end = find_json_end(text, start)
            calls.append(f'{{"name": {json.dumps(name[1])}, "arguments": {text[start:end]}}}')
            if is_end(text, end):
                return calls
            at = skip_blank(text, end)
            if not text.startswith(_MARK, at):
                raise NotACall("something else after its call")
            at += len(_MARK)
