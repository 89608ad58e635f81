"""Servers that a test starts as programs, and ends."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.conftest import ROOT

_START_S = 120.0  # for its imports, on a busy machine


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def started(command: Sequence[str]) -> Iterator[str]:
    """The address of a program that is given its port as the last argument."""
    port = free_port()
    with subprocess.Popen([*command, str(port)], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            ends = time.monotonic() + _START_S
            while True:
                assert process.poll() is None and time.monotonic() < ends, "the server did not start"
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
