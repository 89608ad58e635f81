"""Forms in which a chat template takes tools, tool calls, their results and thoughts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from lit_agentrl.text.chat import ChatRenderer

_TOOL = {
    "type": "function",
    "function": {
        "name": "q3",
        "description": "q4",
        "parameters": {"type": "object", "properties": {"q6": {"type": "string"}}, "required": ["q6"]},
    },
}
_CALLS = json.dumps([{"name": "q3", "arguments": {"q6": "q7"}}])
_WRONG = ("'q6'", '\\"q6')  # a dict as Python prints it, or JSON inside of JSON
_THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True)
class CallForm:
    """The form in which a template takes tool calls.

    Attributes:
        has_text_arguments: the arguments are JSON text; else an object.
        has_null_content: a call without text has null as its content; else "".
    """

    has_text_arguments: bool = False
    has_null_content: bool = False


@dataclass(frozen=True)
class TemplateForms:
    """The forms that a template knows.

    Attributes:
        lists_tools: it lists the tools of a dialogue.
        calls: how it takes tool calls; None: it leaves them out.
        shows_results: it shows messages of the role tool.
        thought_key: the key of a message whose thought it writes; empty: none.
        keeps_blocks: it shows think blocks inside the content of a reply.
    """

    lists_tools: bool
    calls: CallForm | None
    shows_results: bool
    thought_key: str
    keeps_blocks: bool

    def shape(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
        """Shape messages as the template takes them.

        The calls of a dialogue are numbered, since data sets need not name them: the n-th result of a reply belongs
        to its n-th call.
        """
        shaped: list[dict[str, Any]] = []
        awaited: list[tuple[str, str]] = []
        count = 0
        for message in messages:
            made: dict[str, Any] = {"role": message["role"], "content": message["content"]}
            if message.get("thought") and self.thought_key:
                made[self.thought_key] = message["thought"]
            if message.get("calls") and self.calls is not None:
                calls = json.loads(message["calls"])
                awaited = [(f"call{count + k:05d}", call["name"]) for k, call in enumerate(calls)]
                count += len(calls)
                made["tool_calls"] = [
                    _shape_call(call, call_id, self.calls)
                    for call, (call_id, _) in zip(calls, awaited, strict=True)
                ]
                if self.calls.has_null_content and not message["content"]:
                    made["content"] = None
            elif message["role"] == "tool" and awaited:
                made["tool_call_id"], made["name"] = awaited.pop(0)
            shaped.append(made)
        return shaped


# what every template takes
_NO_FORMS = TemplateForms(
    lists_tools=False, calls=None, shows_results=False, thought_key="", keeps_blocks=True
)


def _shape_call(call: Mapping[str, Any], call_id: str, form: CallForm) -> dict[str, Any]:
    arguments = call["arguments"]
    if form.has_text_arguments:
        arguments = json.dumps(arguments, ensure_ascii=False)
    # the id has nine letters and digits, as Mistral's templates require
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": call["name"], "arguments": arguments},
    }


def find_forms(chat: ChatRenderer) -> TemplateForms:
    """Find the forms of a template by rendering short dialogues."""
    user, reply = {"role": "user", "content": "u"}, {"role": "assistant", "content": "q2"}
    block = f"{chat.dialect.think_start or '<think>'}q1"
    closed = {**reply, "content": f"{block}{block.removesuffix('q1').replace('<', '</', 1)}q2"}
    calls = next((form for form in _list_call_forms() if _has_calls(chat, form)), None)
    forms = replace(_NO_FORMS, calls=calls)
    call = {"role": "assistant", "content": "", "calls": _CALLS} if calls else reply
    shown = _render(chat, forms, [user, call, {"role": "tool", "content": "q8"}], header=True)
    return TemplateForms(
        lists_tools='q4' in _render(chat, _NO_FORMS, [user], tools=[_TOOL], header=True),
        calls=calls,
        shows_results="q8" in shown,
        thought_key=next((key for key in _THOUGHT_KEYS if _has_thought(chat, key)), ""),
        keeps_blocks="q1" in _render(chat, _NO_FORMS, [user, closed], header=False),
    )  # fmt: skip


def _list_call_forms() -> list[CallForm]:
    return [CallForm(is_text, is_null) for is_text, is_null in product((False, True), repeat=2)]


def _has_calls(chat: ChatRenderer, form: CallForm) -> bool:
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "calls": _CALLS},
    ]
    forms = replace(_NO_FORMS, calls=form)
    for tools in ([_TOOL], []):
        opened = _render(chat, forms, messages[:1], tools=tools, header=False)
        text = _render(chat, forms, messages, tools=tools, header=False).removeprefix(opened)
        is_whole = all(part in text for part in ("q3", "q6", "q7"))
        if is_whole and not any(wrong in text for wrong in _WRONG):
            return True
    return False


def _has_thought(chat: ChatRenderer, key: str) -> bool:
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "q2", "thought": "q1"},
    ]
    return "q1" in _render(chat, replace(_NO_FORMS, thought_key=key), messages, header=False)


def _render(
    chat: ChatRenderer,
    forms: TemplateForms,
    messages: Sequence[Mapping[str, str]],
    *,
    tools: Sequence[Any] = (),
    header: bool,
) -> str:
    """Return the rendering of messages; empty if the template refuses them."""
    try:
        return chat.render_text(forms.shape(messages), tools=tools, header=header)
    except ValueError:
        return ""
