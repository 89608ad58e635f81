"""The Lightning callback of rollouts: it fills batches and saves rollout state in checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lit_agentrl.batch import StepBatch
from lit_agentrl.episode import Episode
from lit_agentrl.modules.contract import Agent, Trained, as_agent, as_trained
from lit_agentrl.report.episodes import WARNING_CUT_SHARE
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.player import Player
from lit_agentrl.rollout.questions import Answers, Question
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.structures.hook import TemporaryStep, Training
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.strategies.hooks import get_hooks
from lit_agentrl.text.lost_characters import count_lost, format_lost
from lit_agentrl.update.critic import reweight_by_critic
from lit_agentrl.update.scoring import list_turn_values
from lit_agentrl.update.trial import unlearn

_AHEAD = "played_ahead"  # key in a checkpoint


class RolloutCallback(Callback):
    """Callback that plays the episodes of every batch before the module receives it.

    Batches that are read from a data set are left unchanged.

    Args:
        collector: fills the batches of training.
        player: plays episodes.
        val, test: fill the batches of validation and test; the attribute ``test`` may be replaced.

    Attributes:
        warnings: lines that this process has printed as warnings.
    """

    def __init__(self, collector: Collector, player: Player, *, val: Evaluation, test: Evaluation) -> None:
        self.settings, self.val, self.test = collector.settings, val, test
        self.collector, self._player = collector, player
        self._restored: Any = None
        self.warnings: list[str] = []
        self._has_warned_of_replies = self._has_warned_of_lost = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Build the engine around the module's network, which Lightning moves to its device later."""
        network, context = as_agent(pl_module).policy.network, trainer.precision_plugin.forward_context
        device = trainer.strategy.root_device
        self.collector.setup(device, network)
        hooks = get_hooks(trainer.strategy)
        networks = pl_module.updater.networks if isinstance(pl_module, Trained) else None

        def compute_values(episode: Episode) -> list[float]:
            with context():
                compute_token_values = as_trained(pl_module).updater.networks.compute_values
                return list_turn_values(compute_token_values, pack([episode]).to(pl_module.device).to_dict())

        reference = None if networks is None else networks.reference
        tokenizer = self.collector.rules.chat.tokenizer
        training = Training(compute_values, reference, network, tokenizer, device)
        opponent = self.collector.structure.hook.setup(training)
        critic = None if networks is None else networks.critic
        evaluated = reweight_by_critic(network, critic)
        self._player.open(network, context, hooks, opponent=opponent, evaluated=evaluated)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        last = None if trainer.max_epochs in (None, -1) else trainer.max_epochs
        self._player.start(last=last, iteration=trainer.current_epoch, state=self._restored)
        self._restored = None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        trainer.strategy.on_exception(exception)  # before closing, which can take long
        self._close()

    def _close(self) -> None:
        self.collector.close()
        self._player.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the learnt state of reward parts, structure and task sampler."""
        return self.collector.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.collector.load_state_dict(state_dict)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: Any) -> None:
        if (state := self._player.state_dict()) is not None:
            checkpoint[_AHEAD] = state

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: Any) -> None:
        self._restored = checkpoint.get(_AHEAD)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int
    ) -> None:
        agent = as_agent(pl_module)
        version, device = agent.version, pl_module.device
        if batch.given is not None:  # read from a data set
            _raise_on_sigterm(trainer)
            self.collector.seed_iteration(batch.iteration)
            self.collector.add_structure_columns(batch)
            agent.row |= batch.given
            return

        def play(wave: Wave) -> Played:
            _raise_on_sigterm(trainer)
            return self._player.play_training(wave, version)

        @contextmanager
        def run_trial(episodes: Sequence[Episode], step: TemporaryStep) -> Iterator[Callable[[Wave], Played]]:
            played = [episode for episode in episodes if episode.num_action_tokens and not episode.failed]
            with unlearn(
                agent.policy.network, pack(played).to_dict() if played else None, lr=step.lr, epsilon=step.epsilon,
                temperature=self.settings.temperature, forward_context=trainer.precision_plugin.forward_context,
            ):  # fmt: skip
                yield lambda wave: self._player.play_trial(wave, version)

        def ask(questions: Sequence[Question]) -> Answers:
            _raise_on_sigterm(trainer)
            return self._player.ask(questions, self.settings.params, version)

        agent.row |= self.collector.collect(batch, play, device=device, trial=run_trial, ask=ask)
        self._warn_of_replies("rollout", agent.row)
        self._warn_of_lost_characters("rollout", agent, batch)
        agent.row |= self._player.begin_update(batch.trajectories, version, trainer.current_epoch, device)

    def on_train_batch_end(self, *indices: Any) -> None:
        self._player.end_update()

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, *indices: int
    ) -> None:
        _raise_on_sigterm(trainer)
        if batch.given is not None:
            return
        started, agent = time.perf_counter(), as_agent(pl_module)
        self.val.collect(batch, self._player.play_evaluation, agent.version, is_first=not any(indices))
        agent.row["time/validate"] = agent.row.get("time/validate", 0.0) + time.perf_counter() - started
        self._warn_of_lost_characters("val", agent, batch)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._warn_of_replies("val", as_agent(pl_module).row)

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, *indices: int
    ) -> None:
        _raise_on_sigterm(trainer)
        if batch.given is None:
            self.test.collect(
                batch, self._player.play_evaluation, as_agent(pl_module).version, is_first=not any(indices)
            )
            self._warn_of_lost_characters("test", as_agent(pl_module), batch)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *indices: int
    ) -> None:
        """Store the module's results for a batch from a data set."""
        if batch.given is not None:
            self.val.store_outcomes(batch, is_first=not any(indices))

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *indices: int
    ) -> None:
        """Store the module's results for a batch from a data set."""
        if batch.given is not None:
            self.test.store_outcomes(batch, is_first=not any(indices))

    def _warn(self, line: str) -> None:
        self.warnings.append(line)
        rank_zero_warn(line)

    def _warn_of_replies(self, kind: str, row: Mapping[str, float]) -> None:
        """Warn once in a run if nearly all replies are cut, or all invalid."""
        if self._has_warned_of_replies:
            return
        cut, invalid = (row.get(f"{kind}/{name}_share", 0.0) for name in ("cut", "invalid"))
        if cut >= WARNING_CUT_SHARE:
            line = (
                f"{cut:.0%} of the replies were cut at rollout.max_reply_tokens={self.settings.max_reply_tokens}, "
                f"and a cut reply is rarely valid ({kind}/cut_share): raise the limit, or imitate short replies first "
                "(algo=sft)"
            )
        elif invalid == 1:
            line = (
                f"no reply was a valid action ({kind}/invalid_share): read some in transcripts/, and check that "
                "prompt, dialect and context suit the model, or imitate valid replies first (algo=sft)"
            )
        else:
            return
        self._has_warned_of_replies = True
        self._warn(line)

    def _warn_of_lost_characters(self, kind: str, agent: Agent, batch: StepBatch) -> None:
        """Warn once in a run if the tokenizer drops characters of prompts."""
        if self._has_warned_of_lost or not any(episode.num_lost for episode in batch.episodes):
            return
        self._has_warned_of_lost = True
        texts = (text for episode in batch.episodes for text in episode.prompt_texts)
        lost = count_lost(agent.policy.tokenizer, texts)
        self._warn(
            f"prompts hold {format_lost(lost)} ({kind}/lost_characters); remove them from the texts of the game, or "
            "use another model"
        )


def _raise_on_sigterm(trainer: Trainer) -> None:
    """Raise KeyboardInterrupt after SIGTERM, on which Lightning acts only after the iteration."""
    if trainer.received_sigterm:
        raise KeyboardInterrupt
