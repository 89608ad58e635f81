"""Build the parts of a run that need no weights.

They are cheap to make, so that all jobs of a sweep can be checked before the first one starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hydra.utils import instantiate
from omegaconf import DictConfig

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.build.critics import build_critic
from lit_agentrl.build.devices import choose_for_device
from lit_agentrl.build.games import Games, TaskLoader, build_games, has_world, try_games
from lit_agentrl.build.instantiation import instantiate_as, instantiate_like, make_prompt_and_dialect
from lit_agentrl.build.matching import match_run
from lit_agentrl.build.monitors import check_monitors, choose_monitors, find_judging_metric, list_metrics
from lit_agentrl.build.overlap import add_correction, add_worker
from lit_agentrl.build.precision import check_sync_gap
from lit_agentrl.build.recorded import build_kind
from lit_agentrl.build.structure import build_algorithm, check_trained
from lit_agentrl.checks import format_value, name_errors
from lit_agentrl.config.numbers import check_numbers
from lit_agentrl.data.kinds import Kind
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.models.policy import Policy
from lit_agentrl.rewards.base import RewardPart
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.binding import try_out, with_computed
from lit_agentrl.rl.objective import Objective, try_loss
from lit_agentrl.rl.policy.filters import Selection
from lit_agentrl.rollout.settings import RolloutSettings, make_eval_params
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.workers.base import WorkerSettings
from lit_agentrl.rollout.workers.inline import Here
from lit_agentrl.rollout.worlds.pool import Worlds
from lit_agentrl.task_sampler import TaskSampler
from lit_agentrl.text.context import Context
from lit_agentrl.text.dialects.base import Dialect
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.update.critic import Critic
from lit_agentrl.update.reference import Reference
from lit_agentrl.update.settings import OptimSettings, UpdateSettings


@dataclass
class Parts:
    """The objects of a run that need neither the policy nor its weights."""

    algorithm: Objective
    structure: Structure
    worker: WorkerSettings
    select_groups: Callable[..., Selection]
    rollout: RolloutSettings
    update: UpdateSettings
    optim: OptimSettings
    critic: Callable[[Policy], Critic] | None
    reference: Reference
    prompt: Prompt
    dialect: Dialect
    worlds: Worlds
    context: Context
    games: Games
    val_params: SamplingParams
    test_params: SamplingParams
    rewards: RewardPipeline
    sampler: TaskSampler
    data: Kind | None = None

    @property
    def plays(self) -> bool:
        """True if training plays episodes, alone or mixed with recorded data."""
        return self.data is None or self.data.is_mixed


def build_parts(cfg: DictConfig, load_task: TaskLoader) -> Parts:
    """Build the parts, checking every value.

    Raises:
        ValueError: an invalid value; the message names the option.
    """
    check_numbers(cfg)
    add_worker(cfg)
    add_correction(cfg)
    algorithm, structure = build_algorithm(cfg)
    loss_metrics = _test_objective(algorithm)
    rollout = instantiate_as(cfg, "rollout", RolloutSettings)
    choose_for_device(cfg)
    check_sync_gap(cfg)
    update = instantiate_as(cfg, "update", UpdateSettings)
    algorithm, kind = build_kind(cfg, algorithm)
    if kind is not None and kind.is_mixed:
        loss_metrics = _test_objective(algorithm)
    select_groups = instantiate(cfg.filter)
    try_out("filter", select_groups, Selection, TrajectoryBatch.make_toy().to_dict())
    prompt, dialect = make_prompt_and_dialect(cfg)
    parts = Parts(
        algorithm=algorithm,
        structure=structure,
        select_groups=select_groups,
        rollout=rollout,
        update=update,
        critic=build_critic(cfg, algorithm),
        reference=instantiate_as(cfg, "reference", Reference),
        games=build_games(cfg, load_task),
        val_params=make_eval_params(rollout, cfg.val.temperature, "val"),
        test_params=make_eval_params(rollout, cfg.test.temperature, "test"),
        optim=instantiate_as(cfg, "optim", OptimSettings),
        prompt=prompt,
        dialect=dialect,
        worlds=instantiate_as(cfg, "worlds", Worlds),
        worker=instantiate_as(cfg, "worker", WorkerSettings) if cfg.worker else Here(),
        context=instantiate_like(cfg, "context", Context),
        rewards=build_rewards(cfg.reward),
        sampler=instantiate_as(cfg, "task_sampler", TaskSampler),
        data=kind,
    )
    match_run(cfg, parts)
    with name_errors("algo.structure"):
        structure.branching(rollout.members)
    try_games(parts.games, parts.rewards)
    check_trained(structure, parts.games)
    has_critic = parts.critic is not None
    measured = list_metrics(
        parts.games, parts.rewards, algorithm, structure, loss_metrics, has_critic=has_critic
    )
    measured += ["val/data_*"] if kind is not None and kind.held_out else []
    choose_monitors(cfg.callbacks, judged_by=find_judging_metric(cfg, algorithm))
    check_monitors(cfg.callbacks, measured, has_world=has_world(cfg))
    return parts


def _test_objective(algorithm: Objective) -> list[str]:
    """Test an objective on a toy batch, and return the metric names of its loss."""
    toy = TrajectoryBatch.make_toy().to_dict()
    with name_errors("algo"):
        algorithm.try_out(toy)
        return try_loss(algorithm, with_computed(toy)) if algorithm.trains else []


def build_rewards(section: DictConfig) -> RewardPipeline:
    """Instantiate the reward parts.

    Raises:
        ValueError: an entry is not a reward part, or an option is invalid.
    """
    parts: dict[str, RewardPart] = {}
    for name, entry in section.items():
        if not isinstance(entry, DictConfig) or "_target_" not in entry:
            raise ValueError(
                f"reward.{name!s}={format_value(entry)} must have a _target_; ~reward.{name!s} leaves it out"
            )
        parts[str(name)] = instantiate(entry)
    with name_errors("reward"):
        return RewardPipeline(parts)
