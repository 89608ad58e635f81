"""Checks of the workers' options, which import neither torch nor transformers.

Wrong values are therefore reported before these libraries are loaded (`runs.early`).
"""

from __future__ import annotations

from lit_agentrl.checks import require, require_number, require_whole

AUTO = "auto"
ASK_S = 2.0  # seconds between requests to a playing actor for a sign of life
_MIN_PATIENCE_S = 5 * ASK_S  # signs of life are up to two requests old
_LAST_PORT = 65_535
_MOST_PROCESSES, _MOST_ACTORS, _MOST_THREADS = 256, 10_000, 1024


def check_here(*, share: int | None = None, threads: int | None = None) -> None:
    """Check the options of `Here`.

    Raises:
        ValueError: An invalid value, or options that contradict each other; the message names the option.
    """
    check_shares(share, threads)
    if threads is not None and share is None:
        raise ValueError(
            f"threads={threads} acts on shares alone; set worker.share too, or OMP_NUM_THREADS for the whole run"
        )


def check_processes(
    *,
    count: int = 1,
    share: int | None = None,
    threads: int | None = None,
    patience: float | None = None,
    start_patience: float | None = None,
    attempts: int = 3,
) -> None:
    """Check the options of `PoolSettings`; raises as `check_here`."""
    require_whole("count", count, 1, _MOST_PROCESSES)
    _check_pool(share, threads, patience, start_patience, attempts)
    if count > 1 and share is None:
        raise ValueError(
            f"count={count} workers divide a wave into shares, and worker.share=null makes one share of it; "
            "set worker.share, such as worker.share=2"
        )


def check_actors(
    *,
    address: str | None = None,
    count: int | str = AUTO,
    cpus: float = 1,
    gpus: float = 0,
    share: int | None = 1,
    threads: int | None = None,
    patience: float | None = None,
    start_patience: float | None = None,
    attempts: int = 3,
) -> None:
    """Check the options of `RaySettings`; raises as `check_here`."""
    if isinstance(count, str):
        require(count == AUTO, "count", count, "a whole number >= 1, or auto")
    else:
        require_whole("count", count, 1, _MOST_ACTORS, alternative=", or auto")
    if address is not None and address != AUTO:
        split_address(address)
    require_number("cpus", cpus, "a number > 0", lambda number: number > 0)
    require_number("gpus", gpus, "a number >= 0", lambda number: number >= 0)
    if share is None:
        raise ValueError(
            "share=null gives the whole wave to one actor; set worker.share, such as worker.share=2"
        )
    _check_pool(share, threads, patience, start_patience, attempts)
    if patience is not None:
        require_number(
            "patience",
            patience,
            f"a number >= {_MIN_PATIENCE_S:g}",
            lambda seconds: seconds >= _MIN_PATIENCE_S,
        )


def check_shares(share: int | None, threads: int | None) -> None:
    """Check the options of a worker that plays shares.

    Raises:
        ValueError: They are not whole numbers >= 1.
    """
    if share is not None:
        require_whole("share", share, 1)
    if threads is not None:
        require_whole("threads", threads, 1, _MOST_THREADS)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of the address of a cluster.

    Raises:
        ValueError: It is not ``HOST:PORT``.
    """
    host, _, port = address.rpartition(":")
    is_address = bool(host) and "/" not in host and port.isdecimal() and int(port) <= _LAST_PORT
    require(is_address, "address", address, "auto, or HOST:PORT of a cluster")
    return host, int(port)


def _check_pool(
    share: int | None,
    threads: int | None,
    patience: float | None,
    start_patience: float | None,
    attempts: int,
) -> None:
    check_shares(share, threads)
    require_whole("attempts", attempts, 1)
    for name, seconds in (("patience", patience), ("start_patience", start_patience)):
        if seconds is not None:
            require_number(name, seconds, "a number > 0, in seconds", lambda s: s > 0)
