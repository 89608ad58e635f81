"""Checks that need several processes: started once for all checks of a file."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from lightning.fabric.plugins.environments.lightning import find_free_network_port

Check = Callable[[Path], None]


def _work(rank: int, size: int, port: int, folder: str, checks: Sequence[Check]) -> None:
    torch.set_num_threads(1)
    os.environ |= {  # as torchrun would set them, so that a Trainer starts no processes of its own
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": "tests", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    for check in checks:
        own = Path(folder) / check.__name__
        own.mkdir(exist_ok=True)
        try:
            check(own)
            found = ""
        except BaseException:  # for the test to show
            found = traceback.format_exc()
        (own / f"outcome{rank}").write_text(found)
    _leave()


def _leave() -> None:
    """End the group before the interpreter ends: a thread of gloo's that then frees a tensor aborts the process.

    Ranks leave together, or without those that hang or died in a check.
    """
    with suppress(RuntimeError):
        dist.monitored_barrier(timeout=timedelta(seconds=30))
    dist.destroy_process_group()


def start(checks: Sequence[Check], folder: Path, size: int = 2) -> None:
    """Do all checks, one after another, on every one of ``size`` ranks; each has a folder of its name."""
    mp.spawn(_work, args=(size, find_free_network_port(), str(folder), checks), nprocs=size)


def assert_passed(check: Check, folder: Path, size: int = 2) -> Path:
    """Shows what went wrong on any rank; returns the check's folder."""
    for rank in range(size):
        found = (folder / check.__name__ / f"outcome{rank}").read_text()
        assert not found, f"on rank {rank}: {found}"
    return folder / check.__name__
