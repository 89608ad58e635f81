"""A session with an OpenEnv server: JSON over a websocket, bounded in size and time."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.envs.adapters.base import make_missing_error
from lit_agentrl.envs.hosted.link import PAUSE_S
from lit_agentrl.envs.hosted.wire import get_object, get_text, parse, serialize

_SHOWN = 300  # characters of a server's own message that errors repeat
_ANSWERS = {"reset": "observation", "step": "observation", "state": "state"}
_CAPACITY_REMEDY = (
    "; start it with more max_concurrent_envs, or play fewer games at a time (engine.num_slots)"
)
_ACTION_ERRORS = ("VALIDATION_ERROR", "EXECUTION_ERROR")  # errors after which the session continues


class Gone(Exception):
    """The server has ended, or closed the connection."""


class Refused(Exception):
    """The server rejects the request; the session continues."""


class Session:
    """Client of a server; each `open` starts a new session with its own game.

    Args:
        url: ``http://HOST:PORT`` of the server, or ``https``.
        timeout_s: seconds for one message and its answer, and for the start.
        patience_s: seconds to wait for a server that cannot be reached.
        max_mb: size of one answer, MiB.

    Raises:
        ValueError: the library is missing.
    """

    def __init__(self, url: str, *, timeout_s: float, patience_s: float, max_mb: float) -> None:
        self._url = url
        self._timeout_s, self._patience_s, self._max_bytes = timeout_s, patience_s, int(max_mb * 2**20)
        self._connection: Any = None
        self._stack = ExitStack()
        try:
            import websockets
        except ImportError as error:
            raise make_missing_error("websockets", "openenv", error) from error
        # websockets would log a line for each broken connection
        logging.getLogger("websockets").setLevel(logging.CRITICAL)
        self._closed = websockets.ConnectionClosed

    @property
    def is_open(self) -> bool:
        """True while a session is open."""
        return self._connection is not None

    def open(self) -> None:
        """Start a session.

        Raises:
            TimeoutError: the server accepts the connection, but does not answer.
            ValueError: no server listens, or the server has another protocol.
        """
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self.close()
        address, deadline = (
            f"ws{self._url.removeprefix('http').rstrip('/')}/ws",
            time.monotonic() + self._patience_s,
        )
        while self._connection is None:
            try:
                connection = connect(
                    address, open_timeout=self._timeout_s, close_timeout=1.0, max_size=self._max_bytes, proxy=None,
                    ping_interval=None,  # a game that computes for long does not answer pings
                )  # fmt: skip
                self._connection = self._stack.enter_context(connection)
            except TimeoutError as error:
                raise self._make_timeout() from error
            except (OSError, WebSocketException, EOFError) as error:
                if not isinstance(error, OSError) or time.monotonic() >= deadline:
                    reason = f"{type(error).__name__}: {error}"
                    raise self.make_error(
                        f"cannot be reached ({reason}); check that it listens at /ws"
                    ) from error
                time.sleep(PAUSE_S)

    def close(self) -> None:
        """End the session."""
        self._connection, stack, self._stack = None, self._stack, ExitStack()
        stack.close()  # closing the connection ends the session of the server

    def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a message, ``reset``, ``step`` or ``state``, and return the answer.

        Raises:
            Gone: the server has ended.
            Refused: the server rejects the action.
            TimeoutError: the server hangs; the session is closed.
            ValueError: the server has no capacity, or its answer cannot be used; the session is closed.
        """
        if self._connection is None:
            raise Gone
        message = serialize({"type": kind, **({} if data is None else {"data": data})}).decode()
        try:
            with suppress(self._closed):  # the server may have closed with a reason, which recv raises
                self._connection.send(message)
            text = self._connection.recv(timeout=self._timeout_s)
        except TimeoutError:
            self.close()
            raise self._make_timeout() from None
        except self._closed as error:
            self.close()
            if error.sent is not None and error.sent.code == 1009:  # code of a message that is too long
                raise self.make_error(f"answered more than {self._max_bytes / 2**20:g} MB (max_mb)") from None
            raise Gone from error
        try:
            return self._read(kind, parse(text.encode() if isinstance(text, str) else text))
        except ValueError as error:
            self.close()
            raise self.make_error(f"gave an unusable answer to {kind}: {error}") from error

    def make_error(self, problem: str) -> ValueError:
        """Return an error of one line that names the server."""
        return ValueError(escape_unprintable(f"the OpenEnv server {self._url} {problem}"))

    def _read(self, kind: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        data, answer_type = get_object(answer, "data"), get_text(answer, "type")
        if answer_type == "error":
            code, message = str(data.get("code", ""))[:40], str(data.get("message", ""))[:_SHOWN]
            if code in _ACTION_ERRORS and kind != "reset":
                raise Refused(f"{message} {str(data.get('errors', ''))[:_SHOWN]}".strip())
            raise ValueError(f"{code} {message}{_CAPACITY_REMEDY if code == 'CAPACITY_REACHED' else ''}")
        if answer_type != _ANSWERS[kind]:
            raise ValueError(f"its type is {answer_type[:40]}")
        return data

    def _make_timeout(self) -> TimeoutError:
        return TimeoutError(
            f"the OpenEnv server {self._url} did not answer within timeout_s={self._timeout_s:g}"
        )
