"""The parts of a run that need no weights: cheap to make, so that every job of a sweep is checked first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.checks import named, require_whole
from lit_agentrl.data.prompts import EvalSpec
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.entry.overlap import add_correction, add_worker
from lit_agentrl.entry.structure import build_algorithm, check_structure
from lit_agentrl.envs.base import Mixture, Task
from lit_agentrl.envs.levels import Levels, lookup
from lit_agentrl.models.policy import Policy
from lit_agentrl.rewards.base import RewardPart
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.binding import try_out, with_computed
from lit_agentrl.rl.filters import Selection
from lit_agentrl.rl.objective import Objective, try_loss
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.workers.base import WorkerSettings
from lit_agentrl.rollout.worlds import Worlds
from lit_agentrl.text.context import Context
from lit_agentrl.text.dialects.base import Dialect
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.update.critic import Critic, separate_if_needed
from lit_agentrl.update.settings import OptimSettings, UpdateSettings

TaskLoader = Callable[[str], DictConfig]  # name of a file under conf/env -> its config


@dataclass
class Games:
    """The run's games: trained ones first, then those that are only evaluated."""

    tasks: list[Task]
    weights: list[float]  # of the trained ones
    val: list[EvalSpec]
    test: list[EvalSpec]

    def levels(self, split: str) -> dict[str, Levels]:
        """Chance and oracle of the games evaluated on this split, as far as they are known."""
        specs = self.val if split == "val" else self.test
        return {self.tasks[spec.task].name: lookup(self.tasks[spec.task], split) for spec in specs}


@dataclass
class Parts:
    """What a config describes apart from the policy and what holds it."""

    algorithm: Objective
    structure: Structure
    worker: WorkerSettings | None  # None: the trainer plays itself
    select_groups: Callable[..., Selection]
    rollout: RolloutSettings
    update: UpdateSettings
    optim: OptimSettings
    critic: Callable[[Policy], Critic] | None
    prompt: Prompt
    dialect: Dialect
    worlds: Worlds
    context: Context
    games: Games
    val_params: SamplingParams
    test_params: SamplingParams
    rewards: RewardPipeline


def build_parts(cfg: DictConfig, load_task: TaskLoader) -> Parts:
    """Make them, checking every value.

    Raises:
        ValueError: a value that makes no sense, naming the option.
    """
    require_whole("seed", cfg.seed, 0, 2**32 - 1)
    require_whole("trainer.max_epochs", cfg.trainer.get("max_epochs"), 1)
    require_whole("val.every", cfg.val.every, 1)
    require_whole("val.episodes", cfg.val.episodes, 1)
    require_whole("test.episodes", cfg.test.episodes, 0)
    add_worker(cfg)
    add_correction(cfg)
    algorithm, structure = build_algorithm(cfg)
    toy = TrajectoryBatch.toy().tensors()
    if Objective not in type(algorithm).__mro__:
        raise ValueError(
            f"algo._target_={cfg.algo._target_} must be an Objective: inherit rl.objective.Objective"
        )
    with named("algo"):
        algorithm.try_out(toy)
        try_loss(algorithm, with_computed(toy))
    rollout: RolloutSettings = instantiate(cfg.rollout)
    update: UpdateSettings = instantiate(cfg["update"])  # cfg.update is a method of DictConfig
    check_needs(algorithm, rollout, update, list(cfg.reward))
    select_groups = instantiate(cfg.filter)
    try_out("filter", select_groups, Selection, toy)
    check_structure(structure, algorithm, select_groups, OmegaConf.select(cfg, "algo.structure.max_waves"))
    critic = build_critic(cfg, algorithm)
    games, rewards = build_games(cfg, load_task), build_rewards(cfg.reward)
    try_games(games, rewards)
    prompt, dialect = instantiate(cfg.prompt), instantiate(cfg.dialect)
    if prompt.force_think and not dialect.think_start:
        raise ValueError("prompt.force_think=true needs a dialect whose thinking is opened by a tag")
    return Parts(
        algorithm=algorithm,
        structure=structure,
        select_groups=select_groups,
        rollout=rollout,
        update=update,
        critic=critic,
        games=games,
        val_params=eval_params(rollout, cfg.val.temperature, "val"),
        test_params=eval_params(rollout, cfg.test.temperature, "test"),
        optim=instantiate(cfg.optim),
        prompt=prompt,
        dialect=dialect,
        worlds=instantiate(cfg.worlds),
        worker=instantiate(cfg.worker) if cfg.worker else None,
        context=build_context(cfg, algorithm),
        rewards=rewards,
    )


def check_needs(
    algorithm: Objective, rollout: RolloutSettings, update: UpdateSettings, rewards: Sequence[str]
) -> None:
    """Refuse a mix whose parts need what this run does not give.

    Raises:
        ValueError: naming part, need and remedy.
    """
    asked = algorithm.requirements
    if rollout.members < asked.min_members:
        raise ValueError(
            f"rollout.members={rollout.members}: algo={algorithm.name} compares the members of a group; set "
            f"rollout.members >= {asked.min_members}, or an algorithm that does not, such as algo=reinforce"
        )
    if algorithm.needs("tree_B") or algorithm.needs("node_BT"):
        raise ValueError(
            f"algo.advantage of {algorithm.name} needs episodes that branch, and these are independent: it would "
            "be algo/advantage=group_mean_std, so use that"
        )
    if update.epochs * update.minibatches < asked.min_steps:
        raise ValueError(
            "algo.kl.coef never acts in the first step of an iteration, and there is only one: set "
            "update=four_minibatches or update.epochs=2"
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
    context: Context = instantiate(cfg.context)
    axes = algorithm.requirements.whole_trajectories
    if axes and not context.is_append_only:
        axis = axes[0]
        remedy = {"ratio": "token or turn", "clip": "symmetric or clip_higher"}[axis]
        raise ValueError(
            f"algo.{axis} of {algorithm.name} needs each trajectory in one row, and this context makes one row "
            f"per turn; set context=full, or algo/{axis}={remedy}"
        )
    return context


def build_critic(cfg: DictConfig, algorithm: Objective) -> Callable[[Policy], Critic] | None:
    """What makes the critic; a critic is there if and only if the advantage asks for values.

    Raises:
        ValueError: naming part, need and remedy.
    """
    critic: partial[Critic] | None = instantiate(cfg.critic) if cfg.get("critic") else None
    if algorithm.needs("value_BT") and critic is None:
        raise ValueError(
            f"algo.advantage of {algorithm.name} needs the values of a critic: critic=none has none; "
            "set critic=separate or critic=shared"
        )
    if critic is None:
        return None
    if algorithm.needs("value_BT"):
        return partial(_made_at, "critic", critic)
    if critic.func is separate_if_needed:
        return None
    raise ValueError(
        f"critic: algo.advantage of {algorithm.name} asks for no values; set critic=none, or an estimator such "
        "as algo/advantage=gae_token"
    )


def _made_at(key: str, make: Callable[..., Any], *args: Any) -> Any:
    with named(key):
        return make(*args)


def build_rewards(section: DictConfig) -> RewardPipeline:
    """The reward parts.

    Raises:
        ValueError: an entry is no part, or an option makes no sense.
    """
    parts: dict[str, RewardPart] = {}
    for name, entry in section.items():
        if not isinstance(entry, DictConfig) or "_target_" not in entry:
            raise ValueError(f"reward.{name!s}={entry} must have a _target_; ~reward.{name!s} leaves it out")
        parts[str(name)] = instantiate(entry)
    with named("reward"):
        return RewardPipeline(parts)


def try_games(games: Games, rewards: RewardPipeline) -> None:
    """Make each game once, so that a bad rule fails here, and show its first instance to the reward parts.

    Raises:
        ValueError: from a game, or from a part that cannot work with one that is trained on.
    """
    for index, task in enumerate(games.tasks):
        with named("env"):
            made = task.make("train")
        with closing(made) as env:
            if index < len(games.weights) and rewards.parts:
                observation, _ = env.reset(seed=0)
                for name, part in rewards.parts.items():
                    with named(f"reward.{name}"):
                        part.check_game(task, env, observation)


def build_games(cfg: DictConfig, load_task: TaskLoader) -> Games:
    """The training games of ``env`` and the evaluated ones of ``val.envs`` and ``test.envs``.

    Raises:
        ValueError: an unknown or doubled name, a bad limit, naming the option.
    """
    chosen = instantiate(cfg.env)
    if isinstance(chosen, Mixture):
        tasks = [_load(load_task, name, "env.weights") for name in chosen.weights]
        weights = list(chosen.weights.values())
    elif isinstance(chosen, Task):
        tasks, weights = [chosen], [1.0]
    else:
        raise ValueError(
            f"env._target_={cfg.env._target_} makes a {type(chosen).__name__}; it must make a Task"
        )
    specs = {}
    for split in ("val", "test"):
        names = _names(f"{split}.envs", cfg[split].envs, [task.name for task in tasks[: len(weights)]])
        indices = []
        for name in names:
            known = [task.name for task in tasks]
            if name not in known:
                tasks.append(_load(load_task, name, f"{split}.envs"))
                known.append(name)
            indices.append(known.index(name))
        specs[split] = [EvalSpec(task=index, prompts=cfg[split].episodes) for index in indices]
    return Games(tasks, weights, specs["val"], specs["test"])


def _names(option: str, given: Sequence[str] | str | None, default: Sequence[str]) -> Sequence[str]:
    names = default if given is None else [given] if isinstance(given, str) else list(given)
    if len(set(names)) != len(names) or not names:
        reason = "names a game twice" if names else "names no game; null stands for the games trained on"
        raise ValueError(f"{option}=[{','.join(names)}] {reason}")
    return names


def _load(load_task: TaskLoader, name: str, option: str) -> Task:
    try:
        task = instantiate(load_task(name))
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error
    if not isinstance(task, Task):
        raise ValueError(f"{option}: {name} is not a single game; name games of conf/env")
    return task


def eval_params(settings: RolloutSettings, temperature: float, split: str) -> SamplingParams:
    """Evaluation samples from the whole distribution (or greedily), under the limits of training.

    Raises:
        ValueError: a negative temperature, or none.
    """
    with named(split):
        return replace(settings.params, temperature=temperature, top_p=1.0, top_k=0)
