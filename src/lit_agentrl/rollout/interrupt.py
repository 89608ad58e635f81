"""Interruption of a rollout by SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupt_at_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C within this context, as an immediate interrupt.

    Elsewhere Lightning handles it after the iteration.  A checkpoint holds nothing of what is played in this context,
    so a resumed run plays it again and gets the same episodes.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
