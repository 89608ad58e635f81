"""What training adds to the loop: a proxy that speaks its dialect, a task, and a reward."""

from __future__ import annotations

import json
import os
import random
import socket
import threading

import uvicorn
from agent import CONTACTS, answer
from anthropic import Anthropic
from openenv.core.harness.capture.server import create_app

QUESTION = (
    "pocket\nturns 6 actions 6\nThe user asks: What is the phone number of {}? Answer none if there is none."
)


def open_client() -> Anthropic:
    """Return a client of a proxy, which asks the trainer's endpoint with the key of this episode."""
    proxy = create_app(
        llm_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"], model="policy"
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(proxy, log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    key = proxy.state.registry.create().session_id
    return Anthropic(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", api_key=key, max_retries=0)


if __name__ == "__main__":
    name = random.Random(json.loads(os.environ["LIT_AGENTRL_TASK"])["seed"]).choice(list(CONTACTS))
    found = answer(QUESTION.format(name), open_client())
    is_right = found == CONTACTS[name]
    print(json.dumps({"reward": 0.5 * bool(found) + 0.5 * is_right, "success": is_right}))
