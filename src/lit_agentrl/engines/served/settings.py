"""The options of an engine behind a server, checked before the network exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from lit_agentrl.checks import require, require_number, require_one_of, require_whole
from lit_agentrl.engines.base import Capabilities
from lit_agentrl.engines.served.http import Server
from lit_agentrl.engines.served.pushing import check_weights_folder
from lit_agentrl.engines.served.usage import Usage

_MAX_CONCURRENCY = 4096  # each concurrent request has a thread


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The options of `OpenAIEngine` that concern the server; that class describes them.

    Raises:
        ValueError: If an option has an invalid value; the message names the option.
    """

    url: str
    mode: str
    model: str
    key_variable: str | None = None
    concurrency: int = 16
    timeout_s: float = 120.0
    retries: int = 5
    backoff_s: float = 0.5
    stop_texts: Sequence[str] = ()
    body: Mapping[str, Any] | None = None
    price_in: float = 0.0
    price_out: float = 0.0
    price_cached: float | None = None
    weights_folder: str | None = None
    push: Sequence[Mapping[str, Any]] = ()
    max_sync_gap: float = 1e-3

    def __post_init__(self) -> None:
        require_one_of("mode", self.mode, ("tokens", "chat"))
        require_whole("concurrency", self.concurrency, 1, _MAX_CONCURRENCY)
        require_number("max_sync_gap", self.max_sync_gap, "a number >= 0", lambda value: value >= 0)
        Usage(self.price_in, self.price_out, self.price_cached)  # checks the prices
        require(isinstance(self.model, str), "model", self.model, "a name; write it in quotes")
        require(
            self.body is None or isinstance(self.body, Mapping),
            "body", self.body, "entries of a request, such as {max_tokens: null}",
        )  # fmt: skip
        is_list = isinstance(self.stop_texts, Sequence) and not isinstance(self.stop_texts, str)
        require(
            is_list and all(isinstance(text, str) and text for text in self.stop_texts),
            "stop_texts", self.stop_texts, 'a list of texts, such as ["</answer>"]',
        )  # fmt: skip
        if self.weights_folder is not None:
            check_weights_folder(self.weights_folder, self.push)
        with self.make_server():  # checks the options of the client
            pass

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ServerSettings:
        """Take the settings from an engine's options, which may have more entries."""
        return cls(**{field.name: options[field.name] for field in fields(cls) if field.name in options})

    @property
    def is_chat(self) -> bool:
        """True if the server exchanges texts, not token ids."""
        return self.mode == "chat"

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of an engine with these options."""
        weights: Literal["given", "none"] = "none" if self.is_chat or self.weights_folder is None else "given"
        return Capabilities(
            exact_log_probs=not self.is_chat, fork=not self.is_chat, token_ids=not self.is_chat, entropies=False,
            weights=weights, is_server=True,
        )  # fmt: skip

    def make_server(self) -> Server:
        """Create a client of the server."""
        return Server(
            self.url,
            key_variable=self.key_variable,
            timeout_s=self.timeout_s,
            retries=self.retries,
            backoff_s=self.backoff_s,
        )
