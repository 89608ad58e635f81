"""Strict readers of server answers: an invalid answer is refused, never repaired."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One reply of a server, and the tokens it is billed for.

    It holds tokens with log-probs (nats), or a text and tool calls (JSON).
    """

    num_read: int  # prompt tokens
    num_written: int  # reply tokens
    num_cached: int = 0  # prompt tokens that were in the server's cache
    finish: str = "stop"
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    text: str = ""
    calls: list[str] = field(default_factory=list)


def read_tokens(raw: Any, prompt: Sequence[int], limit: int, vocabulary: int) -> Answer:
    """Read the reply to a prompt of token ids.

    Args:
        raw: The JSON.
        prompt: The ids that were sent; the server must return them as the ids it has read.
        limit: Maximum tokens of the reply.
        vocabulary: Ids must be below it.

    Raises:
        ValueError, KeyError, TypeError, IndexError: If the JSON is no such reply.
    """
    choice = raw["choices"][0]
    if choice.get("finish_reason") not in ("stop", "length"):
        raise ValueError(f"finish_reason={choice.get('finish_reason')}")
    tokens = choice.get("token_ids")
    if not isinstance(tokens, list) or choice.get("prompt_token_ids") is None:
        raise ValueError(
            "no token_ids and prompt_token_ids; the server must take return_token_ids, or use mode=chat"
        )
    if list(choice["prompt_token_ids"]) != list(prompt):
        raise ValueError("it has read other ids than it was sent")
    if not 0 < len(tokens) <= limit:
        raise ValueError(f"{len(tokens)} ids where 1 to {limit} were asked for")
    if not all(isinstance(t, int) and not isinstance(t, bool) and 0 <= t < vocabulary for t in tokens):
        raise ValueError("ids that are not in the vocabulary")
    logps = [_read_log_prob(value) for value in choice["logprobs"]["token_logprobs"]]
    if len(logps) != len(tokens):
        raise ValueError(f"{len(logps)} log-probs of {len(tokens)} ids")
    num_read, num_written, num_cached = _read_usage(raw, len(prompt), len(tokens))
    return Answer(num_read, num_written, num_cached, choice["finish_reason"], tokens, logps)


def read_scores(raw: Any, count: int) -> list[float]:
    """Read the log-probs of all prompt tokens but the first, from an echoed prompt.

    Raises:
        ValueError, KeyError, TypeError, IndexError: If there are none.
    """
    values = raw["choices"][0]["logprobs"]["token_logprobs"]
    if len(values) < count:
        raise ValueError(f"{len(values)} log-probs of {count} ids; the server must take echo with logprobs")
    return [_read_log_prob(value) for value in values[1:count]]


def read_chat(raw: Any) -> Answer:
    """Read the reply to chat messages.

    Raises:
        ValueError, KeyError, TypeError, IndexError: If the JSON is no such reply.
    """
    choice = raw["choices"][0]
    message, finish = choice["message"], choice.get("finish_reason")
    text = message.get("content")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"content is a {type(text).__name__}")
    (text or "").encode()  # raises at a lone surrogate, which no tokenizer or file accepts
    calls = []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, str):
            with suppress(ValueError):  # invalid JSON is the model's error, which the dialect handles
                arguments = json.loads(arguments)
        calls.append(json.dumps({"name": str(function["name"]), "arguments": arguments}, ensure_ascii=False))
    "".join(calls).encode()
    if text is None and not calls and finish not in ("stop", "length", "content_filter"):
        raise ValueError(f"neither content nor tool_calls, finish_reason={finish}")
    num_read, num_written, num_cached = _read_usage(raw, 0, 0)
    return Answer(num_read, num_written, num_cached, str(finish), text=text or "", calls=calls)


def _read_log_prob(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number > 1e-5:
        raise ValueError(f"a log-prob of {number}")
    return number


def _read_usage(raw: Any, num_read: int, num_written: int) -> tuple[int, int, int]:
    """Return the billed tokens read, written and cached; own counts if none are given."""
    usage = raw.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    num_cached = int(details.get("cached_tokens") or 0)
    num_read, num_written = (
        int(usage.get("prompt_tokens", num_read)),
        int(usage.get("completion_tokens", num_written)),
    )
    if num_written < 0 or not 0 <= num_cached <= num_read:
        raise ValueError(
            f"usage of {num_read} tokens read, {num_cached} of them cached, and {num_written} written"
        )
    return num_read, num_written, num_cached
