"""Serve a game over HTTP as JSON, with bounded requests and connections."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.envs.hosted.session_requests import RequestError
from lit_agentrl.envs.hosted.sessions import Sessions
from lit_agentrl.envs.hosted.wire import parse, serialize

_log = logging.getLogger(__name__)


class GameServer(ThreadingHTTPServer):
    """HTTP server with one thread per connection.

    Args:
        address: host and port; port 0 stands for any free port.
        sessions: the episodes that are played.
        max_bytes: size of one request.
        idle_s: seconds after which a silent connection is closed.
        connections: how many may be open; further ones are closed at once.

    Raises:
        OSError: the server cannot listen at ``address``.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], sessions: Sessions, *, max_bytes: int, idle_s: float, connections: int
    ) -> None:
        self.sessions, self.max_bytes, self.idle_s = sessions, max_bytes, idle_s
        self._free_connections = threading.BoundedSemaphore(connections)
        super().__init__(address, _Handler)

    def service_actions(self) -> None:
        self.sessions.close_idle()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free_connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started that would release it
            self._free_connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a connection broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: GameServer

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.idle_s)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply({})
        else:
            self._send(404, RequestError(404, "only /health is asked by GET").answer)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        # a page in a browser cannot send this type to another site without its permission
        is_json = self.headers.get_content_type() == "application/json"
        if not length.isdecimal() or not is_json or self.headers.get("Transfer-Encoding"):
            self._refuse(
                RequestError(411, "a request must have Content-Length, and Content-Type: application/json")
            )
        elif len(length) > 12 or int(length) > self.server.max_bytes:
            self._refuse(RequestError(413, f"a request may have at most {self.server.max_bytes} bytes"))
        else:
            try:
                body = parse(self.rfile.read(int(length)))
            except ValueError as error:
                self._refuse(RequestError(400, f"the request {error}"))
            else:
                self._reply(body)

    def _reply(self, body: Mapping[str, Any]) -> None:
        try:
            self._send(200, self.server.sessions.answer(self.path, body))
        except RequestError as error:
            self._send(error.status, error.answer)

    def _refuse(self, error: RequestError) -> None:
        """Refuse a request that was not read to its end, and close its connection."""
        self.close_connection = True
        self._send(error.status, error.answer)

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        try:
            text = serialize(answer)
        except ValueError as error:
            message = escape_unprintable(f"the game's answer is not JSON ({error})")
            status, text = 500, serialize({"error": message})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None: ...  # no line for each request
