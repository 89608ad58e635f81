"""A client for agent functions, which needs only the standard library."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy could not reach the server


class Client:
    """A chat endpoint whose replies the policy writes.

    Attributes:
        base_url, api_key: For SDKs: ``openai.OpenAI(base_url=client.base_url, api_key=client.api_key)``.
    """

    def __init__(self, base_url: str, api_key: str) -> None:
        self.base_url = base_url
        self.api_key = api_key

    def ask(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Return the reply to messages as a message; ``options`` are those of a chat request.

        Raises:
            ValueError: The request is refused; the message says why.
        """
        answer = self._post("chat/completions", {"model": "policy", "messages": list(messages), **options})
        message: dict[str, Any] = answer["choices"][0]["message"]
        return message

    def reward(
        self, reward: float, completion_id: str | None = None, *, reward_id: str | None = None
    ) -> None:
        """Post a reward for the latest reply, or for the reply ``completion_id``.

        A reward with a ``reward_id`` counts once, even if it is posted again.

        Raises:
            ValueError: The reward is refused; the message says why.
        """
        self._post("rewards", {"reward": reward, "completion_id": completion_id, "reward_id": reward_id})

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.api_key}"}
        request = urllib.request.Request(f"{self.base_url}/{path}", json.dumps(body).encode(), headers)
        try:
            with _OPENER.open(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ValueError(f"status {error.code}: {error.read().decode(errors='replace')}") from None

    async def ask_async(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Return what `ask` returns, without blocking the event loop."""
        return await asyncio.to_thread(self.ask, messages, **options)
