"""Actions and observations of OpenEnv servers as texts, by their JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.actions import ToolSpec
from lit_agentrl.checks import require
from lit_agentrl.envs.hosted.wire import get_list, get_text

_TOOL_FIELDS = {"tool_name", "arguments"}  # fields of an action that calls a tool of the server
LIST_TOOLS = {"type": "list_tools"}


@dataclass(frozen=True)
class ActionFormat:
    """The format of an action.

    Attributes:
        field: the one field of an action that a reply fills; None: the action is a tool call.
        values: value of the field by the name of the legal action; None: any text is legal.
        tools: tools whose call is the action; empty: the action is not a tool call.
        calls_server: whether these are tools of the server.
    """

    field: str | None = None
    values: Mapping[str, Any] | None = None
    tools: tuple[ToolSpec, ...] = ()
    calls_server: bool = False

    def convert(self, action: str) -> dict[str, Any]:
        """Convert an action to what the server expects."""
        if self.field is not None:
            return {self.field: action if self.values is None else self.values[action]}
        call = json.loads(action)
        if self.calls_server:
            return {"type": "call_tool", "tool_name": call["name"], "arguments": call["arguments"]}
        return dict(call["arguments"])


def derive_format(schema: Mapping[str, Any], field: str | None) -> ActionFormat:
    """Derive the format of actions from their schema.

    A reply fills ``field`` or, if it is None, the only required field.  The values that the schema lists for it are the
    legal actions; without such a list, any text is legal.  An action of several fields is a call of the tool ``act``.
    If actions call tools of the server, the result lacks them; `parse_listed` reads them.

    Raises:
        ValueError: the field is unknown, or the schema cannot be used.
    """
    fields = dict(schema.get("properties", {}))
    fields.pop("metadata", None)
    if field is None and set(fields) >= _TOOL_FIELDS:
        return ActionFormat(calls_server=True)
    require(field is None or field in fields, "field", field, f"null or one of {', '.join(fields)}")
    required = [name for name in schema.get("required", ()) if name in fields]
    optional = {name for name in fields if name not in required}
    only_field = field if field is not None else required[0] if len(required) == 1 and not optional else None
    if only_field is not None:
        field_schema = _resolve_reference(fields[only_field], schema)
        values = field_schema.get("enum")
        if isinstance(values, list) and values and all(isinstance(value, str | int) for value in values):
            return ActionFormat(only_field, {str(value): value for value in values})
        if field_schema.get("type") == "string" and "const" not in field_schema:
            return ActionFormat(only_field)
        require(field is None, "field", field, "a text, or one with a list of values")
    parts = {key: value for key, value in schema.items() if key in ("$defs", "required")}
    spec = {"type": "object", "properties": fields, **parts}
    return ActionFormat(tools=(ToolSpec("act", str(schema.get("description") or "Acts."), spec),))


def parse_listed(observation: Mapping[str, Any]) -> ActionFormat:
    """Parse the tools that a server lists.

    Raises:
        ValueError: there are none, or an entry is invalid.
    """
    tools = []
    for tool in get_list(observation, "tools"):
        require(isinstance(tool, dict), "tools", str(tool)[:80], "tools: name, description and input_schema")
        schema = tool.get("input_schema")
        require(isinstance(schema, dict), "input_schema", str(schema)[:80], "an object")
        tools.append(ToolSpec(get_text(tool, "name"), str(tool.get("description") or ""), schema))
    require(bool(tools), "tools", [], "at least one, as the server lists them")
    return ActionFormat(tools=tuple(tools), calls_server=True)


def format_observation(observation: Mapping[str, Any], show: Sequence[str] | None, max_chars: int) -> str:
    """Format an observation as text: a single field alone, several as named lines.

    Args:
        observation: the server's observation.
        show: the fields to show, in this order; None: all but metadata.
        max_chars: number of characters to show; the text then says how many more there are.

    Raises:
        ValueError: a field is unknown.
    """
    fields = [name for name in observation if name != "metadata"]
    # the policy knows the name of the tool that it called
    if set(fields) == {"tool_name", "result", "error"}:
        fields = ["error" if observation["error"] else "result"]
    for name in show or ():
        require(name in observation, "show", name, f"one of {', '.join(observation)}")
    names = fields if show is None else list(show)
    texts = {name: _format_value(observation[name]) for name in names}
    text = "\n".join(
        texts.values() if len(names) == 1 else (f"{name} : {value}" for name, value in texts.items())
    )
    return (
        text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text) - max_chars} more characters)"
    )


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, list) and all(isinstance(item, dict) for item in content):  # the result of a tool
        return "\n".join(str(item.get("text", f"[{item.get('type')}]")) for item in content)
    return json.dumps(value, ensure_ascii=False)


def _resolve_reference(schema: Mapping[str, Any], root_schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a ``$ref`` to a definition of the same schema."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definition = dict(root_schema.get("$defs", {})).get(name, schema)
    return definition if isinstance(definition, dict) else schema
