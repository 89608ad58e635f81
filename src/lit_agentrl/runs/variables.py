"""Variables of the environment that launchers and OpenMP read, looked at before they do."""

from __future__ import annotations

import os

from lit_agentrl.config.errors import UserError
from lit_agentrl.screen import RANKS


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
    _check_launched()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        given = os.environ.get(name, "1")
        if not all(part.strip().isdecimal() and int(part) for part in given.split(",")):
            raise UserError(f"the environment variable {name}={given} must be a whole number >= 1; unset it")


def _check_launched() -> None:
    """Refuse the variables of a launcher where none is: whoever reads them would wait for processes that never come.

    Raises:
        UserError: naming one.
    """
    environ = os.environ
    if "TORCHELASTIC_RUN_ID" not in environ and "SLURM_NTASKS" not in environ:
        at_most = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
        for name, most in at_most.items():
            if int(environ.get(name, "0")) > most or (name == "LOCAL_RANK" and name in environ):
                raise UserError(
                    f"the environment variable {name}={environ[name]} names one of several processes, and neither "
                    "torchrun nor srun started them; unset it, or start the run with torchrun (one process alone "
                    "starts the others itself: strategy=ddp trainer.devices=2)"
                )
    if int(environ.get("NODE_RANK", "0")) and not {"MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        raise UserError(
            f"the environment variable NODE_RANK={environ['NODE_RANK']} needs MASTER_ADDR and MASTER_PORT, where "
            "the first machine is met; set them, or unset it"
        )
    port = environ.get("MASTER_PORT", "1")
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise UserError(
            f"the environment variable MASTER_PORT={port} must be a whole number from 1 to 65535; unset it"
        )
