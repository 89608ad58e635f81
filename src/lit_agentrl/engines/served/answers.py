"""What servers answer, read strictly: an answer that is not what was asked for is refused, never mended."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One reply of a server: tokens with log-probs (nats), or a text and tool calls (JSON); and what is billed."""

    read: int  # tokens
    written: int
    cached: int = 0  # of those read
    finish: str = "stop"
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    text: str = ""
    calls: list[str] = field(default_factory=list)


def read_tokens(raw: Any, prompt: Sequence[int], limit: int, vocabulary: int) -> Answer:
    """The reply to a prompt of ids.

    Args:
        raw: the JSON.
        prompt: ids that were sent, which the server must give back as those it has read.
        limit: on the reply, in tokens.
        vocabulary: ids are below it.

    Raises:
        ValueError, KeyError, TypeError, IndexError: it is no such reply.
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
    logps = [_log_prob(value) for value in choice["logprobs"]["token_logprobs"]]
    if len(logps) != len(tokens):
        raise ValueError(f"{len(logps)} log-probs of {len(tokens)} ids")
    read, written, cached = _usage(raw, len(prompt), len(tokens))
    return Answer(read, written, cached, choice["finish_reason"], tokens, logps)


def read_scores(raw: Any, count: int) -> list[float]:
    """Log-probs of a prompt's tokens but the first, of a server that was asked to echo it.

    Raises:
        ValueError, KeyError, TypeError, IndexError: there are none.
    """
    values = raw["choices"][0]["logprobs"]["token_logprobs"]
    if len(values) < count:
        raise ValueError(f"{len(values)} log-probs of {count} ids; the server must take echo with logprobs")
    return [_log_prob(value) for value in values[1:count]]


def read_chat(raw: Any) -> Answer:
    """The reply to messages.

    Raises:
        ValueError, KeyError, TypeError, IndexError: it is no such reply.
    """
    choice = raw["choices"][0]
    message, finish = choice["message"], choice.get("finish_reason")
    text = message.get("content")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"content is a {type(text).__name__}")
    (text or "").encode()  # which fails at half a character, that no tokenizer and no file takes
    calls = []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, str):
            with suppress(
                ValueError
            ):  # the model's fault, which the dialect judges: the call is passed through
                arguments = json.loads(arguments)
        calls.append(json.dumps({"name": str(function["name"]), "arguments": arguments}, ensure_ascii=False))
    "".join(calls).encode()
    if text is None and not calls and finish not in ("stop", "length", "content_filter"):
        raise ValueError(f"neither content nor tool_calls, finish_reason={finish}")
    read, written, cached = _usage(raw, 0, 0)
    return Answer(read, written, cached, str(finish), text=text or "", calls=calls)


def _log_prob(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number > 1e-5:
        raise ValueError(f"a log-prob of {number}")
    return number


def _usage(raw: Any, read: int, written: int) -> tuple[int, int, int]:
    """Tokens read, written, and read from a cache, as they are billed; as counted here where nothing is said."""
    usage = raw.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    cached = int(details.get("cached_tokens") or 0)
    read, written = int(usage.get("prompt_tokens", read)), int(usage.get("completion_tokens", written))
    if written < 0 or not 0 <= cached <= read:
        raise ValueError(f"usage of {read} tokens read, {cached} of them cached, and {written} written")
    return read, written, cached
