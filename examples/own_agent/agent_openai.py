"""The same agent on the openai SDK, as an async function that one process calls for many episodes."""

from __future__ import annotations

from typing import Any

from examples.own_agent.corridor import Corridor


async def play(task: dict[str, Any], client: Any) -> float:
    """Play one episode, and return its reward."""
    from openai import AsyncOpenAI

    game = Corridor(task)
    messages: list[Any] = [{"role": "user", "content": game.text}]
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as model:
        while game.turns and not game.reward:
            answer = await model.chat.completions.create(model="policy", messages=messages)
            messages.append(answer.choices[0].message)
            game.move(messages[-1].content)
            messages.append({"role": "user", "content": f"reward +0.0\n{game.text}"})
    return game.reward
