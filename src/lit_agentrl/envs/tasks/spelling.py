"""Tools, tool calls and thoughts of messages, spelt in the contents as text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lit_agentrl.envs.tasks.messages import Messages
from lit_agentrl.episode import Message


def spell_out(messages: Sequence[Message]) -> Messages:
    """Return messages of role and content alone, whose contents spell all else.

    >>> spell_out([{"role": "assistant", "content": "", "calls": '[{"name": "look", "arguments": {}}]'}])
    [{'role': 'assistant', 'content': '<tool_call>{"name": "look", "arguments": {}}</tool_call>'}]
    """
    return [{"role": message["role"], "content": spell_reply(message)} for message in spell_tools(messages)]


def spell_reply(message: Message) -> str:
    """Return the content of a message with its thought and its calls."""
    thought = f"<think>{message['thought']}</think>" if message.get("thought") else ""
    calls = [json.dumps(call, ensure_ascii=False) for call in json.loads(message.get("calls", "[]"))]
    return thought + message["content"] + "".join(f"<tool_call>{call}</tool_call>" for call in calls)


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
