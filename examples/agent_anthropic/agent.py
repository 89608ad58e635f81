"""A loop on the anthropic SDK with tools, as it was before any training: it answers questions about contacts."""

from __future__ import annotations

import json
from typing import Any

from anthropic import Anthropic

NAMES = ["Ada Brandt", "Carla Mendes", "Farid Nasser", "Greta Vogel", "Noor Haddad", "Sven Dahl"]
CONTACTS = {name: f"555-{1709 * (number + 1):04d}" for number, name in enumerate(NAMES)}


def declare(name: str, argument: str) -> Any:
    """Return the declaration of a tool with one argument."""
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"name": name, "input_schema": schema}


TOOLS = [declare("contacts_search", "query"), declare("finish", "answer")]


def answer(question: str, client: Anthropic, model: str = "policy", calls: int = 3) -> str:
    """Return the answer of the model, which may look into the contacts before."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(calls):
        reply = client.messages.create(model=model, messages=messages, tools=TOOLS, max_tokens=48)
        messages.append({"role": "assistant", "content": reply.content})
        results: list[Any] = []
        for block in reply.content:
            if block.type != "tool_use":
                continue
            if block.name == "finish":
                return str(block.input["answer"])
            rows = [{"name": n, "number": c} for n, c in CONTACTS.items() if block.input["query"] in n]
            results.append({"type": "tool_result", "tool_use_id": block.id, "content": json.dumps(rows)})
        messages.append({"role": "user", "content": results or "Call a tool."})
    return ""


if __name__ == "__main__":
    print(answer("The user asks: What is the phone number of Noor Haddad?", Anthropic()))
