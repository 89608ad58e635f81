"""A function on two real processes that meet over gloo, forked from this one, which is faster than a start."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch.utilities import rank_zero_only


def on_ranks(work: Callable[..., Any], folder: Path, *arguments: Any, world_size: int = 2) -> list[Any]:
    """What ``work(*arguments)`` returns on each rank; Lightning finds the processes started already.

    Raises:
        AssertionError: with the traceback of the first rank that failed.
    """
    port = find_free_network_port()
    context: Any = mp.start_processes(
        _on_rank, args=(world_size, port, str(folder), work, arguments), nprocs=world_size, join=False,
        start_method="fork",
    )  # fmt: skip
    try:
        while not context.join(timeout=120):
            pass
    except Exception as error:
        told = sorted(folder.glob("error*.txt"))
        raise AssertionError(told[0].read_text() if told else str(error)) from error
    return [torch.load(folder / f"result{rank}.pt", weights_only=False) for rank in range(world_size)]


def _on_rank(rank: int, world_size: int, port: int, folder: str, work: Any, arguments: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    os.environ["WORLD_SIZE"] = str(world_size)
    rank_zero_only.rank = rank
    try:
        result = work(*arguments)
    except BaseException:
        Path(folder, f"error{rank}.txt").write_text(traceback.format_exc())
        raise
    torch.save(result, Path(folder, f"result{rank}.pt"))
