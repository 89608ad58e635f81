"""Variables of the environment that launchers and OpenMP read, looked at before they do."""

from __future__ import annotations

import os

from lit_agentrl.entry.errors import UserError
from lit_agentrl.entry.ranks import RANKS


def check_environment() -> None:
    """Refuse variables of a launcher that Lightning and torch could not read.

    Raises:
        UserError: one is no number, naming it.
    """
    for name in (*RANKS, "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NNODES"):
        if not (value := os.environ.get(name, "0")).strip().isdecimal():
            raise UserError(
                f"the environment variable {name}={value} must be a whole number, as torchrun and srun set it; unset it"
            )
    for name, of in (
        ("RANK", "WORLD_SIZE"),
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        rank, size = os.environ.get(name), os.environ.get(of)
        if rank is not None and size is not None and int(rank) >= int(size):
            raise UserError(
                f"the environment variable {name}={rank} must be less than {of}={size}, as torchrun and srun set "
                "them; unset both"
            )
    given = os.environ.get("OMP_NUM_THREADS", "1")
    if not all(part.strip().isdecimal() and int(part) for part in given.split(",")):
        raise UserError(
            f"the environment variable OMP_NUM_THREADS={given} must be a whole number >= 1; unset it"
        )
