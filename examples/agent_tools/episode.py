"""What training adds to the loop: a task, and a reward."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from openai import OpenAI

from examples.agent_tools.agent import CONTACTS, answer


@cache
def open_client(base_url: str) -> OpenAI:
    """Return a client, which keeps its connections from one episode to the next."""
    return OpenAI(base_url=base_url, api_key="none", max_retries=0)


def play(task: dict[str, Any], client: Any) -> dict[str, Any]:
    """Ask for one number; the end counts half, and the right number the rest."""
    name = random.Random(task["seed"]).choice(list(CONTACTS))
    model = open_client(client.base_url).with_options(api_key=client.api_key)
    found = answer(
        f"pocket\nturns 6 actions 6\nThe user asks: What is the phone number of {name}? Answer none if there is none.",
        model,
    )
    return {"reward": 0.5 * bool(found) + 0.5 * (found == CONTACTS[name]), "success": found == CONTACTS[name]}
