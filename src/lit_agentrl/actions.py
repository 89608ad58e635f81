"""What one reply may do in a game: play names from a list, write free text, or call a tool by JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lit_agentrl.schemas import require_schema, short, why_not

Format = Literal["names", "text", "tools"]
FORMATS: tuple[Format, ...] = ("names", "text", "tools")

_DEEPEST = 64  # objects and lists within each other: what reads a call later has less of the stack left


@dataclass(frozen=True)
class ToolSpec:
    """A tool: what it is called, what it does, and the JSON schema of its arguments (an object).

    Raises:
        ValueError: a nameless tool, or a schema that is none, or one that would be fetched from elsewhere, or a pattern
            that cannot be searched for in linear time.
    """

    name: str
    description: str
    schema: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError(f"tool name={self.name!r} must hold a visible character")
        try:
            require_schema(self.schema)
        except ValueError as error:
            raise ValueError(f"the schema of tool {self.name} {error}") from error

    @property
    def text(self) -> str:
        """As it is told to a policy: one line of JSON, in the form that tool-calling models know."""
        told = {"name": self.name, "description": self.description, "parameters": self.schema}
        return json.dumps({"type": "function", "function": told}, ensure_ascii=False)


@dataclass(frozen=True)
class Actions:
    """What can be done now.

    Attributes:
        format: ``names``: one of ``names``; ``text``: any text; ``tools``: a call of one of ``tools``.
    """

    format: Format
    names: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"action_format={self.format!r} is unknown; choose one of {', '.join(FORMATS)}")
        if self.format == "names" and not self.names:
            raise ValueError("action_names=() must hold at least one action; None means free text")
        if self.format == "tools" and len({tool.name for tool in self.tools}) != max(len(self.tools), 1):
            raise ValueError("tools must be at least one, each of a name of its own")


@dataclass(frozen=True)
class ToolCall:
    """A call that a game can play; its text, canonical JSON, is the action."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return json.dumps({"name": self.name, "arguments": self.arguments})


@dataclass(frozen=True)
class BadCall:
    """Why a text is no call: ``malformed_call``, ``unknown_tool`` or ``bad_arguments``, and a message about it."""

    problem: str
    message: str


def read_call(text: str, tools: Iterable[ToolSpec], *, key: str = "arguments") -> ToolCall | BadCall:
    """The call that a text writes as ``{"name": …, "arguments": {…}}``: strict JSON, checked by the tool's schema.

    ``key`` names the arguments; some models were taught ``parameters``.

    Linear in the length of the text, and total: only a schema that cannot be applied makes it raise, never a text.

    Raises:
        ValueError: the schema of the tool refers to what is not there.

    >>> read_call('{"name": "go"}', [])
    BadCall(problem='malformed_call', message='a call has the keys name and arguments and no others')
    """
    try:
        call = json.loads(text, object_pairs_hook=_unrepeated, parse_constant=_refuse)
        _require_shallow(call)
        # numbers beyond any float, and halves of characters, which no tokenizer reads
        json.dumps(call, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits and endless nesting
        return BadCall("malformed_call", f"its call is not JSON ({str(error) or 'nested too deeply'})")
    if not isinstance(call, dict) or set(call) != {"name", key}:
        return BadCall("malformed_call", f"a call has the keys name and {key} and no others")
    name, arguments = call["name"], call[key]
    known = {tool.name: tool for tool in tools}
    if not isinstance(name, str) or name not in known:
        return BadCall(
            "unknown_tool", f"there is no tool {short(json.dumps(name))}; the tools are {', '.join(known)}"
        )
    if reason := why_not(arguments, known[name].schema):
        return BadCall("bad_arguments", f"{name} was called wrongly: {reason}")
    return ToolCall(name, arguments)


def _require_shallow(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        inside = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, dict | list)
        ]
        level = [value for values in inside for value in values]
        if not level:
            return
    raise ValueError("nested too deeply")


def _unrepeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
