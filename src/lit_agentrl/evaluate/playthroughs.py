"""Playthroughs: whole single episodes of a policy, played as in an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig
from rich.console import Group

from lit_agentrl import screen
from lit_agentrl.batch import StepBatch
from lit_agentrl.build.games import TaskLoader
from lit_agentrl.callbacks.markup import Decode
from lit_agentrl.data.prompts import EvalSpec
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.evaluate.episode_view import render_episode
from lit_agentrl.evaluate.evaluation import Announcer, rebuild_run
from lit_agentrl.evaluate.model_evaluation import open_model
from lit_agentrl.evaluate.options import check_play_options, find_checkpoint
from lit_agentrl.evaluate.replay import load_weights
from lit_agentrl.models.packages import PREFIX
from lit_agentrl.models.policy import Policy
from lit_agentrl.report.table import Printed
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.settings import make_eval_params
from lit_agentrl.runs.finished import note_if_unfinished
from lit_agentrl.runs.run_folder import require_idle
from lit_agentrl.text.dialects.base import Dialect


@dataclass(frozen=True, repr=False)
class Playthrough(Printed):
    """One episode; printed, it shows what the policy saw, wrote and earned in each turn.

    Attributes:
        episode: the whole episode, with all tokens.
        dialect: format of its replies.
        note: the weights and the sampling.
        decode: turns tokens into text, to show all that the policy reads; None: only what it observes is shown.
    """

    episode: Episode
    dialect: Dialect
    note: str
    decode: Decode | None = None

    @property
    def turns(self) -> list[Turn]:
        """The turns in order, each with ``observation``, ``reply_text``, ``actions`` and ``reward``."""
        return self.episode.turns

    def __rich__(self) -> Group:
        return render_episode(self.episode, self.dialect, self.note, self.decode)


class EpisodeCollector(Callback):
    """Callback that keeps the whole episodes of a test; reports keep only their outcomes."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *indices: int
    ) -> None:
        self.episodes += batch.episodes


def play(cfg: DictConfig, saved: DictConfig, load_task: TaskLoader, *, folder: Path) -> list[Playthrough]:
    """Play some tasks of one game as an evaluation does.

    With the same seed and temperature, each episode equals that of an evaluation.

    Args:
        cfg: the options of ``conf/play.yaml``.
        saved: the run's own config, with ``folder`` as its run folder.
        load_task: finds the config of a game by name.
        folder: the run folder.

    Raises:
        ValueError: an option is out of range, a checkpoint does not exist, a game fails, or the run is still training.
    """
    check_play_options(cfg)
    require_idle("run", folder)
    checkpoint = find_checkpoint(cfg, folder)
    note_if_unfinished(folder)
    collector = EpisodeCollector()
    announcer = Announcer()
    run = rebuild_run(cfg, saved, load_task, extra_callbacks=[collector, announcer])
    settings = run.rollouts.settings
    params = make_eval_params(settings, float(cfg.temperature), "play")
    game = run.games.tasks[run.games.test[0].task].name
    announcer.text = f"playing {screen.describe_episodes([game], cfg.episodes)}"
    run.rollouts.test = replace(run.rollouts.test, split=cfg.split, params=params)
    run.stream.test = [EvalSpec(run.games.test[0].task, prompts=cfg.episodes, first=cfg.instance)]
    with screen.show_playing():
        run.trainer.test(
            run.module, run.stream, ckpt_path=None if checkpoint is None else str(checkpoint),
            verbose=False, weights_only=True,
        )  # fmt: skip
    weights = "start" if checkpoint is None else checkpoint.stem
    note = f"{weights} weights, temperature {cfg.temperature:g}, seed {cfg.seed}"
    chat = run.rules.chat
    decode = chat.decode if cfg.messages else None
    return [
        Playthrough(episode, chat.dialect, f"{cfg.split} instance {episode.group}, {note}", decode)
        for episode in collector.episodes
    ]


def play_model(
    cfg: DictConfig, model_overrides: Sequence[str], folders: Sequence[str] = ()
) -> list[Playthrough]:
    """Play some tasks of one game with any model, as its evaluation does.

    Args:
        cfg: the options of ``conf/play.yaml``, without a run.
        model_overrides: options of ``conf/train.yaml`` that select the model, the engine and the way of playing.
        folders: the user's config folders.

    Raises:
        UserError: an option is out of range.
        ValueError: an option is invalid, or the game fails.
    """
    check_play_options(cfg)
    with closing(open_model(cfg, model_overrides, folders)) as model:
        (spec,) = model.games.test
        params = make_eval_params(model.settings, float(cfg.temperature), "play")
        evaluation = Evaluation(cfg.split, params, max_failed_share=model.settings.max_failed_share)
        name = str(model.saved.engine.get("model") or model.name.removeprefix(PREFIX))
        game = model.games.tasks[spec.task].name
        screen.announce(f"{name} plays {screen.describe_episodes([game], cfg.episodes)}")
        played = model.play(0, replace(spec, first=cfg.instance), evaluation)
        note = f"{name}, temperature {cfg.temperature:g}, seed {cfg.seed}"
        decode = model.rules.chat.decode if cfg.messages else None
        return [
            Playthrough(episode, model.dialect, f"{cfg.split} instance {episode.group}, {note}", decode)
            for episode in played.episodes
        ]


def load_policy(cfg: DictConfig, saved: DictConfig, load_task: TaskLoader, *, folder: Path) -> Policy:
    """Load a run's network and tokenizer, with the weights of ``checkpoint``, on the CPU.

    Raises:
        UserError: there is no such checkpoint.
        CheckpointError: no intact checkpoint exists.
    """
    checkpoint = find_checkpoint(cfg, folder)
    module = rebuild_run(cfg, saved, load_task).module
    load_weights(module, checkpoint)
    return module.policy
