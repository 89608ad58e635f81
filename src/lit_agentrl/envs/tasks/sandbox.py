"""Run untrusted programs in worker processes with limits, without files, network or clock."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.envs.adapters.base import make_missing_error

_LONGEST_PROGRAM = 20_000  # characters
_SHOWN = 1000  # characters of a program's output, error or result that are returned
_WORKERS = 4
_GRACE_S = 2.0  # a worker that exceeds its time limit by these seconds is killed


@dataclass(frozen=True)
class RunResult:
    """Outcome of a program.

    Attributes:
        results: the ``repr`` of each call's result, up to the first call that failed.
        error: what that call, or the program itself, raised; empty: nothing.
        printed: the output.
        is_loaded: whether the program itself, before any call, raised nothing.
    """

    results: tuple[str, ...]
    error: str = ""
    printed: str = ""
    is_loaded: bool = True


@dataclass(frozen=True)
class Limits:
    """Limits of one program and of each of its calls.

    Args:
        seconds: computing time of the program and of each call.
        max_memory_mb: size of the heap, MiB.
        max_depth: depth of nested calls.
    """

    seconds: float = 2.0
    max_memory_mb: int = 64
    max_depth: int = 500


def run(program: str, calls: Sequence[tuple[str, tuple[Any, ...]]], limits: Limits = Limits()) -> RunResult:
    """Run a program, then call its functions.

    pydantic-monty runs the program in a separate interpreter and process.  The program has no files, network or
    processes, and only a few modules of the standard library.  The caller's values are copied in; the result is text of
    bounded length, which the interpreter writes itself.

    Args:
        program: any text; it is treated as Python.
        calls: names of functions and their arguments, in JSON values.
        limits: see `Limits`.

    Raises:
        ValueError: the library is missing.
    """
    if len(program) > _LONGEST_PROGRAM:
        return RunResult((), f"it has more than {_LONGEST_PROGRAM} characters", is_loaded=False)
    pool, library = _get_pool()
    results: list[str] = []
    printed: list[str] = []

    def collect_output(stream: str, text: str) -> None:
        if sum(map(len, printed)) < _SHOWN:
            printed.append(text[:_SHOWN])

    bounds = {
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.max_memory_mb * 2**20,
        "max_recursion_depth": limits.max_depth,
        "max_suspensions": 100,  # lookups of unknown names
    }
    error, is_loaded = "", False
    try:
        with pool.checkout(
            limits=bounds, os_policy=_make_policy(), assert_message_annotations=False
        ) as session:
            session.feed_run(program, print_callback=collect_output)
            is_loaded = True
            for name, arguments in calls:
                inputs = {f"argument_{number}": value for number, value in enumerate(arguments)}
                # formatted by the interpreter: the program may have redefined repr, str and format
                text = f'f"{{{name}({", ".join(inputs)})!r:.{_SHOWN}}}"'
                results.append(
                    str(session.feed_run(text, inputs=inputs, print_callback=collect_output))[:_SHOWN]
                )
    except (library.MontyError, TimeoutError) as raised:
        error = str(raised)[:_SHOWN] or type(raised).__name__
        if isinstance(raised, library.MontyCrashedError):
            error = "it broke the interpreter"
        for kind, limit in (
            ("TimeoutError: feed", f"{limits.seconds:g} s"),
            ("MemoryError", f"{limits.max_memory_mb} MB"),
        ):
            if error.startswith(kind):  # no measured number, so that a replayed episode reads the same
                error = f"{kind.split(':')[0]}: it took more than {limit}"
    # the program cannot be sent, for instance since it has a lone surrogate
    except (ValueError, UnicodeError, RecursionError) as raised:
        error = f"{type(raised).__name__}: {raised}"[:_SHOWN]
    return RunResult(tuple(results), " ".join(error.split()), "".join(printed)[:_SHOWN], is_loaded)


def _make_policy() -> dict[str, Any]:
    """Return the policy that makes runs repeatable: a fixed clock and a fixed seed."""
    import datetime

    return {"datetime": datetime.datetime(2026, 1, 1), "sleep": "zero", "random_start": {"seed": 0}}


_lock = threading.Lock()
_pools: dict[int, tuple[Any, Any]] = {}  # by process: a forked process must not use its parent's pool


def _get_pool() -> tuple[Any, Any]:
    """Return the workers of this process, and the library."""
    with _lock:
        if os.getpid() not in _pools:
            try:
                import pydantic_monty
            except ImportError as error:
                raise make_missing_error("pydantic-monty", "code", error) from error
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
