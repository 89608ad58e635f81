"""What ends a rollout before its time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_sigterm() -> Iterator[None]:
    """Within, SIGTERM interrupts at once, as Ctrl-C does; elsewhere Lightning acts on it after the iteration.

    A checkpoint holds nothing of what is played here, so a resumed run plays it again and is the same run.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
