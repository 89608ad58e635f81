"""Check the options of launchers before the first run.

Hydra's plugins check them late, or never.
"""

from __future__ import annotations

import shutil

from omegaconf import DictConfig

from lit_agentrl.checks import require, require_one_of, require_positive, require_whole
from lit_agentrl.config.errors import UserError
from lit_agentrl.runs import process

_A_YEAR_MIN = 365 * 24 * 60
_LEAST = {  # minimum of each option that is a whole number, or null if the plugin allows that
    "timeout_min": 1, "cpus_per_task": 1, "gpus_per_node": 0, "tasks_per_node": 1, "mem_gb": 1, "nodes": 1,
    "cpus_per_gpu": 1, "gpus_per_task": 0, "signal_delay_s": 0, "max_num_timeout": 0, "array_parallelism": 1,
    "verbose": 0,
}  # fmt: skip
_ONE = ("tasks_per_node", "nodes")  # must be 1 with the local launcher
_PROCESSES = {"backend": ("loky", None), "prefer": ("processes", None), "require": (None,)}


def get_kind(launcher: DictConfig) -> str:
    """Return the class name of a launcher."""
    return str(launcher._target_).rpartition(".")[2]


def check_launcher(launcher: DictConfig) -> None:
    """Refuse options with which no run would start, or several would share one process.

    Raises:
        ValueError: an invalid option, which the message names.
        UserError: Slurm is not installed.
    """
    kind = get_kind(launcher)
    for name, value in launcher.items():
        key = f"hydra.launcher.{name!s}"
        if name in _LEAST and value is not None:
            is_one = name in _ONE and kind == "LocalLauncher"
            require_whole(key, value, _LEAST[str(name)], 1 if is_one else None)
        if name in _PROCESSES:
            valid = _PROCESSES[str(name)]
            names = " or ".join("null" if valid_name is None else valid_name for valid_name in valid)
            require(value in valid, key, value, f"{names}: each run needs a process of its own")
        if name == "timeout" and value is not None:
            require_positive(key, value)
        if name == "mmap_mode" and value is not None:
            require_one_of(key, value, ("r", "r+", "w+", "c"))
    if kind == "SlurmLauncher" and shutil.which("sbatch") is None:
        raise UserError(
            "hydra/launcher=submitit_slurm: there is no command sbatch here; start the sweep on a machine of the "
            "cluster, or use hydra/launcher=submitit_local"
        )


def count_parallel_runs(launcher: DictConfig) -> int:
    """Return how many runs this launcher can run at once on this machine.

    Raises:
        ValueError: ``n_jobs`` is invalid.
    """
    kind = get_kind(launcher)
    if kind == "JoblibLauncher":
        count = launcher.n_jobs
        is_count = isinstance(count, int) and not isinstance(count, bool) and count != 0
        require(
            is_count,
            "hydra.launcher.n_jobs",
            count,
            "a whole number >= 1, or -1 for as many as there are cores",
        )
        return int(count) if count > 0 else max(process.count_cores() + 1 + int(count), 1)  # as joblib counts
    return process.count_cores() if kind == "LocalLauncher" else 1


def list_local_overrides(launcher: DictConfig, typed: set[str]) -> list[str]:
    """Return overrides for submitit on this machine: a long time limit, and all GPUs."""
    import torch

    added = [] if "hydra.launcher.timeout_min" in typed else [f"hydra.launcher.timeout_min={_A_YEAR_MIN}"]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return added + (
        [f"hydra.launcher.gpus_per_node={gpus}"] if gpus and launcher.gpus_per_node is None else []
    )
