"""Serve the page of the viewer and its data over HTTP, to this machine alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from lit_agentrl.evaluate.viewer.recorded import SPLITS, Recorded

LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.IGNORECASE)
_PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_NUMBER = re.compile("[0-9]{1,15}")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ViewerServer(ThreadingHTTPServer):
    """HTTP server of one run, on the loopback interface.

    Args:
        port: where to listen; 0 takes a free port.
        recorded: the episodes of the run.
        describe: returns what is known of the run: name, status, and whether it is being written.

    Raises:
        OSError: the server cannot listen on this port.
    """

    daemon_threads = True

    def __init__(self, port: int, recorded: Recorded, describe: Callable[[], Mapping[str, Any]]) -> None:
        self.recorded, self.describe = recorded, describe
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None: ...  # a browser that went away


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60.0  # seconds, of a silent connection
    server: ViewerServer

    def do_GET(self) -> None:
        # another site can let its own name point to this machine (DNS rebinding); browsers then send that name
        if not _HOST.fullmatch(self.headers.get("Host", "")):
            self._send_json(403, {"error": f"open {self.server.url} by this address"})
            return
        path, _, query = self.path.partition("?")
        if path in _PAGE:
            name, kind = _PAGE[path]
            self._send(200, kind, (Path(__file__).parent / name).read_bytes())
        elif path == "/api/run":
            self._send_json(200, {**self.server.describe(), **self.server.recorded.describe()})
        else:
            self._send_episodes(path, {key: values[-1] for key, values in parse_qs(query).items()})

    def _send_episodes(self, path: str, asked: Mapping[str, str]) -> None:
        split, recorded = asked.get("split", ""), self.server.recorded
        number = asked.get("iteration" if path == "/api/episodes" else "line", "")
        if path not in ("/api/episodes", "/api/episode"):
            self._send_json(404, {"error": "there is no such page"})
        elif split not in SPLITS or not _NUMBER.fullmatch(number):
            self._send_json(400, {"error": "split must be train or val, and iteration or line a number"})
        elif path == "/api/episodes":
            self._send_json(200, {"episodes": recorded.list_episodes(split, int(number))})
        elif (episode := recorded.get_episode(split, int(number))) is None:
            self._send_json(404, {"error": "the run does not hold this episode any more"})
        else:
            self._send_json(200, episode)

    def _send_json(self, status: int, answer: Mapping[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(answer, allow_nan=False).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None: ...  # no line for each request
