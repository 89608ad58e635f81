"""A client for JSON over HTTP with retries; the only file that imports httpx."""

from __future__ import annotations

import email.utils
import importlib.util
import json
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lit_agentrl.checks import require, require_number, require_whole

T = TypeVar("T")
_RETRIED_STATUSES = (408, 409, 425, 429, 500, 502, 503, 504, 529)  # statuses of failures that may pass
_MAX_WAIT_S = 120.0  # longest wait, whatever the server asks for
_MAX_SHOWN = 160  # characters of an answer in an error message
_MAX_BYTES = 2**26  # size limit of one answer
_PROBE_TIMEOUT_S = 5.0  # timeout of the first contact


class ServerError(ValueError):
    """A server gave no usable answer; the message is one line without any key."""


class _RetryableError(Exception):
    """A failure that is worth a retry.

    ``wait_s`` is the time that the server asks to wait; 0 if it does not say.
    """

    def __init__(self, why: str, kind: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.kind, self.wait_s = kind, wait_s


class Server:
    """A client of one server; safe to use from several threads.

    A failed request is sent again after a pause that doubles each time and is multiplied by a random factor between
    0.5 and 1.5, so that many clients do not retry at the same moment; the factor changes when a request is sent, never
    its content.  After ``429`` or ``503`` with ``Retry-After`` all threads wait.

    Args:
        url: URL without the common part of all paths, such as ``http://localhost:8000``.
        key_variable: Environment variable that holds the key; None sends no key.  The key is read once, kept only by
            the client, and removed from every message.
        timeout_s: Time limit of each whole answer, in seconds.
        retries: How often a failed request is sent again.
        backoff_s: The first pause, in seconds.

    Attributes:
        counts: Number of ``requests`` sent; of retries by cause (``retried_timeout``, ``retried_connection``,
            ``retried_status_429``, ``retried_malformed``, …); and of requests given up (``failed``).

    Raises:
        ValueError: If httpx is missing, or an option has an invalid value.
    """

    def __init__(
        self, url: str, *, key_variable: str | None, timeout_s: float, retries: int, backoff_s: float
    ) -> None:
        if importlib.util.find_spec("httpx") is None:
            raise ValueError("needs the package httpx; install it with: pip install 'lit-agentrl[server]'")
        parts = urlsplit(url)
        require(
            parts.scheme in ("http", "https") and bool(parts.hostname),
            "url",
            url.rpartition("@")[2],  # without a password
            "http://HOST:PORT or https://HOST:PORT",
        )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "url holds a user, a password or a query; put a key into a variable, named by key_variable"
            )
        if parts.path.rstrip("/").endswith("/v1"):
            raise ValueError("url ends in /v1, which each request adds itself; leave it out")
        require_number("timeout_s", timeout_s, "a number > 0", lambda value: value > 0)
        require_whole("retries", retries, 0)
        require_number("backoff_s", backoff_s, "a number >= 0", lambda value: value >= 0)
        self._key = ""
        if key_variable is not None:
            self._key = os.environ.get(key_variable, "").strip()
            if not self._key:
                raise ValueError(
                    f"key_variable={key_variable}: the environment has no such variable; set it to the key"
                )
            if not all("!" <= character <= "~" for character in self._key):
                raise ValueError(
                    f"key_variable={key_variable} holds no valid key: a header holds no spaces, line breaks or "
                    "special characters"
                )
        import httpx

        logging.getLogger("httpx").setLevel(logging.WARNING)  # otherwise it logs every request
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(
            timeout=timeout_s, headers=headers, limits=httpx.Limits(max_connections=None)
        )
        self._httpx: Any = httpx
        self._url = url.rstrip("/")
        self._retries, self._backoff_s, self._timeout_s = retries, backoff_s, timeout_s
        self._random = random.Random()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._not_before = 0.0  # time on the monotonic clock before which no request is sent
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def probe(self) -> None:
        """Check once, with a short timeout, that the server answers and accepts the key.

        Every answer except a refusal of the key is accepted, even one that the path is unknown.

        Raises:
            ServerError: If nothing answers, or the key is refused.
        """
        path = "/v1/models"
        try:
            answer = self._client.get(self._url + path, timeout=min(_PROBE_TIMEOUT_S, self._timeout_s))
        except self._httpx.ReadTimeout:  # the server exists, but is busy
            return
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            why = str(error) or type(error).__name__
            raise ServerError(
                self._make_message(f"nothing answers there ({why}); start the server, or name another")
            ) from None
        if answer.status_code in (401, 403):
            raise ServerError(
                self._make_message(
                    f"{path}: status {answer.status_code}, the key is refused; name a variable with another by "
                    "key_variable"
                )
            )

    def ask(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Send a POST and return the result of ``read`` on the JSON answer.

        Args:
            path: Path, beginning with a slash.
            body: Sent as JSON.
            read: Reads the answer.  It raises an error such as `ValueError` or `KeyError` if it cannot use the
                answer, which is then requested again.

        Raises:
            ServerError: If there is no usable answer; the message names the number of attempts.
        """
        answer = self._send_with_retries(path, body, read)
        assert answer is not None
        return answer

    def post(self, path: str, body: Mapping[str, Any]) -> None:
        """Send a POST whose answer is ignored except for its status.

        Raises:
            ServerError: If the request fails.
        """
        self._send_with_retries(path, body, None)

    def close(self) -> None:
        """Close all connections and end waiting retries; no more requests are sent."""
        self._closed.set()
        self._client.close()

    def _send_with_retries(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any], T] | None
    ) -> T | None:
        for attempt in range(self._retries + 1):
            try:
                return self._send_once(path, body, read)
            except _RetryableError as error:
                is_last = attempt == self._retries
                self._count(f"retried_{error.kind}" if not is_last else "failed")
                if is_last:
                    times = f", asked {attempt + 1} times" if attempt else ""
                    raise ServerError(self._make_message(f"{path}: {error}{times}")) from None
                pause = self._backoff_s * 2**attempt * (0.5 + self._random.random())
                self._pause(min(max(pause, error.wait_s), _MAX_WAIT_S))
        raise AssertionError("the last attempt returns or raises")

    def _pause(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise ServerError("the engine was stopped")

    def _send_once(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T] | None) -> T | None:
        while (wait_s := self._not_before - time.monotonic()) > 0:
            self._pause(wait_s)
        self._count("requests")
        try:
            with self._client.stream("POST", self._url + path, json=body) as answer:
                body_bytes = self._read_body(answer)
        except self._httpx.TimeoutException as error:
            raise _RetryableError(f"no answer in time ({type(error).__name__})", "timeout") from None
        except self._httpx.RequestError as error:  # also if an answer cannot be decompressed
            raise _RetryableError(f"{type(error).__name__}: {error}", "connection") from None
        # hide the key before cutting the text: half a key would not be found
        text = self._hide_key(body_bytes[: 8 * _MAX_SHOWN].decode("utf-8", errors="replace"))[:_MAX_SHOWN]
        if answer.status_code in _RETRIED_STATUSES:
            wait_s = self._set_wait(answer.headers.get("Retry-After"))
            raise _RetryableError(
                f"status {answer.status_code}: {text}", f"status_{answer.status_code}", wait_s
            )
        if not answer.is_success:
            self._count("failed")
            raise ServerError(self._make_message(f"{path}: status {answer.status_code}: {text}"))
        try:
            return read(json.loads(body_bytes)) if read is not None else None
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise _RetryableError(f"unusable answer ({type(error).__name__}: {error})", "malformed") from None

    def _read_body(self, answer: Any) -> bytes:
        """Read the whole answer, within the limits of size and time."""
        body_bytes, deadline = bytearray(), time.monotonic() + self._timeout_s
        for chunk in answer.iter_bytes():
            body_bytes += chunk
            if len(body_bytes) > _MAX_BYTES:
                raise _RetryableError(f"an answer of more than {_MAX_BYTES >> 20} MiB", "malformed")
            if time.monotonic() > deadline:
                raise _RetryableError("no whole answer in time", "timeout")
        return bytes(body_bytes)

    def _set_wait(self, retry_after: str | None) -> float:
        """Make all threads wait as long as the server asks; return the seconds."""
        wait_s = min(_parse_retry_after(retry_after), _MAX_WAIT_S)
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + wait_s)
        return wait_s

    def _count(self, event: str) -> None:
        with self._lock:
            self.counts[event] += 1

    def _make_message(self, text: str) -> str:
        """Return one line without the key, even if the server repeats the key."""
        line = " ".join("".join(char if char.isprintable() else " " for char in self._hide_key(text)).split())
        return f"engine.url={self._url}: {line}"[:400]

    def _hide_key(self, text: str) -> str:
        """Replace the key in a text."""
        return text.replace(self._key, "***") if self._key else text


def _parse_retry_after(retry_after: str | None) -> float:
    """Return the seconds of a ``Retry-After`` number or date; 0 if absent or invalid."""
    if not retry_after:
        return 0.0
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0
