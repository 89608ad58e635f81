"""From a composed config to the objects of a run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.callbacks.checkpoints import AtomicIO
from lit_agentrl.callbacks.rollout import RolloutCallback, RolloutSettings
from lit_agentrl.data.prompts import EvalSpec, PromptStream
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.envs.base import Mixture, Task
from lit_agentrl.envs.levels import Levels, lookup
from lit_agentrl.models.policy import Policy
from lit_agentrl.modules.policy_optimisation import PolicyModule
from lit_agentrl.modules.settings import OptimSettings, UpdateSettings
from lit_agentrl.rl.algorithm import Algorithm
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt

TaskLoader = Callable[[str], DictConfig]  # name of a file under conf/env -> its config


@dataclass
class Games:
    """The run's games: trained ones first, then those that are only evaluated."""

    tasks: list[Task]
    weights: list[float]  # of the trained ones
    val: list[EvalSpec]
    test: list[EvalSpec]

    def levels(self, split: str) -> dict[str, Levels]:
        specs = self.val if split == "val" else self.test
        return {self.tasks[spec.task].name: lookup(self.tasks[spec.task], split) for spec in specs}


@dataclass
class Run:
    """Everything that an entry point drives."""

    cfg: DictConfig
    games: Games
    module: PolicyModule
    stream: PromptStream
    rollouts: RolloutCallback
    trainer: pl.Trainer
    loggers: list[Logger]
    folder: Path


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
        raise ValueError(f"env._target_={cfg.env._target_} makes a {type(chosen).__name__}; it must make a Task")
    specs = {}
    for split in ("val", "test"):
        section = cfg[split]
        names = [task.name for task in tasks[: len(weights)]] if section.envs is None else list(section.envs)
        if len(set(names)) != len(names):
            raise ValueError(f"{split}.envs={names} names a game twice")
        if section.episodes < (1 if split == "val" else 0):
            raise ValueError(f"{split}.episodes={section.episodes} must be >= {1 if split == 'val' else 0}")
        indices = []
        for name in names:
            known = [task.name for task in tasks]
            if name not in known:
                tasks.append(_load(load_task, name, f"{split}.envs"))
                known.append(name)
            indices.append(known.index(name))
        specs[split] = [EvalSpec(task=index, prompts=section.episodes) for index in indices]
    for task in tasks:
        task.make("train")  # a bad rule of a game fails here, not in the first rollout
    return Games(tasks, weights, specs["val"], specs["test"])


def _load(load_task: TaskLoader, name: str, option: str) -> Task:
    task = instantiate(load_task(name))
    if not isinstance(task, Task):
        raise ValueError(f"{option}: {name} is not a single game; name games of conf/env")
    return task


def build(
    cfg: DictConfig, load_task: TaskLoader, *, extra_callbacks: Sequence[pl.Callback] = ()
) -> Run:
    """Instantiate a run; every option is checked here, before anything is played.

    Raises:
        ValueError: a value that makes no sense, naming the option.
    """
    _quieten()
    if cfg.val.every < 1:
        raise ValueError(f"val.every={cfg.val.every} must be >= 1 iterations")
    _require_non_negative_seed(cfg.seed)
    pl.seed_everything(cfg.seed, verbose=False)
    algorithm: Algorithm = instantiate(cfg.algo)
    settings: RolloutSettings = instantiate(cfg.rollout)
    if settings.members < algorithm.min_group_size:
        raise ValueError(
            f"rollout.members={settings.members}: algo.advantage of {algorithm.name} compares the members of a "
            f"group; set rollout.members >= {algorithm.min_group_size} or algo/advantage=mc_return"
        )
    update: UpdateSettings = instantiate(cfg.update)
    optim: OptimSettings = instantiate(cfg.optim)
    games = build_games(cfg, load_task)
    policy: Policy = instantiate(cfg.model)
    prompt: Prompt = instantiate(cfg.prompt)
    chat = ChatRenderer(policy.tokenizer, force_think=prompt.force_think, template=policy.chat_template)
    check_vocabulary(chat, prompt, games.tasks)
    rollouts = RolloutCallback(
        tasks=games.tasks, engine=instantiate(cfg.engine), prompt=prompt, chat=chat, settings=settings,
        select_groups=instantiate(cfg.filter), eval_params=eval_params(settings, cfg.val.temperature, "val"),
        seed=cfg.seed,
    )  # fmt: skip
    levels = {name: (level.chance_success, level.oracle_success) for name, level in games.levels("val").items()}
    module = PolicyModule(
        policy, algorithm=algorithm, update=update, optim=optim, temperature=settings.temperature,
        seed=cfg.seed, levels=levels,
    )  # fmt: skip
    stream = PromptStream(
        prompts=settings.prompts, task_weights=games.weights, seed=cfg.seed, val=games.val,
        test=games.test if cfg.test.episodes else (),
    )  # fmt: skip
    folder = Path(cfg.run_dir)
    loggers = build_dict(cfg.logger)
    callbacks = [rollouts, *extra_callbacks, *build_dict(cfg.callbacks)]
    trainer = build_trainer(cfg, callbacks, loggers)
    return Run(cfg, games, module, stream, rollouts, trainer, loggers, folder)


def build_dict(section: DictConfig | None) -> list[Any]:
    """The objects of a group whose entries each have a ``_target_``; null entries are left out."""
    return [instantiate(entry) for entry in (section or {}).values() if entry is not None]


def build_trainer(cfg: DictConfig, callbacks: Sequence[pl.Callback], loggers: Sequence[Logger]) -> pl.Trainer:
    strategy = cfg.strategy.strategy
    trainer: pl.Trainer = instantiate(
        cfg.trainer,
        strategy=strategy if isinstance(strategy, str) else instantiate(strategy),
        callbacks=list(callbacks),
        logger=list(loggers),
        default_root_dir=str(cfg.run_dir),
        check_val_every_n_epoch=cfg.val.every,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_checkpointing=any(isinstance(c, pl.callbacks.Checkpoint) for c in callbacks),
        enable_model_summary=False,
        use_distributed_sampler=False,
        plugins=[AtomicIO()],
        _convert_="all",
    )
    return trainer


def eval_params(settings: RolloutSettings, temperature: float, split: str) -> SamplingParams:
    """Evaluation samples from the whole distribution (or greedily), under the limits of training."""
    try:
        return SamplingParams(
            temperature=temperature,
            max_reply_tokens=settings.max_reply_tokens,
            max_context_tokens=settings.max_context_tokens,
        )
    except ValueError as error:
        raise ValueError(f"{split}.{error}") from error


def check_vocabulary(chat: ChatRenderer, prompt: Prompt, tasks: Sequence[Task]) -> None:
    """Refuse prompts that the tokenizer cannot read.

    Raises:
        ValueError: the opening prompt of a game becomes unknown tokens.
    """
    unknown = chat.tokenizer.unk_token_id
    if unknown is None:
        return
    for task in tasks:
        env = task.make("train")
        observation, _ = env.reset(seed=0)
        messages = prompt.opening(
            name=task.name, rules=env.rules, action_names=env.action_names(), observation=observation,
            max_turns=task.max_turns, max_actions=task.max_actions,
            max_actions_per_turn=task.max_actions_per_turn,
        )  # fmt: skip
        share = chat.opening(messages).tokens.count(unknown)
        if share:
            raise ValueError(
                f"the tokenizer does not know {share} tokens of the prompt of {task.name}; "
                "use prompt=compact, a game written in its vocabulary, or another model"
            )


def _require_non_negative_seed(seed: Any) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed} must be a whole number in [0, 2^32)")


def _quieten() -> None:
    """Silence what is noise under one batch an epoch; everything that concerns the user stays."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.accelerators.cuda").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
    torch.set_float32_matmul_precision("high" if torch.cuda.is_available() else "highest")


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The config as plain containers with interpolations resolved."""
    return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]
