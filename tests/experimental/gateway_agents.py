"""Agent programs for tests: small games that are played through the chat endpoint."""

from __future__ import annotations

import re
from typing import Any

from lit_agentrl.experimental.gateway.client import Client


def guess(task: dict[str, Any], client: Client) -> dict[str, Any]:
    """One call; the reward is whether the reply names an arm."""
    messages = [{"role": "user", "content": "You 0 : P _ X"}]
    reply = client.ask(messages)
    return {"reward": float("Up" in reply["content"]), "success": "Up" in reply["content"]}


async def walk(task: dict[str, Any], client: Client) -> float:
    """Three calls in one dialogue; the reward counts the moves up."""
    messages = [{"role": "user", "content": "P _ X"}]
    points = 0.0
    for _ in range(3):
        reply = await client.ask_async(messages)
        points += len(re.findall("Up", reply["content"]))
        messages += [reply, {"role": "user", "content": "_ P X"}]
    return points
