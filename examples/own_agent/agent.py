"""An agent with plain HTTP and a loop, as a program of any language could be; started once an episode."""

import json
import os
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from corridor import Corridor


def ask(messages: list[dict[str, str]]) -> dict[str, str]:
    """Return the next message of the assistant."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        message: dict[str, str] = json.load(answer)["choices"][0]["message"]
        return message


game = Corridor(json.loads(os.environ["LIT_AGENTRL_TASK"]))
messages = [{"role": "user", "content": game.text}]
while game.turns and not game.reward:
    messages.append(ask(messages))
    game.move(messages[-1]["content"])
    messages.append({"role": "user", "content": f"reward +0.0\n{game.text}"})
print(json.dumps({"reward": game.reward}))
