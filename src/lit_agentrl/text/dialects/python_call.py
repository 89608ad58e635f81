"""``[name(key="value"), …]``, calls as Python writes them and Llama 3.2 and 4 were taught; thinking before them.

The text is parsed, and nothing of it is ever run: a call names a tool and plain values, and nothing else is a call.
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
from lit_agentrl.text.dialects.bare_calls import BareCalls, NotWritten

_MARK = re.compile(r"(?:<\|\w{1,40}\|>|</s>)\Z")  # what a tokenizer writes where a reply ends
_LONGEST_MARK = 44


@dataclass(frozen=True)
class PythonCalls(BareCalls):
    """A list of calls, or one call alone; each argument has its name, and a plain value."""

    form: ClassVar[str] = (
        "Write the call as Python, with the name of each argument, inside [ ], and nothing after it."
    )
    example: ClassVar[str] = '{"name": "the_tool", "arguments": {"an_argument": "its value"}}'

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`.

        Raises:
            ValueError: a tool or an argument has a name that Python cannot write.
        """
        for tool in actions.tools:
            for name in (tool.name, *tool.schema.get("properties", {})):
                if not name.isidentifier() or keyword.iskeyword(name):
                    raise ValueError(
                        f"dialect=python_call cannot write {name!r} of the tool {tool.name}; choose dialect=tool_call"
                    )
        return super().instructions(actions, max_actions=max_actions, think=think)

    def bodies(self, text: str) -> list[str]:
        """See `BareCalls`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a backslash in a text is no matter of the trainer's
                written = ast.parse(_without_end(text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise NotWritten("no call in Python's form, or something else beside it") from None
        calls = written.elts if isinstance(written, ast.List) else [written]
        if not calls:
            raise NotWritten("no call")
        return [_json_of(call) for call in calls]

    def joined(self, actions: Sequence[str]) -> str:
        """See `BareCalls`."""
        return f"[{', '.join(_python_of(**json.loads(action)) for action in actions)}]"


def _without_end(text: str) -> str:
    text = text.strip()
    while mark := _MARK.search(text[-_LONGEST_MARK:]):
        text = text[: len(text) - len(mark[0])].rstrip()
    return text


def _python_of(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _json_of(call: ast.expr) -> str:
    """A call in JSON.

    Raises:
        NotWritten: it is none, or has something else than plain values by name.
    """
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise NotWritten("something else than a call of a tool")
    names = [argument.arg for argument in call.keywords]
    if call.args or None in names:
        raise NotWritten("an argument without its name")
    if len(set(names)) < len(names):
        raise NotWritten("an argument twice")
    arguments = {argument.arg: _value_of(argument.value) for argument in call.keywords}
    return json.dumps({"name": call.func.id, "arguments": arguments})


def _value_of(node: ast.expr) -> Any:
    """A plain value: text, number, True, False, None, a list or a dict of them.

    Raises:
        NotWritten: it is something else.
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
            return [_value_of(each) for each in elements]
        case ast.Dict(keys=keys, values=values):
            return dict(zip(_texts(keys), map(_value_of, values), strict=True))
    raise NotWritten("an argument that is no plain value")


def _texts(keys: Sequence[ast.expr | None]) -> Iterator[str]:
    for key in keys:
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise NotWritten("a dict with a key that is no text")
        yield key.value
