"""The grammar ``[name(key="value"), …]``: calls in Python syntax, after optional thinking.

Llama 3.2 and 4 were taught this form.  The text is parsed and never run: a call holds the name of a tool and plain
values, and nothing else is accepted.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lit_agentrl.actions import Actions
from lit_agentrl.text.dialects.bare_calls import BareCalls, NotACall

_MARK = re.compile(r"(?:<\|\w{1,40}\|>|</s>)\Z")  # an end-of-reply token as text
_LONGEST_MARK = 44


@dataclass(frozen=True)
class PythonCalls(BareCalls):
    """A list of calls, or a single call, whose arguments are named plain values."""

    form: ClassVar[str] = (
        "Write the call as Python, with the name of each argument, inside [ ], and nothing after it."
    )
    example: ClassVar[str] = '{"name": "the_tool", "arguments": {"an_argument": "its value"}}'

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`.

        Raises:
            ValueError: If the name of a tool or argument is no Python identifier.
        """
        for tool in actions.tools:
            for name in (tool.name, *tool.schema.get("properties", {})):
                if not name.isidentifier() or keyword.iskeyword(name):
                    raise ValueError(
                        f"dialect=python_call cannot write {name!r} of the tool {tool.name}; choose dialect=tool_call"
                    )
        return super().instructions(actions, max_actions=max_actions, think=think)

    def split_calls(self, text: str) -> list[str]:
        """See `BareCalls`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in the policy's text are harmless
                expression = ast.parse(_strip_end_marks(text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise NotACall("no call in Python's form, or something else beside it") from None
        calls = expression.elts if isinstance(expression, ast.List) else [expression]
        if not calls:
            raise NotACall("no call")
        return [_write_json(call) for call in calls]

    def join_calls(self, actions: Sequence[str]) -> str:
        """See `BareCalls`."""
        return f"[{', '.join(_write_python(**json.loads(action)) for action in actions)}]"


def _strip_end_marks(text: str) -> str:
    text = text.strip()
    while mark := _MARK.search(text[-_LONGEST_MARK:]):
        text = text[: len(text) - len(mark[0])].rstrip()
    return text


def _write_python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _write_json(call: ast.expr) -> str:
    """Convert a call to JSON.

    Raises:
        NotACall: If the expression is no call, or has arguments other than named plain values.
    """
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise NotACall("something else than a call of a tool")
    names = [argument.arg for argument in call.keywords]
    if call.args or None in names:
        raise NotACall("an argument without its name")
    if len(set(names)) < len(names):
        raise NotACall("an argument twice")
    arguments = {argument.arg: _read_value(argument.value) for argument in call.keywords}
    return json.dumps({"name": call.func.id, "arguments": arguments})


def _read_value(node: ast.expr) -> Any:
    """Return a plain value: text, number, bool, None, or a list or dict of them.

    Raises:
        NotACall: If the expression is anything else.
    """
    match node:
        case ast.Constant(value=str() | int() | None as value):  # also True and False
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if (
            not isinstance(value, bool) and math.isfinite(value)
        ):
            return -value
        case ast.List(elts=elements):
            return [_read_value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return dict(zip(_read_keys(keys), map(_read_value, values), strict=True))
    raise NotACall("an argument that is no plain value")


def _read_keys(keys: Sequence[ast.expr | None]) -> Iterator[str]:
    for key in keys:
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise NotACall("a dict with a key that is no text")
        yield key.value
