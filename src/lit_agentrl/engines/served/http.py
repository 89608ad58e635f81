"""Asking an HTTP server in JSON, with patience: the only file that imports httpx."""

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
_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504, 529)  # statuses of a server that may do better in a moment
_LONGEST_S = 120.0  # that a server can have us wait, whatever it asks for
_SHOWN = 160  # characters of what a server said
_MOST_BYTES = 2**26  # of one answer
_GREETING_S = 5.0  # for a first sign of a server


class ServerError(ValueError):
    """A server gave no usable answer; the message is one line, and holds no key."""


class _Again(Exception):
    """An answer that is no answer, and how many seconds the server asks to wait (0: it does not say)."""

    def __init__(self, why: str, kind: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.kind, self.wait_s = kind, wait_s


class Server:
    """One server.  May be asked from several threads.

    A request that fails is sent again after a pause that doubles, give or take a half by chance, so that many do not
    come back together; chance changes when a request is sent, never what it asks.  After ``429`` or ``503`` with
    ``Retry-After`` all threads wait.

    Args:
        url: up to what all paths share, such as ``http://localhost:8000``.
        key_variable: environment variable that holds the key; None: no key is sent.  The key is read once, kept by the
            client alone, and taken out of every message.
        timeout_s: for each answer, all of it.
        retries: how often a request that failed is sent again.
        backoff_s: the first pause.

    Attributes:
        counts: of ``requests`` sent, and of those that were sent again by cause: ``timeout``, ``connection``,
            ``status_429``, ``malformed`` and so on; ``failed``: requests given up.

    Raises:
        ValueError: httpx is missing, or an option makes no sense.
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
            url.rpartition("@")[2],  # no password
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
                    f"key_variable={key_variable} holds no key: spaces, line breaks or other signs that no header takes"
                )
        import httpx

        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every request otherwise
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(
            timeout=timeout_s, headers=headers, limits=httpx.Limits(max_connections=None)
        )
        self._httpx: Any = httpx
        self._url = url.rstrip("/")
        self._retries, self._backoff_s, self._timeout_s = retries, backoff_s, timeout_s
        self._chance = random.Random()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._not_before = 0.0  # on the monotonic clock
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def greet(self) -> None:
        """Ask once, and briefly, whether there is a server that takes the key; it need not know the question.

        Raises:
            ServerError: nothing answers, or the key is refused.
        """
        path = "/v1/models"
        try:
            answer = self._client.get(self._url + path, timeout=min(_GREETING_S, self._timeout_s))
        except self._httpx.ReadTimeout:  # it is there, and busy
            return
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            why = str(error) or type(error).__name__
            raise ServerError(
                self._told(f"nothing answers there ({why}); start the server, or name another")
            ) from None
        if answer.status_code == 401:
            raise ServerError(
                self._told(
                    f"{path}: status 401, the key is refused; name a variable with another by key_variable"
                )
            )

    def ask(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """What ``read`` makes of the JSON that answers a POST.

        Args:
            path: begins with a slash.
            body: is sent as JSON.
            read: raises what reading something else raises, such as `ValueError` or `KeyError`, at an answer that it
                cannot use, which is then asked for again.

        Raises:
            ServerError: no usable answer; says how often it was asked.
        """
        answer = self._again_and_again(path, body, read)
        assert answer is not None
        return answer

    def _again_and_again(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any], T] | None
    ) -> T | None:
        for attempt in range(self._retries + 1):
            try:
                return self._once(path, body, read)
            except _Again as error:
                is_last = attempt == self._retries
                self._count(f"retried_{error.kind}" if not is_last else "failed")
                if is_last:
                    times = f", asked {attempt + 1} times" if attempt else ""
                    raise ServerError(self._told(f"{path}: {error}{times}")) from None
                pause = self._backoff_s * 2**attempt * (0.5 + self._chance.random())
                self._pause(min(max(pause, error.wait_s), _LONGEST_S))
        raise AssertionError

    def close(self) -> None:
        """End all connections, and whoever waits to ask again; nothing is asked any more."""
        self._ended.set()
        self._client.close()

    def _pause(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise ServerError("the engine was stopped")

    def tell(self, path: str, body: Mapping[str, Any]) -> None:
        """POST something whose answer says nothing but that it worked.

        Raises:
            ServerError: it did not.
        """
        self._again_and_again(path, body, None)

    def _once(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T] | None) -> T | None:
        while (wait_s := self._not_before - time.monotonic()) > 0:
            self._pause(wait_s)
        self._count("requests")
        try:
            with self._client.stream("POST", self._url + path, json=body) as answer:
                found = self._received(answer)
        except self._httpx.TimeoutException as error:
            raise _Again(f"no answer in time ({type(error).__name__})", "timeout") from None
        except self._httpx.RequestError as error:  # also of an answer that cannot be unpacked
            raise _Again(f"{type(error).__name__}: {error}", "connection") from None
        # hidden before it is cut: half a key would not be found
        told = self._hidden(found[: 8 * _SHOWN].decode("utf-8", errors="replace"))[:_SHOWN]
        if answer.status_code in _AGAIN:
            wait_s = self._wait(answer.headers.get("Retry-After"))
            raise _Again(f"status {answer.status_code}: {told}", f"status_{answer.status_code}", wait_s)
        if not answer.is_success:
            self._count("failed")
            raise ServerError(self._told(f"{path}: status {answer.status_code}: {told}"))
        try:
            return read(json.loads(found)) if read is not None else None
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise _Again(f"unusable answer ({type(error).__name__}: {error})", "malformed") from None

    def _received(self, answer: Any) -> bytes:
        """The whole answer: a server may neither send without end nor so slowly that it never ends."""
        found, until = bytearray(), time.monotonic() + self._timeout_s
        for chunk in answer.iter_bytes():
            found += chunk
            if len(found) > _MOST_BYTES:
                raise _Again(f"an answer of more than {_MOST_BYTES >> 20} MiB", "malformed")
            if time.monotonic() > until:
                raise _Again("no whole answer in time", "timeout")
        return bytes(found)

    def _wait(self, retry_after: str | None) -> float:
        """Have all threads wait as long as the server asks; so many seconds."""
        wait_s = min(_seconds(retry_after), _LONGEST_S)
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + wait_s)
        return wait_s

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _told(self, text: str) -> str:
        """One line without the key, also where the server repeats it."""
        line = " ".join("".join(c if c.isprintable() else " " for c in self._hidden(text)).split())
        return f"engine.url={self._url}: {line}"[:400]

    def _hidden(self, text: str) -> str:
        """Without the key."""
        return text.replace(self._key, "***") if self._key else text


def _seconds(retry_after: str | None) -> float:
    """Of a ``Retry-After``, a number or a date; 0 where there is none that makes sense."""
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
