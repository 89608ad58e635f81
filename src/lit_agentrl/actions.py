"""Actions of a reply: names from a list, free text, or a JSON tool call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lit_agentrl.schemas import explain_mismatch, require_schema, shorten

Format = Literal["names", "text", "tools"]
FORMATS: tuple[Format, ...] = ("names", "text", "tools")

_MAX_DEPTH = 64  # levels of objects and lists; code that reads the call later has less stack left


@dataclass(frozen=True)
class ToolSpec:
    """A tool: its name, its description, and the JSON schema of its arguments (an object).

    Raises:
        ValueError: the name is blank, or the schema is invalid, refers to another document, or has a pattern that
            cannot be searched for in linear time.
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
        """The declaration shown to a policy: one line of JSON, as tool-calling models know it."""
        declaration = {"name": self.name, "description": self.description, "parameters": self.schema}
        return json.dumps({"type": "function", "function": declaration}, ensure_ascii=False)


@dataclass(frozen=True)
class Actions:
    """The actions that are possible in a state.

    Attributes:
        format: ``names``: one of ``names``; ``text``: any text; ``tools``: a call of one of ``tools``.

    Raises:
        ValueError: the format is unknown, or there are no names or tools to choose from.
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
            raise ValueError("tools must hold at least one tool, and their names must differ")


@dataclass(frozen=True)
class ToolCall:
    """A valid tool call; its text (canonical JSON) is the action."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return json.dumps({"name": self.name, "arguments": self.arguments})


@dataclass(frozen=True)
class BadCall:
    """An invalid call: ``malformed_call``, ``unknown_tool`` or ``bad_arguments``, with a message."""

    problem: str
    message: str


def read_call(text: str, tools: Iterable[ToolSpec], *, key: str = "arguments") -> ToolCall | BadCall:
    """Parse ``{"name": …, "arguments": {…}}`` as strict JSON and validate it against the tool's schema.

    The time is linear in the length of the text.  An invalid text gives a `BadCall` and never an exception.

    Args:
        text: the text of the call.
        tools: the tools that may be called.
        key: the name of the arguments; some models were trained to write ``parameters``.

    Raises:
        ValueError: the schema of the tool cannot be applied, for example because a ``$ref`` points nowhere.

    >>> read_call('{"name": "go"}', [])
    BadCall(problem='malformed_call', message='a call has the keys name and arguments and no others')
    """
    try:
        call = json.loads(text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)
        require_shallow(call)
        # refuses numbers beyond the range of a float, and lone surrogates, which tokenizers cannot read
        json.dumps(call, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # also integers with too many digits, and endless nesting
        return BadCall("malformed_call", f"its call is not JSON ({str(error) or 'nested too deeply'})")
    if not isinstance(call, dict) or set(call) != {"name", key}:
        return BadCall("malformed_call", f"a call has the keys name and {key} and no others")
    name, arguments = call["name"], call[key]
    known = {tool.name: tool for tool in tools}
    if not isinstance(name, str) or name not in known:
        return BadCall(
            "unknown_tool", f"there is no tool {shorten(json.dumps(name))}; the tools are {', '.join(known)}"
        )
    if reason := explain_mismatch(arguments, known[name].schema):
        # policies read these messages, so their words must not change
        return BadCall("bad_arguments", f"{name} was called wrongly: {reason}")
    return ToolCall(name, arguments)


def require_shallow(value: Any) -> None:
    """Check that a value of JSON is not nested too deeply for later readers.

    Raises:
        ValueError: the value is nested too deeply.
    """
    level = [value]
    for _ in range(_MAX_DEPTH):
        inside = [
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, dict | list)
        ]
        level = [value for values in inside for value in values]
        if not level:
            return
    raise ValueError("nested too deeply")


def _refuse_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("an object names a key twice")
    return mapping


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
