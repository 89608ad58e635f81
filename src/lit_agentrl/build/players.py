"""Describe what the strategy, the worker and ``critic.beta`` of a run require and provide."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lightning.pytorch.strategies import Strategy
from omegaconf import DictConfig

from lit_agentrl.build.critics import read_beta
from lit_agentrl.build.strategy import build_strategy, count_processes, is_parallel
from lit_agentrl.checks import format_value
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
    processes = _count_training_processes(cfg, strategy)
    plays_here = not worker.opens_worker
    origin = f"{processes} training process{'es' * (processes > 1)}"
    is_sharded = isinstance(strategy, Strategy) and get_hooks(strategy).is_sharded
    one_process = Offer(ONE_PROCESS, float(processes == 1), origin)
    name = type(strategy).__name__.lower() if isinstance(strategy, Strategy) else strategy
    yield describe_part(
        "strategy", strategy, name=name, provides=[one_process, *([] if is_sharded else [WHOLE_WEIGHTS])]
    )
    is_one_version = not cfg.rollout.overlap and (plays_here or processes == 1)
    needs_rollouts = Requirement(
        PLAYED, reason="a worker plays", remedy="worker=none and rollout.overlap=false"
    )
    yield describe_part(
        "worker",
        worker,
        name=type(worker).__name__.removesuffix("Settings").lower(),
        requires=[] if plays_here else [needs_rollouts],
        provides=[
            Offer(PLAYED_HERE, float(plays_here)),
            Offer(
                ONE_VERSION,
                float(is_one_version),
                f"rollout.overlap={format_value(cfg.rollout.overlap)} and {origin}",
            ),
        ],
    )
    beta = read_beta(cfg)
    remedy = "critic.beta=0 (beta=0 where a run is evaluated)"
    requirements = [Requirement(fact, remedy=remedy) for fact in (RUNS_CRITIC, WHOLE_WEIGHTS)] if beta else []
    yield describe_part(
        "critic.beta", name=f"{beta:g}", requires=requirements, provides=[] if beta else [POLICY_ALONE]
    )


def _count_training_processes(cfg: DictConfig, strategy: Strategy | str) -> int:
    """Count the training processes; return 1 if this machine lacks the devices."""
    if not is_parallel(strategy):
        return 1  # `build_trainer` refuses more devices
    try:
        return math.prod(count_processes(cfg))
    except ValueError:  # this machine lacks the devices, which `build_trainer` refuses
        return 1
