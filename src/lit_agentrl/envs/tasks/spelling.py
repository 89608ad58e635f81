"""Spell tools, tool calls, results and thoughts of messages as text in the contents."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from lit_agentrl.envs.tasks.messages import Messages
from lit_agentrl.episode import Message

Write = Callable[..., str]  # writes the JSON of calls as text, like `text.dialects.base.Dialect.write`


def spell_out(messages: Sequence[Message]) -> Messages:
    """Return messages with role and content only; the contents spell everything else.

    >>> spell_out([{"role": "assistant", "content": "", "calls": '[{"name": "look", "arguments": {}}]'}])
    [{'role': 'assistant', 'content': '<tool_call>{"name": "look", "arguments": {}}</tool_call>'}]
    """
    spelt = []
    for message in spell_calls(spell_tools(messages)):
        thought = f"<think>{message['thought']}</think>" if message.get("thought") else ""
        spelt.append({"role": message["role"], "content": thought + message["content"]})
    return spelt


def spell_calls(messages: Sequence[Message], write: Write | None = None) -> Messages:
    """Return messages whose contents end with their calls.

    Args:
        messages: the messages.
        write: writes the calls; None: each between ``<tool_call>`` tags.
    """
    spelt = []
    for message in messages:
        rest = {key: text for key, text in message.items() if key != "calls"}
        calls = [json.dumps(call, ensure_ascii=False) for call in json.loads(message.get("calls", "[]"))]
        if calls:
            tagged = "".join(f"<tool_call>{call}</tool_call>" for call in calls)
            rest["content"] += tagged if write is None else write(calls, thought=None)
        spelt.append(rest)
    return spelt


def spell_tools(messages: Sequence[Message]) -> Messages:
    """Return messages whose system message lists the tools that the first message carries."""
    tools = json.loads(messages[0].get("tools", "[]")) if messages else []
    rest = [{key: text for key, text in message.items() if key != "tools"} for message in messages]
    if not tools:
        return rest
    lines = "\n".join(["<tools>", *(json.dumps(tool, ensure_ascii=False) for tool in tools), "</tools>"])
    if rest[0]["role"] == "system":
        return [{**rest[0], "content": f"{rest[0]['content']}\n{lines}"}, *rest[1:]]
    return [{"role": "system", "content": lines}, *rest]


def spell_results(messages: Sequence[Message]) -> Messages:
    """Return messages in which results of tools became messages of the user.

    A message of the user after results is joined to them.
    """
    spelt: Messages = []
    for place, message in enumerate(messages):
        is_result = message["role"] == "tool"
        text = message["content"]
        if is_result:
            text = f"<tool_response>\n{text}\n</tool_response>"
        follows_result = bool(place) and messages[place - 1]["role"] == "tool"
        if follows_result and (is_result or message["role"] == "user"):
            spelt[-1]["content"] += f"\n{text}"
        else:
            spelt.append({**message, "role": "user" if is_result else message["role"], "content": text})
    return spelt
