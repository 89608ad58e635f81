"""Assemble the objects of a run from its config."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.build.devices import choose_for_device
from lit_agentrl.build.games import Games, TaskLoader, check_prompts, check_thinking
from lit_agentrl.build.instantiation import get_engine_factory, instantiate_as, make_policy
from lit_agentrl.build.matching import match_run
from lit_agentrl.build.monitors import choose_monitors, find_judging_metric
from lit_agentrl.build.parts import Parts, build_parts
from lit_agentrl.build.recorded import HeldOut, read_recordings
from lit_agentrl.build.reference import build_reference_cache
from lit_agentrl.build.strategy import build_strategy, count_processes, is_parallel
from lit_agentrl.callbacks.iteration_log import Compares
from lit_agentrl.callbacks.notes import Notes
from lit_agentrl.callbacks.rollout import RolloutCallback
from lit_agentrl.checks import name_errors
from lit_agentrl.config.signatures import list_entries
from lit_agentrl.data.prompts import PromptStream
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.engines.base import Engine
from lit_agentrl.engines.levels import LevelEngine
from lit_agentrl.engines.native.support import find_positions, require_positions
from lit_agentrl.engines.needs import check_server, open_engine
from lit_agentrl.loggers.files import add_csv_log
from lit_agentrl.models.lora import get_levels
from lit_agentrl.models.onednn import bound_caches
from lit_agentrl.models.policy import Policy
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.modules.reward import RewardModule
from lit_agentrl.requirements import Part
from lit_agentrl.rl.objective import SCORES
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.player import Player
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.strategies.checkpoint_io import AtomicIO
from lit_agentrl.strategies.launching import is_on_cuda
from lit_agentrl.strategies.single import choose_accelerator, single
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.reply_ends import list_model_ends


def suppress_warnings() -> None:
    """Suppress warnings that mean nothing with one batch per epoch; keep all others."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.accelerators.cuda").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric.utilities.distributed").setLevel(logging.WARNING)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise torch's profiler prints its start and stop
    warnings.filterwarnings("ignore", message="Profiler (won't be using warmup|clears events).*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    # networks stay in eval mode, because dropout would make recorded and recomputed log-probs differ
    warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # a run on data without held-out rows is not validated; a note says so
    warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero.*")
    # logged values are reduced over all ranks already
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")
    # an evaluation does not need the callbacks whose state is in the checkpoint
    warnings.filterwarnings(
        "ignore", message=".*callbacks used to create the checkpoint need to be provided.*"
    )
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")


T = TypeVar("T")


@dataclass
class Run:
    """The built objects of a run, for the commands that drive it."""

    cfg: DictConfig
    games: Games
    rules: Rules
    structure: Structure
    module: PolicyModule
    stream: PromptStream
    rollouts: RolloutCallback
    trainer: pl.Trainer
    loggers: list[Logger]
    folder: Path
    recorded: Recordings | None = None  # data set trained on, alone or mixed with rollouts
    held_out: HeldOut | None = None  # pairs that evaluations compare instead of playing
    warnings: Sequence[str] = ()  # lines about the prompts of the games, which were printed


# long: linear code, with one statement for each object of a run
def build(
    cfg: DictConfig,
    load_task: TaskLoader,
    *,
    parts: Parts | None = None,
    extra_callbacks: Sequence[pl.Callback] = (),
) -> Run:
    """Instantiate a run, checking every option before anything is played.

    Args:
        cfg: the composed config.
        load_task: returns the config of a game by name.
        parts: the parts of this config, if they are built already.
        extra_callbacks: callbacks in addition to those of the config.

    Raises:
        ValueError: an invalid value; the message names the option.
    """
    suppress_warnings()
    # on a GPU, matrix products may be computed in TF32
    torch.set_float32_matmul_precision("high" if torch.cuda.is_available() else "highest")
    bound_caches()
    parts = parts or build_parts(cfg, load_task)
    choose_for_device(cfg)  # again: the parts may be those of another copy of the config
    pl.seed_everything(cfg.seed, verbose=False)
    games, settings = parts.games, parts.rollout
    policy = make_policy(cfg, trains=parts.algorithm.trains)
    with name_errors("model"):  # the chat template belongs to the model
        chat = ChatRenderer(
            policy.tokenizer, dialect=parts.dialect, force_think=parts.prompt.force_think,
            shows_replies=parts.context.shows_replies,
            model_ends=list_model_ends(policy.network, policy.tokenizer), date=policy.date,
        )  # fmt: skip
    check_thinking(chat, parts.prompt, policy.name)
    other_parts = match_run(cfg, parts)  # again: a launcher may have started more processes
    rules = Rules(
        tasks=games.tasks, prompt=parts.prompt, chat=chat, context=parts.context,
        engine=_make_engine_factory(cfg, parts, policy, other_parts),
        seed=cfg.seed, max_context_tokens=settings.max_context_tokens, probes=parts.rewards.probes,
        worlds=parts.worlds,
    )  # fmt: skip
    warnings = check_prompts(
        rules, rewards=parts.rewards, num_trained=len(games.weights), parts=other_parts,
        max_reply_tokens=settings.max_reply_tokens, max_positions=find_positions(policy.network),
        exceeded=games.exceeded,
    )  # fmt: skip
    parts.worker.check(rules)
    is_judged = parts.algorithm.reads == SCORES
    data_set = read_recordings(
        parts.data, policy, chat, settings, seed=cfg.seed, is_judged=is_judged,
        is_share_given=cfg.data.get("held_out") is not None,
    )  # fmt: skip
    recorded, mixed = (None, data_set) if parts.plays else (data_set, None)
    held_out = HeldOut(recorded, parts.algorithm.heads) if is_judged and recorded is not None else None
    with name_errors("rollout"):
        stream = PromptStream(
            prompts=parts.structure.prompts(settings.prompts, parts.algorithm.requirements.prompt_factor),
            task_weights=games.weights, seed=cfg.seed, instances=settings.instances, val=games.val,
            test=games.test if cfg.test.episodes else (), recorded=recorded, mixed=mixed,
            is_judged=is_judged, judges_test=is_judged and bool(cfg.test.episodes), sampler=parts.sampler,
        )  # fmt: skip
    collector = Collector(
        rules, settings, structure=parts.structure, select_groups=parts.select_groups,
        further_prompts=stream.make_wave, rewards=parts.rewards, sampler=parts.sampler,
    )  # fmt: skip
    player = Player(
        rules, parts.worker,
        (lambda i: collector.plan_first_wave(stream.make_wave(i, wave=0))) if settings.overlap else None,
    )  # fmt: skip
    rollouts = RolloutCallback(
        collector, player,
        val=Evaluation("val", parts.val_params, 1, settings.max_failed_share, parts.structure.hook.plan_evaluation),
        test=Evaluation("test", parts.test_params, 1, settings.max_failed_share, parts.structure.hook.plan_evaluation),
    )  # fmt: skip
    evaluated = held_out or games
    levels = {
        name: (level.chance_success, level.oracle_success)
        for name, level in evaluated.get_levels("val").items()
        if level.chance_success is not None and level.oracle_success is not None
    }
    is_reference_given = recorded is not None and recorded.is_reference and parts.reference.is_start
    module = (RewardModule if is_judged else PolicyModule)(
        policy, objective=parts.algorithm, update=parts.update, optim=parts.optim,
        temperature=settings.temperature, seed=cfg.seed, critic=parts.critic, levels=levels,
        reference=parts.reference,
        is_reference_given=is_reference_given,
        reference_cache=None if recorded is None else build_reference_cache(cfg, recorded, is_given=is_reference_given),
    )  # fmt: skip
    folder = Path(cfg.run_dir)
    loggers = add_csv_log(build_dict(cfg, "logger", Logger), folder)
    notes = Notes(folder, parts.structure.hook.make_notes)
    # again: this may be another copy of the config
    choose_monitors(cfg.callbacks, judged_by=find_judging_metric(cfg, parts.algorithm))
    callbacks = [rollouts, notes, *extra_callbacks, *build_dict(cfg, "callbacks", pl.Callback)]
    if levels and (held_out or len(levels) == len(games.val)):  # otherwise the means would lack some games
        chance, oracle = (sum(pair[i] for pair in levels.values()) / len(levels) for i in (0, 1))
        for part in (*callbacks, *loggers):
            if isinstance(part, Compares):
                part.compare_with(chance=chance, oracle=oracle)
    trainer = build_trainer(cfg, callbacks, loggers)
    return Run(
        cfg, games, rules, parts.structure, module, stream, rollouts, trainer, loggers, folder, data_set, held_out,
        warnings,
    )  # fmt: skip


def _make_engine_factory(
    cfg: DictConfig, parts: Parts, policy: Policy, others: Sequence[Part]
) -> Callable[..., Engine]:
    """Return a function that makes the engine, after checking that its server, if any, answers.

    The function refuses an engine that lacks what the run needs.
    """
    require_positions(policy.network, cfg.rollout.max_context_tokens)
    make = get_engine_factory(cfg)
    check_server(make)
    if get_levels(policy.network):
        make = partial(LevelEngine, make)
    return partial(open_engine, parts.structure.hook.wrap_engine(make), parts=others)


def build_dict(cfg: DictConfig, key: str, kind: Callable[..., T]) -> list[T]:
    """Instantiate the entries of a group by their ``_target_``; skip null entries.

    Raises:
        ValueError: an entry is neither a target nor null, or its object is not an instance of ``kind``.
    """
    return [instantiate_as(cfg, option, kind) for option in list_entries(cfg, key)]


def build_trainer(cfg: DictConfig, callbacks: Sequence[pl.Callback], loggers: Sequence[Logger]) -> pl.Trainer:
    """Build Lightning's trainer from ``trainer``, with the arguments that the program decides.

    Raises:
        ValueError: several devices with a single-process strategy, an unusable accelerator, or deterministic kernels
            that a GPU lacks.
    """
    choose_for_device(cfg)
    strategy = build_strategy(cfg)
    with name_errors("trainer"):
        device = choose_accelerator(cfg.trainer.get("accelerator", "auto"))
    if cfg.trainer.get("deterministic") is True and is_on_cuda(device):
        raise ValueError(
            "trainer.deterministic=true: tokens are drawn from cumulative sums, and PyTorch has no deterministic "
            "kernel for them on GPUs; use trainer.deterministic=warn"
        )
    if not is_parallel(strategy) and math.prod(count_processes(cfg)) > 1:
        name = "single" if strategy == single() else type(strategy).__name__
        raise ValueError(
            f"trainer.devices={cfg.trainer.devices} trainer.num_nodes={cfg.trainer.num_nodes}: strategy={name} is "
            "one process on one device; choose another strategy, such as strategy=ddp"
        )
    trainer: pl.Trainer = instantiate(
        cfg.trainer,
        strategy=strategy,
        accelerator=device,
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
    # a batch holds recorded episodes, whose numbers keep their precision whatever the network's precision
    trainer.precision_plugin.convert_input = _return_unchanged  # type: ignore[method-assign]
    return trainer


def _return_unchanged(data: Any) -> Any:
    return data


def to_plain_dict(cfg: DictConfig) -> dict[str, Any]:
    """Return the config as plain containers, with interpolations resolved."""
    return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]
