"""A model behind an API that lessons teach: how well it plays follows from how many of them it is told."""

from __future__ import annotations

import json
import re
from typing import Any

from lit_agentrl.envs.games.bandit import RISKY_NAMES
from tests.engines.server import chat_of

LESSON = "Take the risky one"
TAUGHT = "algo=training_free_grpo model=nano engine=openai engine.mode=chat env=bandit"


def taught(path: str, body: dict[str, Any], *, lessons: int = 1) -> dict[str, Any]:
    """Takes the better machine with chance ``(lessons + told) / (2 lessons)``, by the seed; where asked, adds one."""
    [message] = body["messages"]
    text: str = message["content"]
    assert path == "/v1/chat/completions" and message["role"] == "user"
    told = len(re.findall(r"^G\d+: Take", text, re.MULTILINE))
    if "New lessons" in text or "Changes were proposed" in text:
        changes: list[dict[str, Any]] = [{"operation": "add", "content": f"{LESSON}{' indeed' * told}"}]
        if told:
            changes.append({"operation": "update", "id": "G0", "content": f"{LESSON}, {told}"})
        return chat_of(json.dumps(changes))
    if not text.startswith("bandit\n"):
        return chat_of("The risky one paid.")
    names = text.splitlines()[-1].removesuffix(" ?").split(" or ")
    is_right = body["seed"] % (2 * lessons) < lessons + told
    [named] = [name for name in names if (name in RISKY_NAMES) == is_right]
    return chat_of(f"<think> x </think> <answer>{named}</answer>")
