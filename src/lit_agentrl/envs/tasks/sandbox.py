"""Programs of a policy, run in a worker process with bounds of time and memory, without files, network or clock."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.envs.adapters.base import missing

_LONGEST_PROGRAM = 20_000  # characters
_SHOWN = 1000  # characters of what a program prints, says or gives
_WORKERS = 4
_GRACE_S = 2.0  # after which a worker that does not mind its limits is killed


@dataclass(frozen=True)
class Ran:
    """What became of a program.

    Attributes:
        results: what each call gave, as Python writes it; those before the first that failed.
        error: what that one, or the program itself, raised; empty: nothing.
        printed: its output.
    """

    results: tuple[str, ...]
    error: str = ""
    printed: str = ""
    is_loaded: bool = True  # the program itself raised nothing


@dataclass(frozen=True)
class Limits:
    """Bounds of one program, each call counted by itself.

    Args:
        seconds: of computing, for the program and for each call.
        max_memory_mb: of its heap.
        max_depth: calls within each other.
    """

    seconds: float = 2.0
    max_memory_mb: int = 64
    max_depth: int = 500


def run(program: str, calls: Sequence[tuple[str, tuple[Any, ...]]], limits: Limits = Limits()) -> Ran:
    """Run a program, then call its functions.

    It is run by pydantic-monty, an interpreter of its own in a process of its own: what a program may do is what that
    interpreter has, which is no file, no network, no process and no module but a few of the standard library.  Values
    of the caller are copied in; what comes back is text of bounded length, written by the interpreter itself.

    Args:
        program: Python, whatever it says.
        calls: function and arguments, in JSON values.
        limits: see `Limits`.

    Raises:
        ValueError: the library is missing.
    """
    if len(program) > _LONGEST_PROGRAM:
        return Ran((), f"it has more than {_LONGEST_PROGRAM} characters", is_loaded=False)
    pool, library = _pool()
    results: list[str] = []
    printed: list[str] = []

    def hear(stream: str, text: str) -> None:
        if sum(map(len, printed)) < _SHOWN:
            printed.append(text[:_SHOWN])

    bounds = {
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.max_memory_mb * 2**20,
        "max_recursion_depth": limits.max_depth,
        "max_suspensions": 100,  # names that are not there are asked for
    }
    error, is_loaded = "", False
    try:
        with pool.checkout(limits=bounds, os_policy=_policy(), assert_message_annotations=False) as session:
            session.feed_run(program, print_callback=hear)
            is_loaded = True
            for name, arguments in calls:
                given = {f"argument_{number}": value for number, value in enumerate(arguments)}
                # a formatted string is a string whatever the program has made of repr, str and format
                text = f'f"{{{name}({", ".join(given)})!r:.{_SHOWN}}}"'
                results.append(str(session.feed_run(text, inputs=given, print_callback=hear))[:_SHOWN])
    except (library.MontyError, TimeoutError) as raised:
        error = str(raised)[:_SHOWN] or type(raised).__name__
        if isinstance(raised, library.MontyCrashedError):
            error = "it broke the interpreter"
        for kind, told in (
            ("TimeoutError: feed", f"{limits.seconds:g} s"),
            ("MemoryError", f"{limits.max_memory_mb} MB"),
        ):
            if error.startswith(kind):  # no measured number is told: an episode says the same again
                error = f"{kind.split(':')[0]}: it took more than {told}"
    except (
        ValueError,
        UnicodeError,
        RecursionError,
    ) as raised:  # text that cannot be sent, such as half a character
        error = f"{type(raised).__name__}: {raised}"[:_SHOWN]
    return Ran(tuple(results), " ".join(error.split()), "".join(printed)[:_SHOWN], is_loaded)


def _policy() -> dict[str, Any]:
    """The same program does the same: time stands still, and chance has a seed."""
    import datetime

    return {"datetime": datetime.datetime(2026, 1, 1), "sleep": "zero", "random_start": {"seed": 0}}


_lock = threading.Lock()
_pools: dict[int, tuple[Any, Any]] = {}  # of each process: a copy of a process must not use its parent's


def _pool() -> tuple[Any, Any]:
    """The workers of this process, and the library."""
    with _lock:
        if os.getpid() not in _pools:
            try:
                import pydantic_monty
            except ImportError as error:
                raise missing("pydantic-monty", "code", error) from error
            pool = pydantic_monty.Monty(
                min_processes=1,
                max_processes=_WORKERS,
                request_timeout=60.0,
                feed_duration_limit_grace=_GRACE_S,
                max_checkouts_per_worker=1000,
            )
            pool.__enter__()
            atexit.register(pool.__exit__, None, None, None)
            _pools[os.getpid()] = pool, pydantic_monty
        return _pools[os.getpid()]
