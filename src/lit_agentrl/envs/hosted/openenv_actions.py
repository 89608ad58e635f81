"""What an OpenEnv server takes and shows, as texts: actions by their JSON schema, observations by their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.actions import ToolSpec
from lit_agentrl.checks import require
from lit_agentrl.envs.hosted.wire import list_in, text_in

_OF_TOOLS = {"tool_name", "arguments"}  # fields of an action that calls a tool of the server
LIST_TOOLS = {"type": "list_tools"}


@dataclass(frozen=True)
class Kind:
    """How an action is written.

    Attributes:
        field: the one field of an action that a reply fills; None: all of it is a call.
        values: by the names of the legal actions; None: any text.
        tools: whose call is the action; empty: it is no call.
        calls_server: whether these are tools that the server lists.
    """

    field: str | None = None
    values: Mapping[str, Any] | None = None
    tools: tuple[ToolSpec, ...] = ()
    calls_server: bool = False

    def data(self, action: str) -> dict[str, Any]:
        """The action as the server takes it."""
        if self.field is not None:
            return {self.field: action if self.values is None else self.values[action]}
        call = json.loads(action)
        if self.calls_server:
            return {"type": "call_tool", "tool_name": call["name"], "arguments": call["arguments"]}
        return dict(call["arguments"])


def kind_of(schema: Mapping[str, Any], field: str | None) -> Kind:
    """How actions of this schema are written, by the field that is named, or the only one that must be given.

    Texts with a list of values are names, others free text; an action of more fields is a call of the tool ``act``.
    Of actions that call tools the tools are still to be listed.

    Raises:
        ValueError: there is no such field, or the schema cannot be used.
    """
    fields = {name: each for name, each in dict(schema.get("properties", {})).items() if name != "metadata"}
    if field is None and set(fields) >= _OF_TOOLS:
        return Kind(calls_server=True)
    require(field is None or field in fields, "field", field, f"null or one of {', '.join(fields)}")
    must = [name for name in schema.get("required", ()) if name in fields]
    others = {name for name in fields if name not in must}
    chosen = field if field is not None else must[0] if len(must) == 1 and not others else None
    if chosen is not None:
        found = _followed(fields[chosen], schema)
        values = found.get("enum")
        if isinstance(values, list) and values and all(isinstance(value, str | int) for value in values):
            return Kind(chosen, {str(value): value for value in values})
        if found.get("type") == "string" and "const" not in found:
            return Kind(chosen)
        require(field is None, "field", field, "a text, or one with a list of values")
    told = {key: value for key, value in schema.items() if key in ("$defs", "required")}
    spec = {"type": "object", "properties": fields, **told}
    return Kind(tools=(ToolSpec("act", str(schema.get("description") or "Acts."), spec),))


def listed(observation: Mapping[str, Any]) -> Kind:
    """How the tools that a server lists are called.

    Raises:
        ValueError: it lists none, or what is none.
    """
    tools = []
    for each in list_in(observation, "tools"):
        require(isinstance(each, dict), "tools", str(each)[:80], "tools: name, description and input_schema")
        schema = each.get("input_schema")
        require(isinstance(schema, dict), "input_schema", str(schema)[:80], "an object")
        tools.append(ToolSpec(text_in(each, "name"), str(each.get("description") or ""), schema))
    require(bool(tools), "tools", [], "at least one, as the server lists them")
    return Kind(tools=tuple(tools), calls_server=True)


def shown(observation: Mapping[str, Any], show: Sequence[str] | None, most: int) -> str:
    """An observation as text: a field alone as it is, several with their names, a line each.

    Args:
        observation: as the server gave it.
        show: the fields to show, in this order; None: all but metadata.
        most: characters; what is more is counted.

    Raises:
        ValueError: there is no such field.
    """
    fields = [name for name in observation if name != "metadata"]
    if set(fields) == {"tool_name", "result", "error"}:  # of a call, whose name the policy knows
        fields = ["error" if observation["error"] else "result"]
    for name in show or ():
        require(name in observation, "show", name, f"one of {', '.join(observation)}")
    names = fields if show is None else list(show)
    texts = {name: _text(observation[name]) for name in names}
    text = "\n".join(
        texts.values() if len(names) == 1 else (f"{name} : {each}" for name, each in texts.items())
    )
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, list) and all(isinstance(each, dict) for each in content):  # the result of a tool
        return "\n".join(str(each.get("text", f"[{each.get('type')}]")) for each in content)
    return json.dumps(value, ensure_ascii=False)


def _followed(schema: Mapping[str, Any], within: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a ``$ref`` to a definition of the same schema refers to."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    found = dict(within.get("$defs", {})).get(name, schema)
    return found if isinstance(found, dict) else schema
