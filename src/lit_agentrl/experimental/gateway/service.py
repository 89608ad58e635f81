"""A service for agents on other machines, which needs only the standard library.

    python -m lit_agentrl.experimental.gateway.service MODULE.FUNCTION [--host 127.0.0.1] [--port 9000]

Each request holds a task, which the function plays; see `Remote`.  Requests must carry the key in the environment
variable LIT_AGENTRL_AGENT_KEY.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lit_agentrl.experimental.gateway.remote import KEY
from lit_agentrl.experimental.gateway.runner import call_function, load_function

_MOST_TASK = 1_000_000  # bytes


class Service(ThreadingHTTPServer):
    """A server that calls a function for each task in a thread."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], name: str, key: str) -> None:
        load_function(name)  # a wrong name fails now, not at the first task
        self.name, self.key = name, key
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:  # noqa: N802
        """Play a task."""
        size = int(self.headers.get("Content-Length") or 0)
        if not hmac.compare_digest(
            self.headers.get("Authorization", "").encode(), f"Bearer {self.server.key}".encode()
        ):
            self._answer(401, {"error": f"the key is not that of {KEY}"})
            return
        if not 0 < size <= _MOST_TASK:
            self._answer(413, {"error": f"a task must have 1 to {_MOST_TASK} bytes"})
            return
        try:
            job = json.loads(self.rfile.read(size))
            result = call_function(self.server.name, job)
        except (Exception, SystemExit) as error:  # of a user's function
            self._answer(500, {"error": f"{type(error).__name__}: {error}"})
            return
        self._answer(200, result)

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body, default=str).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(OSError):  # the trainer may have ended the episode
            self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Ignore the line that the base class would print for each request."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a function until the process ends."""
    parser = argparse.ArgumentParser(description="Plays tasks of a trainer with a function of yours.")
    parser.add_argument(
        "function", help="MODULE.FUNCTION of (task, client), plain or async, which returns the reward"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    options = parser.parse_args(arguments)
    key = os.environ.get(KEY)
    if not key:
        parser.error(f"set the variable {KEY} to a secret, the same as for the trainer")
    sys.path.insert(0, os.getcwd())
    try:
        service = Service((options.host, options.port), options.function, key)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"serving {options.function} at http://{options.host}:{service.server_port}/", flush=True)
    service.serve_forever()


if __name__ == "__main__":
    main()
