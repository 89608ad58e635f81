"""A loop on the openai SDK with tools, as it was before any training: it answers questions about contacts."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI

NAMES = [
    "Ada Brandt",
    "Carla Mendes",
    "Farid Nasser",
    "Greta Vogel",
    "Noor Haddad",
    "Quentin Blake",
    "Sven Dahl",
]
CONTACTS = {name: f"555-{1709 * (number + 1):04d}" for number, name in enumerate(NAMES)}


def declare(name: str, argument: str) -> Any:
    """Return the declaration of a tool with one argument."""
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [declare("contacts_search", "query"), declare("finish", "answer")]


def answer(question: str, client: OpenAI, model: str = "policy", calls: int = 3) -> str:
    """Return the answer of the model, which may look into the contacts before."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(calls):
        message = (
            client.chat.completions.create(model=model, messages=messages, tools=TOOLS).choices[0].message
        )
        messages.append(message)
        if not message.tool_calls:
            messages.append({"role": "user", "content": "Call a tool."})
        for call in message.tool_calls or []:
            arguments = json.loads(call.function.arguments)
            if call.function.name == "finish":
                return str(arguments["answer"])
            rows = [{"name": n, "number": c} for n, c in CONTACTS.items() if arguments["query"] in n]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(rows)})
    return ""


if __name__ == "__main__":
    print(answer("The user asks: What is the phone number of Noor Haddad?", OpenAI()))
