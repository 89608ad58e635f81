"""The player of a run's episodes, in this process or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.checks import require_members
from lit_agentrl.distributed import StrategyHooks, get_world_size
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.episode import Source
from lit_agentrl.models.policy import get_named_weights
from lit_agentrl.rollout.interrupt import interrupt_at_sigterm
from lit_agentrl.rollout.questions import Answers, Question
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.schedules import PlayAhead, PlayNow, SyncedWorker, measure_staleness
from lit_agentrl.rollout.workers.base import Played, Worker, WorkerSettings
from lit_agentrl.rollout.workers.inline import LocalPlayer


def _refuse(wave: Wave, version: int) -> Played:
    raise AssertionError("open() comes before playing")


class Player:
    """A player of evaluations in this process, and of training episodes.

    Args:
        rules: Rules by which episodes are played.
        worker: Settings of the worker that plays training episodes, if any.
        plan_first_wave: Returns the first wave of an iteration, for playing ahead; None plays nothing ahead.
    """

    def __init__(
        self, rules: Rules, worker: WorkerSettings, plan_first_wave: Callable[[int], Wave] | None
    ) -> None:
        self._rules = rules
        self._worker = worker
        self._plan_first_wave = plan_first_wave
        self._hooks = StrategyHooks()
        self._local_players: tuple[LocalPlayer, ...] = ()  # the last one plays evaluations
        self._schedule: PlayNow | PlayAhead = PlayNow(_refuse)

    def open(
        self,
        network: PreTrainedModel,
        forward_context: ForwardContext,
        hooks: StrategyHooks,
        *,
        reference: Any = None,
        evaluated: Any = None,
    ) -> None:
        """Create the engine of this process around the trainer's network.

        Args:
            network: Network that plays training episodes.
            forward_context: Precision context of the strategy.
            hooks: Hooks of the strategy.
            reference: Network of the opponent.
            evaluated: Network that plays evaluations; a network other than ``network`` gets an engine of its own.

        Raises:
            ValueError: A worker would have to play without weights.
        """
        self.close()
        if network is None and (self._worker.opens_worker or get_world_size() > 1):
            raise ValueError(
                "model has no network here, and a server answers to one process; use worker=none strategy=single, and "
                "engine.concurrency for more requests at a time"
            )
        self._network, self._context, self._hooks = network, forward_context, hooks
        local = LocalPlayer(self._rules, network, forward_context, hooks, reference)
        self._local_players = (local,)
        if evaluated is not None and evaluated is not network:
            self._local_players += (LocalPlayer(self._rules, evaluated, forward_context, hooks),)
        size, threads = self._worker.share, self._worker.threads or 1
        # cut into shares like the worker, which plays all but the first iteration
        self._play_here = (
            local.play if size is None else partial(local.play_shares, size=size, threads=threads)
        )
        self._schedule = PlayNow(self._play_here)

    def start(self, *, last: int | None, iteration: int, state: dict[str, Any] | None) -> None:
        """Open the worker.

        Args:
            last: Number of iterations of the run; None for no end.
            iteration: The first iteration to play.
            state: `state_dict` of a run that was interrupted before that iteration.
        """
        self._schedule.stop()
        self._schedule = PlayNow(self._play_here)
        if not self._worker.opens_worker:
            return
        is_ahead = self._plan_first_wave is not None
        device = next(self._network.parameters()).device
        network = self._hooks.unshard_on_every_rank(self._network).to(device)
        worker = self._worker.open(self._rules, network, self._context, is_ahead=is_ahead)
        require_members(f"worker={type(self._worker).__name__}", worker, Worker)
        if self._plan_first_wave is None:
            self._schedule = PlayNow(SyncedWorker(worker, self._get_weights).play, worker.stop)
            return
        self._schedule = PlayAhead(
            worker, self._get_weights, self._plan_first_wave, self._play_here, last=last,
            shares_cores=device.type == "cpu",
        )  # fmt: skip
        if state is not None and iteration > 0:
            self._schedule.resume(state, iteration)

    def _get_weights(self) -> dict[str, Tensor]:
        """Return the weights, gathered completely before anything is sent."""
        return get_named_weights(self._hooks.unshard_on_every_rank(self._network))

    @contextmanager
    def _wait_for_ranks(self, event: str) -> Iterator[None]:
        """Wait for the other ranks at the end of the context."""
        with interrupt_at_sigterm():
            yield
            self._hooks.barrier(event)

    def play_training(self, wave: Wave, version: int) -> Played:
        """Play episodes to train on; ``version`` is the version of the network's weights."""
        with self._wait_for_ranks("played"):
            return self._schedule.play(wave, version)

    def play_evaluation(self, wave: Wave, version: int) -> Played:
        """Play the episodes of an evaluation; ``version`` is the version of the network's weights."""
        with self._wait_for_ranks("played"):
            return self._local_players[-1].play(wave, version)

    def play_moved(self, wave: Wave, version: int) -> Played:
        """Play episodes to train on with the network's current weights, which belong to no version.

        A worker receives them under a negative number, which is no version; the record names the version from which
        they were moved.
        """
        played = self.play_training(wave, -2 - version)
        for episode in played.episodes:
            episode.source = Source.TRIAL
            for turn in episode.turns:
                turn.policy_version = version
        return played

    def ask(self, questions: Sequence[Question], params: SamplingParams, version: int) -> Answers:
        """Answer independent questions with the policy; all ranks call it, also without questions."""
        with self._wait_for_ranks("asked"):
            return self._local_players[0].ask(questions, params, version)

    def begin_update(
        self, played: TrajectoryBatch | None, version: int, iteration: int, device: torch.device
    ) -> dict[str, float]:
        """Start playing the next iteration, if ahead; return what is logged.

        All episodes of this iteration have been played, so engines of this process may release memory.
        """
        for player in self._local_players:
            player.rest()
        names = ["train/staleness"] if self._schedule.is_ahead else []
        names += ["engine/staleness"] if self._local_players[0].capabilities.weights == "given" else []
        if not names:
            return {}
        staleness = measure_staleness(played, version, device)
        self._schedule.begin_update(version, iteration)
        return dict.fromkeys(names, staleness)

    def end_update(self) -> None:
        """Give the trainer its CPU cores back."""
        self._schedule.end_update()

    def state_dict(self) -> dict[str, Any] | None:
        """Return the weights that play the next iteration; None if the checkpoint holds them."""
        return self._schedule.state_dict()

    def close(self) -> None:
        """Stop the worker, and close the games and the engine of this process."""
        try:
            self._schedule.stop()
        finally:
            local, self._local_players = self._local_players, ()
            self._play_here = _refuse
            self._schedule = PlayNow(_refuse)
            for player in local:
                player.stop()
