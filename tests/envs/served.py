"""Games that a thread of this process serves, and servers that answer what they should not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosted.serving import GameServer
from lit_agentrl.envs.hosted.sessions import Sessions


@dataclass
class Served:
    """A game that is served."""

    server: GameServer
    thread: threading.Thread

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """As if it were killed: what it knew is gone, and its connections are cut."""
        self.server.shutdown()
        self.server.server_close()
        self.server.sessions.close()
        self.server.sessions.answer = _dead  # type: ignore[method-assign]


def _dead(*args: object) -> None:
    raise ConnectionResetError


def start(task: Task, *, port: int = 0, most: int = 256, idle_s: float = 600.0, mb: float = 1.0) -> Served:
    sessions = Sessions(task, most=most, idle_s=idle_s)
    server = GameServer(
        ("127.0.0.1", port), sessions, max_bytes=int(mb * 2**20), idle_s=idle_s, connections=2 * most + 16
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    return Served(server, thread)


@contextmanager
def saying(replies: Sequence[bytes], *, pause_s: float = 0.0) -> Iterator[str]:
    """A server that answers one request after the other with these bytes, byte by byte if it pauses."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for reply in replies:
            try:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    for part in [reply] if not pause_s else [reply[i : i + 1] for i in range(len(reply))]:
                        connection.sendall(part)
                        time.sleep(pause_s)
            except OSError:  # the other side has given up
                continue

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()
