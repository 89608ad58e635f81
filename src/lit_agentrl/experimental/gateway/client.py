"""A client for agent functions, of the standard library alone."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is on this machine


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
        body = json.dumps({"model": "policy", "messages": list(messages), **options}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.api_key}"}
        request = urllib.request.Request(f"{self.base_url}/chat/completions", body, headers)
        try:
            with _OPENER.open(request) as answer:
                message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
                return message
        except urllib.error.HTTPError as error:
            raise ValueError(f"status {error.code}: {error.read().decode(errors='replace')}") from None

    async def ask_async(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Return what `ask` returns, without blocking the event loop."""
        return await asyncio.to_thread(self.ask, messages, **options)
