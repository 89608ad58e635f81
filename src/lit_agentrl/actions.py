"""What one reply may do in a game: play names from a list, write free text, or call a tool by JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Format = Literal["names", "text", "tools"]
FORMATS: tuple[Format, ...] = ("names", "text", "tools")

_KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
    "null": type(None),
}  # fmt: skip
_SAID = frozenset({"description", "title", "default", "examples"})  # keywords that forbid nothing
_CHECKED = frozenset(
    {"type", "enum", "properties", "required", "additionalProperties", "items", "anyOf", "minimum", "maximum"}
)


@dataclass(frozen=True)
class ToolSpec:
    """A tool: what it is called, what it does, and the JSON schema of its arguments (an object).

    Raises:
        ValueError: a nameless tool, or a schema with a keyword that :func:`why_not` does not check.
    """

    name: str
    description: str
    schema: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError(f"tool name={self.name!r} must hold a visible character")
        if self.schema.get("type") != "object":
            raise ValueError(f"the schema of tool {self.name} must have type: object")
        _require_checkable(self.schema, self.name)

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


def read_call(text: str, tools: Iterable[ToolSpec]) -> ToolCall | BadCall:
    """The call that a text writes as ``{"name": …, "arguments": {…}}``: strict JSON, checked by the tool's schema.

    Linear in the length of the text and total: no text makes it raise.

    >>> read_call('{"name": "go"}', [])
    BadCall(problem='malformed_call', message='a call has the keys name and arguments and no others')
    """
    try:
        call = json.loads(text, object_pairs_hook=_unrepeated, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits and endless nesting
        return BadCall("malformed_call", f"its call is not JSON ({str(error) or 'nested too deeply'})")
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        return BadCall("malformed_call", "a call has the keys name and arguments and no others")
    name, arguments = call["name"], call["arguments"]
    known = {tool.name: tool for tool in tools}
    if not isinstance(name, str) or name not in known:
        return BadCall(
            "unknown_tool", f"there is no tool {json.dumps(name)}; the tools are {', '.join(known)}"
        )
    schema = {"additionalProperties": False, **known[name].schema}
    if reason := why_not(arguments, schema, "arguments"):
        return BadCall("bad_arguments", f"{name} was called wrongly: {reason}")
    return ToolCall(name, arguments)


def why_not(value: Any, schema: Mapping[str, Any], where: str) -> str:
    """Why a JSON value does not follow a schema; empty if it does."""
    kinds = schema.get("type", list(_KINDS))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(_is_of(value, kind) for kind in kinds):
        return f"{where} must be of type {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} must be one of {json.dumps(schema['enum'])}"
    if "anyOf" in schema and all(why_not(value, option, where) for option in schema["anyOf"]):
        return f"{where} is none of what it may be"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            return f"{where} must be at least {schema['minimum']}"
        return f"{where} must be at most {schema['maximum']}" if value > schema.get("maximum", value) else ""
    if isinstance(value, list) and "items" in schema:
        found = (why_not(item, schema["items"], f"{where}[{i}]") for i, item in enumerate(value))
        return next((reason for reason in found if reason), "")
    return _why_no_object(value, schema, where) if isinstance(value, dict) else ""


def _why_no_object(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> str:
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where}.{name} is missing"
    for name, item in value.items():
        rule = properties.get(name, schema.get("additionalProperties", True))
        if rule is False:
            return f"{where}.{name} is unknown; known: {', '.join(properties) or 'none'}"
        if isinstance(rule, Mapping) and (reason := why_not(item, rule, f"{where}.{name}")):
            return reason
    return ""


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # which Python takes for a number
        return kind == "boolean"
    return isinstance(value, _KINDS[kind])


def _require_checkable(schema: Mapping[str, Any], tool: str) -> None:
    """Refuse what would be promised to the policy and never checked."""
    if unknown := sorted(set(schema) - _SAID - _CHECKED):
        raise ValueError(f"the schema of tool {tool} has {unknown[0]}, which is not checked; leave it out")
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in _KINDS:
            raise ValueError(f"the schema of tool {tool} has type {kind}; choose one of {', '.join(_KINDS)}")
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for further in (*inner, schema.get("items", {}), schema.get("additionalProperties", {})):
        if further and isinstance(further, Mapping):
            _require_checkable(further, tool)


def _unrepeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
