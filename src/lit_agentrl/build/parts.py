"""The parts of a run that need no weights: cheap to make, so that every job of a sweep is checked first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.build.critics import build_critic
from lit_agentrl.build.games import Games, TaskLoader, build_games, try_games
from lit_agentrl.build.making import made, made_like, made_wording
from lit_agentrl.build.monitors import check_monitors, metrics_of
from lit_agentrl.build.overlap import add_correction, add_worker
from lit_agentrl.build.players import check_players
from lit_agentrl.build.recorded import build_kind
from lit_agentrl.build.reference import build_reference
from lit_agentrl.build.strategy import check_strategy, check_trainer
from lit_agentrl.build.structure import (
    build_algorithm,
    check_critic,
    check_overlap,
    check_structure,
    check_trained,
)
from lit_agentrl.checks import format_value, name_errors, require_whole
from lit_agentrl.data.kinds import Kind
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.models.policy import Policy
from lit_agentrl.rewards.base import RewardPart
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.binding import try_out, with_computed
from lit_agentrl.rl.objective import Objective, try_loss
from lit_agentrl.rl.policy.filters import Selection
from lit_agentrl.rollout.settings import MOST, RolloutSettings
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.workers.base import WorkerSettings
from lit_agentrl.rollout.workers.inline import Here
from lit_agentrl.rollout.worlds.pool import Worlds
from lit_agentrl.text.context import Context
from lit_agentrl.text.dialects.base import Dialect
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.update.critic import Critic
from lit_agentrl.update.minibatches import name_units
from lit_agentrl.update.reference import Reference
from lit_agentrl.update.settings import OptimSettings, UpdateSettings


@dataclass
class Parts:
    """What a config describes apart from the policy and what holds it."""

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
    data: Kind | None = None

    @property
    def plays(self) -> bool:
        """Whether training plays."""
        return self.data is None or self.data.is_mixed


def build_parts(cfg: DictConfig, load_task: TaskLoader) -> Parts:
    """Make them, checking every value.

    Raises:
        ValueError: a value that makes no sense, naming the option.
    """
    require_whole("seed", cfg.seed, 0, 2**32 - 1)
    require_whole("trainer.max_epochs", cfg.trainer.get("max_epochs"), 1)
    check_trainer(cfg.trainer)
    check_strategy(cfg)
    require_whole("val.every", cfg.val.every, 1)
    require_whole("val.episodes", cfg.val.episodes, 1, MOST)
    require_whole("test.episodes", cfg.test.episodes, 0, MOST)
    add_worker(cfg)
    add_correction(cfg)
    algorithm, structure = build_algorithm(cfg)
    toy = TrajectoryBatch.make_toy().to_dict()
    metrics = _tried(algorithm)
    rollout, update = made(cfg, "rollout", RolloutSettings), made(cfg, "update", UpdateSettings)
    algorithm, kind = build_kind(cfg, algorithm, structure, update)
    if kind is not None and kind.is_mixed:
        metrics = _tried(algorithm)
    check_needs(algorithm, rollout, update, list(cfg.reward), is_played=kind is None or kind.is_mixed)
    if kind is None or kind.is_mixed:
        _check_minibatches(algorithm, structure, rollout, update)
    select_groups = instantiate(cfg.filter)
    try_out("filter", select_groups, Selection, toy)
    context = build_context(cfg, algorithm)
    max_waves = OmegaConf.select(cfg, "algo.structure.max_waves")
    check_structure(structure, algorithm, select_groups, max_waves, context, rollout)
    check_overlap(structure, is_ahead=rollout.overlap)
    critic = build_critic(cfg, algorithm)
    games, rewards = build_games(cfg, load_task), build_rewards(cfg.reward)
    try_games(games, rewards)
    check_trained(structure, games)
    check_monitors(
        cfg.callbacks,
        metrics_of(games, rewards, algorithm, structure, metrics, has_critic=critic is not None),
    )
    prompt, dialect = made_wording(cfg)
    return Parts(
        algorithm=algorithm,
        structure=structure,
        select_groups=select_groups,
        rollout=rollout,
        update=update,
        critic=critic,
        reference=build_reference(cfg, algorithm),
        games=games,
        val_params=eval_params(rollout, cfg.val.temperature, "val"),
        test_params=eval_params(rollout, cfg.test.temperature, "test"),
        optim=made(cfg, "optim", OptimSettings),
        prompt=prompt,
        dialect=dialect,
        worlds=made(cfg, "worlds", Worlds),
        worker=_worker(cfg, algorithm, structure, has_critic=critic is not None),
        context=context,
        rewards=rewards,
        data=kind,
    )


def _tried(algorithm: Objective) -> list[str]:
    """Names of the metrics of its loss, which is tried on a toy batch."""
    toy = TrajectoryBatch.make_toy().to_dict()
    with name_errors("algo"):
        algorithm.try_out(toy)
        return try_loss(algorithm, with_computed(toy)) if algorithm.trains else []


def _check_minibatches(
    algorithm: Objective, structure: Structure, rollout: RolloutSettings, update: UpdateSettings
) -> None:
    """Refuse more minibatches than an iteration could ever fill: each update would be skipped as the filter's fault."""
    prompts = structure.prompts(rollout.prompts, algorithm.requirements.prompt_factor)
    units = algorithm.unit or "trajectory_B"
    most = prompts * (rollout.members if units == "trajectory_B" else 1)
    if update.minibatches > most:
        raise ValueError(
            f"update.minibatches={update.minibatches} exceeds the {most} {name_units(units)} that rollout.prompts="
            f"{rollout.prompts} and rollout.members={rollout.members} give; lower it, or play more"
        )


def check_needs(
    algorithm: Objective,
    rollout: RolloutSettings,
    update: UpdateSettings,
    rewards: Sequence[str],
    *,
    is_played: bool = True,
) -> None:
    """Refuse a mix whose parts need what this run does not give; ``is_played``: groups are of rollouts.

    Raises:
        ValueError: naming part, need and remedy.
    """
    asked = algorithm.requirements
    if is_played and rollout.members < asked.min_members:
        raise ValueError(
            f"rollout.members={rollout.members}: algo={algorithm.name} compares the members of a group; set "
            f"rollout.members >= {asked.min_members}, or an algorithm that does not, such as algo=reinforce"
        )
    if update.epochs * update.minibatches < asked.min_steps:
        raise ValueError(
            "algo.kl.coef never acts in the first step of an iteration, and there is only one: set "
            "update=four_minibatches or update.epochs=2"
        )
    if update.stop is not None and update.epochs * update.minibatches == 1:
        raise ValueError(
            f"update.stop.bound={update.stop.bound} never acts: an iteration has one step, which is always taken; set "
            "update=four_minibatches or update.epochs=2, or update/stop=none"
        )
    if rewards and algorithm.needs("baseline_B"):
        raise ValueError(
            f"reward=[{','.join(rewards)}]: algo.advantage of {algorithm.name} takes off the points of the greedy "
            "episode, which no part shapes; use reward=none, or algo/advantage=loo"
        )


def build_context(cfg: DictConfig, algorithm: Objective) -> Context:
    """What the policy reads before a reply.

    Raises:
        ValueError: a part of the algorithm needs each trajectory in one row, and this context cuts it up.
    """
    context: Context = made_like(cfg, "context", Context)
    axes = algorithm.requirements.whole_trajectories
    if axes and not context.is_append_only:
        axis = axes[0]
        remedy = {"ratio": "token or turn", "clip": "symmetric or clip_higher"}[axis]
        raise ValueError(
            f"algo.{axis} of {algorithm.name} needs each trajectory in one row, and this context makes one row "
            f"per turn; set context=full, or algo/{axis}={remedy}"
        )
    return context


def _worker(
    cfg: DictConfig, algorithm: Objective, structure: Structure, *, has_critic: bool
) -> WorkerSettings:
    worker = made(cfg, "worker", WorkerSettings) if cfg.worker else Here()
    check_players(cfg, worker, algorithm, structure)
    check_critic(structure, has_critic=has_critic, plays_here=isinstance(worker, Here))
    return worker


def build_rewards(section: DictConfig) -> RewardPipeline:
    """The reward parts.

    Raises:
        ValueError: an entry is no part, or an option makes no sense.
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


def eval_params(settings: RolloutSettings, temperature: float, split: str) -> SamplingParams:
    """Evaluation samples from the whole distribution (or greedily), under the limits of training.

    Raises:
        ValueError: a negative temperature, or none.
    """
    with name_errors(split):
        return replace(settings.params, temperature=temperature, top_p=1.0, top_k=0)
