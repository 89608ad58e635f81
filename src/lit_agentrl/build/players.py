"""Engine, worker and training processes of a run, held against one another before any of them starts."""

from __future__ import annotations

import math
from typing import Any

from omegaconf import DictConfig

from lit_agentrl.build.critics import beta_of
from lit_agentrl.build.making import engine_of
from lit_agentrl.build.strategy import is_parallel, processes_of, strategy_of
from lit_agentrl.engines.needs import check_engine_options
from lit_agentrl.rl.objective import Objective
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.workers.base import WorkerSettings


def check_players(
    cfg: DictConfig, worker: WorkerSettings, objective: Objective, structure: Structure
) -> dict[str, Any]:
    """Refuse an engine or a worker that cannot do what the run asks for, as far as their options tell.

    Returns:
        what the run asks of its engine, as `require_capabilities` takes it.

    Raises:
        ValueError: naming what cannot be had together, and the remedy.
    """
    processes = _processes(cfg)
    worker.check_processes(processes)
    asked = {
        "structure": structure.needs,
        "trains": objective.trains,
        # one that asks for both is given recomputed ones
        "trusts_log_probs": objective.needs("old_logp_BT") and not objective.needs("sampler_logp_BT"),
        "reads_entropies": objective.needs("sampler_entropy_BT") or "entropies" in structure.needs,
        "processes": processes,
        "has_workers": worker.place != "here",
        "is_ahead": cfg.rollout.overlap,
        "beta": beta_of(cfg),
    }
    check_engine_options(engine_of(cfg), asked)
    return asked


def _processes(cfg: DictConfig) -> int:
    """Those that train, as far as this machine can tell; one that starts jobs elsewhere may lack their devices."""
    if not is_parallel(strategy_of(cfg)):
        return 1  # what asks for more is refused elsewhere
    try:
        return math.prod(processes_of(cfg))
    except ValueError:
        return 1
