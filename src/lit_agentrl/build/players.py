"""Describe the worker, the training processes and ``critic.beta`` of a run for matching."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lightning.pytorch.strategies import Strategy
from omegaconf import DictConfig

from lit_agentrl.build.critics import read_beta
from lit_agentrl.build.strategy import build_strategy, count_processes, is_parallel
from lit_agentrl.facts import (
    ONE_PROCESS,
    ONE_VERSION,
    PLAYED,
    PLAYED_HERE,
    POLICY_ALONE,
    RUNS_CRITIC,
    WHOLE_WEIGHTS,
)
from lit_agentrl.requirements import Offer, Part, Requirement, describe_part
from lit_agentrl.rollout.workers.base import WorkerSettings
from lit_agentrl.strategies.hooks import get_hooks


def describe_players(cfg: DictConfig, worker: WorkerSettings) -> Iterator[Part]:
    """Yield descriptions of the strategy, the worker and ``critic.beta``."""
    strategy = build_strategy(cfg)
    processes, is_here = _count_training_processes(cfg, strategy), not worker.opens_worker
    by = f"{processes} training process{'es' * (processes > 1)}"
    is_sharded = isinstance(strategy, Strategy) and get_hooks(strategy).is_sharded
    alone = Offer(ONE_PROCESS, float(processes == 1), by)
    name = type(strategy).__name__.lower() if isinstance(strategy, Strategy) else strategy
    yield describe_part(
        "strategy", strategy, name=name, provides=[alone, *([] if is_sharded else [WHOLE_WEIGHTS])]
    )
    is_one_version = not cfg.rollout.overlap and (is_here or processes == 1)
    reason, remedy = "a worker plays", "worker=none and rollout.overlap=false"
    yield describe_part(
        "worker",
        worker,
        name=type(worker).__name__.removesuffix("Settings").lower(),
        requires=[] if is_here else [Requirement(PLAYED, reason=reason, remedy=remedy)],
        provides=[
            Offer(PLAYED_HERE, float(is_here)),
            Offer(
                ONE_VERSION, float(is_one_version), f"rollout.overlap={cfg.rollout.overlap} and {by}".lower()
            ),
        ],
    )
    beta, off = read_beta(cfg), "critic.beta=0 (beta=0 where a run is evaluated)"
    reweighting = [Requirement(fact, remedy=off) for fact in (RUNS_CRITIC, WHOLE_WEIGHTS)] if beta else []
    yield describe_part(
        "critic.beta", name=f"{beta:g}", requires=reweighting, provides=[] if beta else [POLICY_ALONE]
    )


def _count_training_processes(cfg: DictConfig, strategy: Strategy | str) -> int:
    """Count the training processes; 1 if this machine lacks the configured devices."""
    if not is_parallel(strategy):
        return 1  # `build_trainer` refuses more devices
    try:
        return math.prod(count_processes(cfg))
    except ValueError:
        return 1
