"""One session with an OpenEnv server: JSON messages over a websocket, of bounded size, in bounded time."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.envs.adapters.base import missing
from lit_agentrl.envs.hosted.link import PAUSE_S
from lit_agentrl.envs.hosted.wire import object_in, packed, text_in, unpacked

_SHOWN = 300  # characters of a server's own message that are told
_ANSWERS = {"reset": "observation", "step": "observation", "state": "state"}
_MORE_ROOM = "; start it with more max_concurrent_envs, or play fewer games at a time (engine.num_slots)"
_OF_AN_ACTION = ("VALIDATION_ERROR", "EXECUTION_ERROR")  # the session goes on after them


class Gone(Exception):
    """The server has ended, or closed the connection."""


class Refused(Exception):
    """The server does not take what it was asked; the session goes on."""


class Session:
    """Asks a server; each `open` begins a new session, which has a game of its own there.

    Args:
        url: ``http://HOST:PORT`` of the server, or ``https``.
        timeout_s: for one message and its answer, and for the beginning.
        patience_s: how long a server that nobody reaches is waited for.
        max_mb: of one answer.

    Raises:
        ValueError: the library is missing.
    """

    def __init__(self, url: str, *, timeout_s: float, patience_s: float, max_mb: float) -> None:
        self._url = url
        self._timeout_s, self._patience_s, self._most = timeout_s, patience_s, int(max_mb * 2**20)
        self._connection: Any = None
        self._stack = ExitStack()
        try:
            import websockets
        except ImportError as error:
            raise missing("websockets", "openenv", error) from error
        logging.getLogger("websockets").setLevel(logging.CRITICAL)  # a line for each connection that breaks
        self._closed = websockets.ConnectionClosed

    @property
    def is_open(self) -> bool:
        """Whether a session has begun, and nothing has ended it."""
        return self._connection is not None

    def open(self) -> None:
        """Begin a session.

        Raises:
            TimeoutError: the server takes the connection and says nothing.
            ValueError: nobody listens there, or it speaks no such protocol.
        """
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self.close()
        where, ends = (
            f"ws{self._url.removeprefix('http').rstrip('/')}/ws",
            time.monotonic() + self._patience_s,
        )
        while self._connection is None:
            try:
                opened = connect(
                    where, open_timeout=self._timeout_s, close_timeout=1.0, max_size=self._most, proxy=None,
                    ping_interval=None,  # a game that computes for long does not answer to it
                )  # fmt: skip
                self._connection = self._stack.enter_context(opened)
            except TimeoutError as error:
                raise self._late() from error
            except (OSError, WebSocketException, EOFError) as error:
                if not isinstance(error, OSError) or time.monotonic() >= ends:
                    what = f"cannot be reached ({type(error).__name__}: {error}); see that it listens at /ws"
                    raise self.wrong(what) from error
                time.sleep(PAUSE_S)

    def close(self) -> None:
        """End the session."""
        self._connection, stack, self._stack = None, self._stack, ExitStack()
        stack.close()  # which the server takes for the end of the session

    def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What the server answers to a message: ``reset``, ``step`` or ``state``.

        Raises:
            Gone: the server has ended.
            Refused: it does not take the action.
            TimeoutError: it hangs; the session is closed.
            ValueError: it has no room, or says what makes no sense; the session is closed.
        """
        if self._connection is None:
            raise Gone
        message = packed({"type": kind, **({} if data is None else {"data": data})}).decode()
        try:
            with suppress(self._closed):  # by a server that said why before it was asked
                self._connection.send(message)
            text = self._connection.recv(timeout=self._timeout_s)
        except TimeoutError:
            self.close()
            raise self._late() from None
        except self._closed as error:
            self.close()
            if error.sent is not None and error.sent.code == 1009:
                raise self.wrong(f"answered more than {self._most / 2**20:g} MB (max_mb)") from None
            raise Gone from error
        try:
            return self._read(kind, unpacked(text.encode() if isinstance(text, str) else text))
        except ValueError as error:
            self.close()
            raise self.wrong(f"answered to {kind} what cannot be used: {error}") from error

    def wrong(self, what: str) -> ValueError:
        """An error that names the server, in one line."""
        return ValueError(escape_unprintable(f"the OpenEnv server {self._url} {what}"))

    def _read(self, kind: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        data, said = object_in(answer, "data"), text_in(answer, "type")
        if said == "error":
            code, message = str(data.get("code", ""))[:40], str(data.get("message", ""))[:_SHOWN]
            if code in _OF_AN_ACTION and kind != "reset":
                raise Refused(f"{message} {str(data.get('errors', ''))[:_SHOWN]}".strip())
            raise ValueError(f"{code} {message}{_MORE_ROOM if code == 'CAPACITY_REACHED' else ''}")
        if said != _ANSWERS[kind]:
            raise ValueError(f"an answer of type {said[:40]}")
        return data

    def _late(self) -> TimeoutError:
        return TimeoutError(
            f"the OpenEnv server {self._url} did not answer within timeout_s={self._timeout_s:g}"
        )
