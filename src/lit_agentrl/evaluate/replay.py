"""Replay of an evaluation's episodes with different rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule
from omegaconf import DictConfig

from lit_agentrl.batch import StepBatch
from lit_agentrl.build.assembly import Run
from lit_agentrl.build.instantiation import get_engine_factory
from lit_agentrl.config.errors import UserError
from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.engines.base import CheckedEngine, SamplingParams
from lit_agentrl.episode import Outcome
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.workers.inline import LocalPlayer
from lit_agentrl.strategies.checkpoint_io import AtomicIO
from lit_agentrl.update.critic import reweight_by_critic


def require_shared_weights(cfg: DictConfig, why: str) -> None:
    """Refuse an engine that does not play through the run's own network.

    Raises:
        UserError: the message is ``why`` and the remedy.
    """
    make = get_engine_factory(cfg)
    checked_engine = make.func if isinstance(make, partial) and isinstance(make.func, CheckedEngine) else None
    if checked_engine is None or checked_engine.check_options(**make.keywords).weights != "shared":
        raise UserError(f"{why}; add engine=native")


def replay_episodes(run: Run, name: str, rules: Rules, params: SamplingParams) -> Sequence[Outcome]:
    """Play the same prompts of a game with the same random draws and other rules.

    Args:
        run: the run that has just played them.
        name: name of the game.
        rules: the rules of the run, changed in what is examined.
        params: sampling parameters of replies.
    """
    index = next(n for n, spec in enumerate(run.games.test) if run.games.tasks[spec.task].name == name)
    (batch,) = run.stream.test_dataloader()[index]
    evaluation = replace(run.rollouts.test, params=params)
    network: Any = reweight_by_critic(run.module.policy.network, run.module.critic)
    network.to(run.trainer.strategy.root_device)  # the trainer has moved it to the CPU
    context = run.trainer.precision_plugin.forward_context
    play_inline(rules, network, context, evaluation, batch, run.module.version)
    return evaluation.outcomes


def play_inline(
    rules: Rules,
    network: Any,
    context: ForwardContext,
    evaluation: Evaluation,
    batch: StepBatch,
    version: int = 0,
) -> None:
    """Play the episodes of an evaluation with a new engine around a local network.

    Args:
        rules: rules of the episodes.
        network: writes the replies.
        context: context manager of its forward passes.
        evaluation: receives the outcomes.
        batch: the prompts.
        version: version of the weights.
    """
    player = LocalPlayer(rules, network, context, StrategyHooks())
    try:
        evaluation.collect(batch, player.play, version)
    finally:
        player.stop()


def load_weights(module: LightningModule, checkpoint: Path | None) -> None:
    """Load a checkpoint's weights into a module, as Lightning does; None: change nothing.

    Raises:
        CheckpointError: the checkpoint is not intact.
    """
    if checkpoint is not None:
        state = AtomicIO().load_checkpoint(checkpoint, weights_only=True)
        module.on_load_checkpoint(state)  # adds the adapters to their base
        module.load_state_dict(state["state_dict"])
