"""Requests in JSON over HTTP, with answers of bounded size in bounded time."""

from __future__ import annotations

import http.client
import itertools
import logging
import socket
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from lit_agentrl.checks import escape_unprintable, require, require_number
from lit_agentrl.envs.hosted.wire import PROTOCOL, get_object, parse, serialize

_SHOWN = 300  # characters of a server's own message that errors repeat
PAUSE_S = 0.2  # seconds between two tries to reach a server


class Unreachable(Exception):
    """Nobody listens, or the connection broke: worth another try."""


class Lost(Exception):
    """The server does not know this episode, or has forgotten it."""


class Late(ValueError):
    """There was no complete answer in time."""


class Link:
    """A connection to one server, reused between requests; for one thread.

    Args:
        url: such as ``http://127.0.0.1:8100``.
        timeout_s: seconds for one request and its whole answer.
        max_mb: size of one answer, MiB.

    Raises:
        ValueError: the url is invalid.
    """

    def __init__(self, url: str, *, timeout_s: float, max_mb: float) -> None:
        valid = "http://HOST:PORT or https://HOST:PORT, without a user or a query"
        require(isinstance(url, str), "url", url, valid)
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:
            parts, self._port = urlsplit(""), None
        is_plain = not (parts.query or parts.fragment or "@" in parts.netloc) and url.isprintable()
        require(
            parts.scheme in ("http", "https") and bool(parts.hostname) and is_plain and " " not in url,
            "url",
            url,
            valid,
        )
        self.url, self._parts, self._timeout_s, self._max_bytes = url, parts, timeout_s, int(max_mb * 2**20)
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return its answer: GET without a body, else POST.

        Raises:
            Unreachable: nobody listens, or the connection broke.
            Lost: the server does not know the episode.
            ValueError: the answer took too long, is a refusal or cannot be used; one line.
        """
        is_new = self._connection is None
        try:
            status, text = self._exchange(path, body)
        except Unreachable:
            if is_new:
                raise
            status, text = self._exchange(path, body)  # the server may have closed the reused connection
        if len(text) > self._max_bytes:
            self.close()
            raise self._make_error(path, f"answered more than {self._max_bytes / 2**20:g} MB (max_mb)")
        try:
            answer = parse(text)
        except ValueError as error:
            raise self._make_error(path, f"answered with status {status} what {error}") from None
        if status == 404 and "session" in answer:
            raise Lost(path)
        if status != 200:
            reason = escape_unprintable(str(answer.get("error", "")))[:_SHOWN]
            raise self._make_error(path, f"refused with status {status}: {reason}")
        return answer

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _make_error(self, path: str, problem: str) -> ValueError:
        return ValueError(escape_unprintable(f"the game at {self.url} {problem} ({path})"))

    def _exchange(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        make_connection = (
            http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        )
        assert self._parts.hostname is not None
        if self._connection is None:
            self._connection = make_connection(self._parts.hostname, self._port, timeout=self._timeout_s)
        connection, is_late = self._connection, threading.Event()
        # also cuts slow, partial answers
        timer = threading.Timer(self._timeout_s, _cut, (connection, is_late))
        timer.daemon = True
        timer.start()
        path_there = self._parts.path.rstrip("/") + path
        try:
            if body is None:
                connection.request("GET", path_there)
            else:
                connection.request("POST", path_there, serialize(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read(self._max_bytes + 1)
            if response.will_close:
                self.close()
            if is_late.is_set():  # a cut connection looks like the end of an answer without a length
                raise TimeoutError
            return response.status, text
        # AttributeError: `_cut` ended the connection
        except (OSError, http.client.HTTPException, AttributeError) as error:
            self.close()
            if is_late.is_set() or isinstance(error, TimeoutError):
                late = f"the game at {self.url} did not answer within timeout_s={self._timeout_s:g} ({path})"
                raise Late(late) from None
            if isinstance(error, OSError | http.client.IncompleteRead):
                raise Unreachable(f"{type(error).__name__}: {error}") from error
            raise self._make_error(path, f"speaks no HTTP ({type(error).__name__})") from None
        finally:
            timer.cancel()


def _cut(connection: http.client.HTTPConnection, is_late: threading.Event) -> None:
    is_late.set()
    try:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # already closed
        return


class Recoveries:
    """Counter of lost and replayed episodes, with a warning for each.

    Args:
        log: logger of the warnings.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._numbers = log, itertools.count(1)

    def count(self, server: str) -> None:
        """Count one more lost episode of this server."""
        count = next(self._numbers)
        self._log.warning("%s had lost an episode, which was played again (%d so far)", server, count)


def check_waits(*, timeout_s: float, patience_s: float, max_mb: float) -> None:
    """Check the limits on waiting for a server and on the size of its answers.

    Raises:
        ValueError: one of them is out of range.
    """
    for name, value in (("timeout_s", timeout_s), ("max_mb", max_mb)):
        require_number(name, value, "a number > 0", lambda seconds: seconds > 0)
    require_number("patience_s", patience_s, "a number >= 0", lambda seconds: seconds >= 0)


def fetch_description(link: Link) -> dict[str, Any]:
    """Ask a server to describe its game.

    Raises:
        ValueError: nobody listens, or it is no server of games.
    """
    try:
        description = link.ask("/health")
    except (Unreachable, Lost) as error:
        raise ValueError(
            f"url={link.url} does not answer ({error}); start the game there: lit-agentrl serve-env env=NAME"
        ) from None
    if description.get("protocol") != PROTOCOL:
        raise ValueError(
            f"url={link.url} speaks protocol={str(description.get('protocol'))[:20]!r}; this version speaks {PROTOCOL}"
        )
    return get_object(description, "game")
