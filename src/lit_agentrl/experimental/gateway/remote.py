"""Agents on other machines: a service that plays an episode for each request."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

from lit_agentrl.experimental.gateway.exchange import Exchange, ProgramEnd

KEY = "LIT_AGENTRL_AGENT_KEY"  # variable of the environment with the key of the service
_PATIENCE_S = 30.0  # longest wait for a service that starts or restarts
_SHOWN = 300  # first characters of an answer that messages quote
_MOST_RESULT = 65_536  # bytes


class Remote:
    """A service that receives each task by POST, and answers with the reward.

    The request has the key of the service, and the body ``{"task": …, "base_url": …, "api_key": …}``; the status of the
    answer is 200, and its body the result.  A service that cannot be reached is tried again for ``timeout_s / 2``, at
    most for 30 seconds.  A service that has received a task is not asked again.

    Raises:
        ValueError: The address is invalid, or the environment has no key for the service.
    """

    def __init__(self, url: str | None, timeout_s: float) -> None:
        parts = urlsplit(url or "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url={url} must be the address of a service, as http://127.0.0.1:9000/")
        if not os.environ.get(KEY):
            raise ValueError(
                f"url={url}: the service must be asked with a key; set the variable {KEY} to a secret, here and there"
            )
        self._url, self._parts = url, parts
        self._patience_s = min(_PATIENCE_S, timeout_s / 2)
        self._connection: http.client.HTTPConnection | None = None
        self._stopped = threading.Event()

    def start(self, exchange: Exchange, task: str, url: str, token: str) -> None:
        """See `Program`."""
        job = {"task": json.loads(task), "base_url": url, "api_key": token}
        self._stopped = stopped = threading.Event()

        def ask() -> None:
            try:
                connection = self._connect(stopped)
            except OSError as error:
                problem = (
                    f"env.game.url={self._url} cannot be reached ({error}); start the agent's service there"
                )
                exchange.finish(ProgramEnd(problem=problem))
                return
            exchange.finish(self._ask(connection, json.dumps(job).encode()))

        threading.Thread(target=ask, daemon=True, name="remote agent").start()

    def _connect(self, stopped: threading.Event) -> http.client.HTTPConnection:
        """Connect to the service, and retry until it answers.

        Raises:
            OSError: The service was not reached in time, or the episode has ended.
        """
        deadline = time.monotonic() + self._patience_s
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        while True:
            connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._patience_s)
            try:
                connection.connect()
            except OSError:
                if time.monotonic() > deadline or stopped.wait(0.1):
                    raise
                continue
            if stopped.is_set():
                connection.close()
                raise InterruptedError("the episode has ended")
            self._connection = connection
            connection.sock.settimeout(None)  # an episode takes as long as its calls do
            return connection

    def _ask(self, connection: http.client.HTTPConnection, job: bytes) -> ProgramEnd:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ[KEY]}"}
        path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        try:
            connection.request("POST", path, job, headers)
            answer = connection.getresponse()
            data = answer.read(_MOST_RESULT)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            return ProgramEnd(problem=f"the agent at {self._url} left before it answered ({reason})")
        finally:
            connection.close()
        text = " ".join(data.decode(errors="replace").split())[:_SHOWN]
        if answer.status != 200:
            return ProgramEnd(
                problem=f"the agent at {self._url} answered with status {answer.status}: {text}"
            )
        try:
            return ProgramEnd(json.loads(data))
        except (ValueError, RecursionError):
            return ProgramEnd(
                problem=f"the agent at {self._url} must answer with a reward as JSON, not {text}"
            )

    def stop(self) -> None:
        """See `Program`.

        The service notices that the connection is closed, or that its next call is refused.
        """
        self._stopped.set()
        connection, self._connection = self._connection, None
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(2)

    close = stop
