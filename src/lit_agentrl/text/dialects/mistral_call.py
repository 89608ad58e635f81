"""``[TOOL_CALLS] [{"name": …, "arguments": {…}}]``, as Mistral models write calls; thinking before it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.text.dialects.bare_calls import BareCalls, NotWritten, is_end, one_json, past_blank

_MARK, _ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
_NAME = re.compile(r"\s*([^\s\[\]{}]+)\s*")


@dataclass(frozen=True)
class MistralCalls(BareCalls):
    """A list in JSON after ``[TOOL_CALLS]``; or, as newer ones write, ``[TOOL_CALLS]name[ARGS]{…}`` for each call."""

    form: ClassVar[str] = "Write the call as JSON inside [ ], after [TOOL_CALLS], and nothing after it."

    def bodies(self, text: str) -> list[str]:
        """See `BareCalls`."""
        at = past_blank(text, 0)
        if not text.startswith(_MARK, at):
            raise NotWritten("no call")
        at = past_blank(text, at + len(_MARK))
        return self._listed(text, at) if text.startswith("[", at) else self._named(text, at)

    def joined(self, actions: Sequence[str]) -> str:
        """See `BareCalls`."""
        return f"{_MARK} [{', '.join(actions)}]"

    def _listed(self, text: str, at: int) -> list[str]:
        found: list[str] = []
        at = past_blank(text, at + 1)
        while True:
            end = one_json(text, at)
            found.append(text[at:end])
            at = past_blank(text, end)
            if text.startswith("]", at) and is_end(text, at + 1):
                return found
            if not text.startswith(",", at):
                raise NotWritten("something else than calls in its list, or after it")
            at = past_blank(text, at + 1)

    def _named(self, text: str, at: int) -> list[str]:
        found: list[str] = []
        while True:
            name = _NAME.match(text, at)
            if name is None or not text.startswith(_ARGUMENTS, name.end()):
                raise NotWritten("no list and no name with [ARGS] after [TOOL_CALLS]")
            start = past_blank(text, name.end() + len(_ARGUMENTS))
            end = one_json(text, start)
            found.append(f'{{"name": {json.dumps(name[1])}, "arguments": {text[start:end]}}}')
            if is_end(text, end):
                return found
            at = past_blank(text, end)
            if not text.startswith(_MARK, at):
                raise NotWritten("something else after its call")
            at += len(_MARK)
