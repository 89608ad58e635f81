"""Parse single messages of rows: role, content, thought, tool calls and weight."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lit_agentrl.envs.tasks.tables import parse_json
from lit_agentrl.episode import Message

ROLES = ("system", "user", "assistant", "tool")
_SAME_ROLES = {  # other names of the roles
    "developer": "system", "human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant",
    "function": "tool", "ipython": "tool", "observation": "tool", "tool_response": "tool",
    "function_response": "tool",
}  # fmt: skip
_CALL_ROLES = ("function_call", "tool_call")  # of messages whose content is a call
_THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning", "thought")
_WEIGHT_KEYS = ("weight", "train", "loss")
_CALL_KEYS = ("tool_calls", "function_call")
_REPLY_KEYS = (*_THOUGHT_KEYS, *_WEIGHT_KEYS, *_CALL_KEYS)
_PART_TYPES = (None, "text", "input_text", "output_text")


class BadRow(ValueError):
    """A row that cannot be used.

    Args:
        reason: a short name under which such rows are counted.
        message: one line.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def parse_message(value: object, column: str) -> Message:
    """Parse a message of a list.

    Raises:
        BadRow: the value is no message, or cannot be trained on.
    """
    role, content = _find_role(value, column)
    assert isinstance(value, Mapping)
    if role in _CALL_ROLES:
        calls: str = _format_calls(content, column)
        return {"role": "assistant", "content": "", "calls": calls, **_read_weight(value, column)}
    role = _SAME_ROLES.get(role, role)
    if role not in ROLES:
        valid = ", ".join((*ROLES, *_SAME_ROLES, *_CALL_ROLES))
        raise BadRow("unknown_role", f"column {column}: role {role[:40]!r} is unknown; valid: {valid}")
    message: Message = {"role": role}
    thoughts = _find_thoughts(value, column) if role == "assistant" else []
    message["content"] = _read_content(content, role, column, thoughts)
    if role == "assistant":
        message |= _read_reply(value, column, thoughts)
    if content is None and "calls" not in message and role == "assistant":
        raise BadRow("no_messages", f"column {column}: a message of {role} has no content; write a text")
    if not message["content"].strip() and "calls" not in message and role != "tool":
        raise BadRow("empty", f"column {column}: a message of {role} is blank; fill it in")
    require_whole_characters("".join(message.values()), column)
    return message


def require_whole_characters(text: str, column: str) -> None:
    """Check that a text holds no lone surrogate.

    Raises:
        BadRow: the text holds a lone surrogate.
    """
    if text != text.encode("utf-8", "replace").decode():
        raise BadRow(
            "half_character", f"column {column} holds half a character (a lone surrogate); write it whole"
        )


def list_keys(value: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the keys of a message that are read, and those that are not.

    Keys without a value are neither.
    """
    keys = {str(key) for key, part in value.items() if part is not None}
    role = value.get("role", value.get("from"))
    read_keys = {"role", "content"} if "role" in value else {"from", "value"}
    if "role" in value and "content" not in value:
        read_keys.add("value")
    if role in _CALL_ROLES:
        read_keys.update(_WEIGHT_KEYS)
    elif _SAME_ROLES.get(str(role), role) == "assistant":
        read_keys.update(_REPLY_KEYS)
    else:  # other messages are never trained on, so a weight of 0 counts as read
        read_keys.add("tool_call_id")  # read by `call_results.sort_results`
        read_keys.update(key for key in _WEIGHT_KEYS if not value.get(key))
    return keys & read_keys, keys - read_keys


def _find_role(value: object, column: str) -> tuple[str, Any]:
    """Return role and content of a message, also under ShareGPT's names."""
    role = value.get("role", value.get("from")) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(role, str):
        raise BadRow("no_messages", f"column {column} holds what is no message; write role and content")
    return role, value.get("content", value.get("value"))


def _read_content(content: Any, role: str, column: str, thoughts: list[str]) -> str:
    """Return the content as text; parts that are thoughts go to ``thoughts``."""
    if isinstance(content, list):
        thoughts += [_get_thought(part) for part in content if _is_thought(part) and role == "assistant"]
        texts = [part for part in content if not (_is_thought(part) and role == "assistant")]
        if all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in texts) and all(
            part.get("type") in _PART_TYPES for part in texts
        ):
            return "".join(part["text"] for part in texts)
        if kind := _find_other_part(content):
            raise BadRow(
                "not_text",
                f"column {column}: a message of {role} has a part of type {kind[:40]!r}; images, sound and files "
                "cannot be read, only text: leave such rows out",
            )
    if role == "tool" and not isinstance(content, str):
        return "" if content is None else json.dumps(content, ensure_ascii=False)
    if content is None and role == "assistant":
        return ""  # calls may stand alone
    if not isinstance(content, str):
        problem = "no content" if content is None else f"the content {str(content)[:40]!r}, which is no text"
        raise BadRow("no_messages", f"column {column}: a message of {role} has {problem}; write a text")
    return content


def _is_thought(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("thinking", "reasoning")


def _get_thought(part: Mapping[str, Any]) -> str:
    value = part.get("thinking", part.get("text", ""))
    if isinstance(value, list):
        value = "".join(str(each.get("text", "")) for each in value if isinstance(each, Mapping))
    return str(value)


def _find_other_part(content: list[Any]) -> str | None:
    """Return the type of the first part that is no text, such as ``image_url``."""
    kinds = [str(part.get("type") or "") for part in content if isinstance(part, Mapping)]
    return next((kind for kind in kinds if kind and kind not in _PART_TYPES), None)


def _find_thoughts(value: Mapping[str, Any], column: str) -> list[str]:
    """Return the thought of a reply, which several keys may hold; empty without one."""
    thoughts: list[str] = []
    for key in _THOUGHT_KEYS:
        text = value.get(key)
        if text is not None and not isinstance(text, str):
            raise BadRow("bad_thought", f"column {column}: {key} of a message is no text; write a text")
        if text and text.strip() and text not in thoughts:
            thoughts.append(text)
    if len(thoughts) > 1:
        keys = " and ".join(key for key in _THOUGHT_KEYS if value.get(key))
        raise BadRow("two_thoughts", f"column {column}: a message has {keys}, which differ; keep one")
    return thoughts


def _read_reply(value: Mapping[str, Any], column: str, thoughts: list[str]) -> Message:
    """Return those of thought, calls and weight that a reply has."""
    message: Message = {}
    if thought := "\n".join(text for text in thoughts if text.strip()):
        message["thought"] = thought
    call_keys = [key for key in _CALL_KEYS if value.get(key)]
    if len(call_keys) > 1:
        raise BadRow("bad_call", f"column {column}: a message has {' and '.join(call_keys)}; keep one")
    if call_keys and (calls := _format_calls(value[call_keys[0]], column)) != "[]":
        message["calls"] = calls
    return message | _read_weight(value, column)


def _read_weight(value: Mapping[str, Any], column: str) -> Message:
    for key in _WEIGHT_KEYS:
        weight = value.get(key)
        if weight is None:
            continue
        if not isinstance(weight, bool | int | float) or weight not in (0, 1):
            raise BadRow(
                "bad_weight",
                f"column {column}: {key} of a message is {str(weight)[:40]!r}; write 1 (learnt) or 0 (not learnt)",
            )
        if not weight:
            return {"weight": "0"}
    return {}


def _format_calls(calls: object, column: str) -> str:
    """Return the JSON of tool calls."""
    if isinstance(calls, str):
        calls = _parse_text(calls, "a tool call", column)
    if isinstance(calls, Mapping):
        calls = [calls]
    parsed = []
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRow(
                "bad_call", f"column {column}: a tool call has no function name; write name and arguments"
            )
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = (
                _parse_text(arguments, "arguments of a tool call", column) if arguments.strip() else None
            )
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, Mapping):
            raise BadRow(
                "bad_call", f"column {column}: arguments of a tool call are no object; write names and values"
            )
        parsed.append({"name": function["name"], "arguments": arguments})
    return json.dumps(parsed, ensure_ascii=False)


def _parse_text(text: str, what: str, column: str) -> Any:
    value = parse_json(text)
    if isinstance(value, ValueError):
        reason = str(value).partition(";")[0]
        raise BadRow("bad_call", f"column {column}: {what}: {reason}; write JSON") from value
    return value


def is_of_tool(message: Mapping[str, Any]) -> bool:
    """Return whether a message of a row is the result of a call."""
    role = message.get("role", message.get("from"))
    return message.get("tool_call_id") is not None or _SAME_ROLES.get(str(role), role) == "tool"


def has_calls_alone(message: Mapping[str, Any]) -> bool:
    """Return whether a message of a row holds only calls, without text or thought."""
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    has_calls = any(message.get(key) for key in _CALL_KEYS)
    has_text = bool(content) or any(message.get(key) for key in _THOUGHT_KEYS)
    return role in _CALL_ROLES or (has_calls and not has_text)


def join_calls(messages: Iterable[Message]) -> list[Message]:
    """Join messages that hold only calls to the reply or the calls before them."""
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined else {}
        is_call_alone = "calls" in message and not message["content"] and "thought" not in message
        same_weight = before.get("weight") == message.get("weight")
        if is_call_alone and before.get("role") == "assistant" and same_weight:
            calls = json.loads(before.get("calls", "[]")) + json.loads(message["calls"])
            joined[-1] = {**before, "calls": json.dumps(calls, ensure_ascii=False)}
        else:
            joined.append(message)
    return joined
