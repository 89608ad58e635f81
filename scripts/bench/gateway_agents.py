"""Agent functions for benchmarks of the chat endpoint.

Imports are light, because each process repeats them.
All hold the same dialogue.  Those named ``count_…`` return the CPU time of their own process, in milliseconds a call.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import urlsplit

BOARD = "turns 4 actions 8\n_ P _ _ G _"
# the texts that the native game writes above a board
EARNED, COMPLAINT = (
    "Your last turn earned +0.0 points.\n",
    "Your last reply was invalid: it had no answer block.\n",
)
TURNS = 5
Ask = Callable[[list[Any]], Any]  # returns the reply to messages as a message


def hold_dialogue(ask: Ask) -> None:
    """Make `TURNS` calls with the texts of the native game."""
    messages: list[Any] = [{"role": "user", "content": BOARD}]
    for _ in range(TURNS):
        reply = ask(messages)
        content = reply["content"] if isinstance(reply, dict) else reply.content
        complaint = "" if "<answer>" in str(content) else COMPLAINT
        messages += [reply, {"role": "user", "content": complaint + EARNED + BOARD}]


def play(task: dict[str, Any], client: Any) -> float:
    """Hold the dialogue with the client of the trainer."""
    hold_dialogue(client.ask)
    return 1.0


def ask_once(task: dict[str, Any], client: Any) -> float:
    """Make one call."""
    client.ask([{"role": "user", "content": BOARD}])
    return 1.0


def end_at_once(task: dict[str, Any], client: Any) -> float:
    """Make no call."""
    return 1.0


def count_urllib(task: dict[str, Any], client: Any) -> float:
    """Count the client of the trainer, which connects for each call."""
    return _count(client.ask)


def count_http(task: dict[str, Any], client: Any) -> float:
    """Count plain HTTP over one connection an episode."""
    place = urlsplit(client.base_url)
    line = http.client.HTTPConnection(place.hostname or "", place.port)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {client.api_key}"}

    def ask(messages: list[Any]) -> Any:
        body = json.dumps({"model": "policy", "messages": messages})
        line.request("POST", f"{place.path}/chat/completions", body, headers)
        with line.getresponse() as answer:
            data = answer.read()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {data.decode(errors='replace')}")
        return json.loads(data)["choices"][0]["message"]

    try:
        return _count(ask)
    finally:
        line.close()


def count_openai(task: dict[str, Any], client: Any) -> float:
    """Count the ``openai`` SDK, with one client for all episodes."""
    model = _open_client(client.base_url).with_options(api_key=client.api_key)

    def ask(messages: list[Any]) -> Any:
        return model.chat.completions.create(model="policy", messages=messages).choices[0].message

    return _count(ask)


def _count(ask: Ask) -> float:
    began = time.process_time()
    hold_dialogue(ask)
    return 1000 * (time.process_time() - began) / TURNS


@cache
def _open_client(base_url: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=base_url, api_key="none", max_retries=0)
