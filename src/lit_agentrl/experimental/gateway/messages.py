"""Chat requests in a canonical form, in which equal messages compare equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lit_agentrl.actions import Actions, ToolSpec, require_shallow

MOST_MESSAGES = 10_000  # of one request
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_UNDERSTOOD = {
    *("model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stop", "n", "stream"),
    *("stream_options", "return_token_ids", "response_format", "logprobs", "top_logprobs"),
}  # fmt: skip
# the run decides these; a request that sets one is answered, and the run says so once
_OVERRULED = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "logit_bias", "parallel_tool_calls", "reasoning_effort", "verbosity"),
)
# options that change no reply
_HARMLESS = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}


class BadRequest(ValueError):
    """An error that refuses a request with status 400; the program reads its message."""


@dataclass(frozen=True)
class CallOfTool:
    """A call of a tool by the assistant; ``arguments`` is JSON as Python writes it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ChatMessage:
    """A message of a request.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: Text of the message; may be empty.
        calls: Calls of tools, only in messages of the assistant.
        call_id: Id of the call that a message of a tool answers.
    """

    role: str
    content: str
    calls: tuple[CallOfTool, ...] = ()
    call_id: str = ""


@dataclass(frozen=True)
class ChatRequest:
    """A request for one reply.

    Attributes:
        messages: The dialogue so far; the last message is not the assistant's.
        tools: Declarations of tools in chat API format, each as canonical JSON.
        max_tokens: Maximum number of tokens of the reply; None: the limit of the run.
        stop: Texts that end the reply, and are not part of it.
        overruled: Options of the request that the run overrides, as ``name=value``.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[str, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    overruled: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ChatRequest:
        """Restore a request from `to_plain`."""
        messages = tuple(
            ChatMessage(
                each["role"],
                each["content"],
                tuple(CallOfTool(**call) for call in each["calls"]),
                each["call_id"],
            )
            for each in plain["messages"]
        )
        lists = {name: tuple(plain[name]) for name in ("tools", "stop", "overruled")}
        return cls(messages, max_tokens=plain["max_tokens"], **lists)


def read_request(body: Any) -> ChatRequest:
    """Read the body of a request.

    Each option is obeyed, refused, or overridden by the run and listed in ``overruled``.

    Raises:
        BadRequest: The body has an option or a message that the endpoint cannot obey.
    """
    try:
        return _read_request(body)
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _read_request(body: Any) -> ChatRequest:
    if not isinstance(body, Mapping):
        raise BadRequest("the body must be an object of JSON")
    given = {key: value for key, value in body.items() if value is not None}
    if unknown := sorted(set(given) - _UNDERSTOOD - set(_OVERRULED) - _HARMLESS):
        raise BadRequest(f"option {unknown[0]} is not supported here; leave it out")
    _check_fixed_options(given)
    tools = _read_tools(_get_list(given, "tools"))
    choice = given.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise BadRequest(f"tool_choice={shorten(choice)} is not supported; use auto or none")
    stop = given.get("stop", ())
    stop = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, Sequence) or not all(isinstance(text, str) and text for text in stop):
        raise BadRequest("stop must be a text or a list of texts, none empty")
    return ChatRequest(
        messages=_read_messages(given),
        tools=() if choice == "none" else tools,
        max_tokens=_read_max_tokens(given),
        stop=tuple(stop),
        overruled=(
            *(f"{name}={shorten(given[name])}" for name in _OVERRULED if name in given),
            *_list_names(given),
        ),
    )


def _list_names(given: Mapping[str, Any]) -> list[str]:
    """List the names of message authors, which have no effect because templates omit them."""
    messages = [each for each in given["messages"] if each["role"] != "tool" and each.get("name")]
    return [
        f"messages.name={shorten(name)}" for name in dict.fromkeys(str(each["name"]) for each in messages)
    ]


def _check_fixed_options(given: Mapping[str, Any]) -> None:
    if given.get("n", 1) != 1:
        raise BadRequest(f"n={shorten(given['n'])} is not supported; ask several times")
    form = given.get("response_format", {"type": "text"})
    if not isinstance(form, Mapping) or form.get("type") != "text":
        raise BadRequest("response_format is not supported; describe the form in a message")
    for name in ("stream", "return_token_ids", "logprobs"):
        if not isinstance(given.get(name, False), bool):
            raise BadRequest(f"{name}={shorten(given[name])} must be true or false")
    if not isinstance(given.get("stream_options", {}), Mapping):
        raise BadRequest("stream_options must be an object")
    if given.get("top_logprobs", 0) != 0:
        raise BadRequest("top_logprobs is not supported; leave it out")


def _read_max_tokens(given: Mapping[str, Any]) -> int | None:
    limits = [given[name] for name in ("max_tokens", "max_completion_tokens") if name in given]
    for limit in limits:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise BadRequest(f"max_tokens={shorten(limit)} must be a whole number >= 1")
    return min(limits) if limits else None


def _read_messages(given: Mapping[str, Any]) -> tuple[ChatMessage, ...]:
    listed = _get_list(given, "messages")
    if not 0 < len(listed) <= MOST_MESSAGES:
        raise BadRequest(f"messages must hold 1 to {MOST_MESSAGES} messages, and holds {len(listed)}")
    messages = tuple(_read_message(number, message) for number, message in enumerate(listed))
    if messages[-1].role == "assistant":
        raise BadRequest("the last message is the assistant's; this endpoint cannot continue a reply")
    open_ids: set[str] = set()
    for number, message in enumerate(messages):
        for call in message.calls:
            if call.id in open_ids:
                raise BadRequest(f"messages[{number}]: the id {shorten(call.id)} names two calls")
            open_ids.add(call.id)
        if message.role == "tool" and message.call_id not in open_ids:
            raise BadRequest(
                f"messages[{number}].tool_call_id={shorten(message.call_id)} names no call that waits for an answer"
            )
        open_ids.discard(message.call_id)
    return messages


def _read_message(number: int, message: Any) -> ChatMessage:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping):
        raise BadRequest(f"{where} must be an object")
    given = {key: value for key, value in message.items() if value not in (None, [], "")}
    role = _ROLES.get(given.pop("role", "")) if isinstance(given.get("role"), str) else None
    if role is None:
        raise BadRequest(f"{where}.role must be system, developer, user, assistant or tool")
    given.pop("name", None)  # see `_list_names`
    content = _read_content(where, given.pop("content", ""))
    calls = given.pop("tool_calls", ()) if role == "assistant" else ()
    call_id = given.pop("tool_call_id", "") if role == "tool" else ""
    if given:
        raise BadRequest(f"{where}.{min(given)} is not supported; leave it out")
    if not isinstance(call_id, str) or not isinstance(calls, Sequence) or isinstance(calls, str):
        raise BadRequest(f"{where}: tool_calls must be a list, and tool_call_id a text")
    return ChatMessage(role, content, tuple(_read_call(where, call) for call in calls), call_id)


def _read_content(where: str, content: Any) -> str:
    if isinstance(content, Sequence) and not isinstance(content, str):
        for part in content:
            if (
                not isinstance(part, Mapping)
                or part.get("type") != "text"
                or not isinstance(part.get("text"), str)
            ):
                raise BadRequest(f"{where}.content: only parts of type text are supported")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise BadRequest(f"{where}.content must be a text")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{where}.content holds half of a surrogate pair, which is no character") from None
    return content


def _read_call(where: str, call: Any) -> CallOfTool:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise BadRequest(f"{where}.tool_calls: each call must have the type function")
    texts = (call.get("id"), function.get("name"), function.get("arguments"))
    if not all(isinstance(text, str) and text for text in texts):
        raise BadRequest(f"{where}.tool_calls: each call must have an id, a name and arguments as texts")
    read = CallOfTool(*(_read_content(where, text) for text in texts))
    try:
        arguments = json.loads(read.arguments)
        require_shallow(arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise BadRequest(
            f"{where}.tool_calls: the arguments of {shorten(read.name)} must be an object of JSON, not "
            f"{shorten(read.arguments)}"
        )
    # frameworks parse the arguments and write them again: the same values are the same message
    return replace(read, arguments=json.dumps(arguments))


def _read_tools(tools: Sequence[Any]) -> tuple[str, ...]:
    """Convert the declarations of tools to canonical JSON.

    Raises:
        BadRequest: A tool has no name or no schema of an object, or two tools have the same name.
    """
    texts, specs = [], []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            raise BadRequest("tools: each tool must have the type function")
        declared: dict[str, Any] = {
            "name": function.get("name"),
            "description": function.get("description") or "",
            "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        }
        for name, kind in (("name", str), ("description", str), ("parameters", Mapping)):
            if not isinstance(declared[name], kind):
                wanted = "a text" if kind is str else "an object"
                raise BadRequest(f"tools: {name}={shorten(declared[name])} must be {wanted}")
        texts.append(json.dumps(declared))
        _read_content("tools", json.dumps(declared, ensure_ascii=False))
        try:
            require_shallow(declared)
            specs.append(ToolSpec(declared["name"], declared["description"], declared["parameters"]))
        except ValueError as error:
            raise BadRequest(f"tools: {error}") from None
    if specs:
        try:
            Actions("tools", (), tuple(specs))
        except ValueError as error:
            raise BadRequest(str(error)) from None
    return tuple(texts)


def _get_list(given: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = given.get(name, ())
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BadRequest(f"{name} must be a list")
    return value


def shorten(value: Any) -> str:
    """Return a value as JSON of at most 61 characters."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:60] + "…"


def hash_messages(before: bytes, messages: Sequence[ChatMessage]) -> bytes:
    """Extend the hash ``before`` of earlier messages by further messages."""
    for message in messages:
        parts = [message.role, message.content, [asdict(call) for call in message.calls], message.call_id]
        before = hashlib.blake2b(before + json.dumps(parts).encode(), digest_size=16).digest()
    return before


def hash_tools(tools: Sequence[str]) -> bytes:
    """Return the initial hash for `hash_messages` of a request with these tools."""
    return hashlib.blake2b(json.dumps(list(tools)).encode(), digest_size=16).digest()
