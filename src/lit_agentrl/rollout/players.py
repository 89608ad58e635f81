"""Players of a run's episodes: this process or a worker, now or one iteration ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.distributed import StrategyHooks, get_world_size
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.episode import Source
from lit_agentrl.models.policy import get_named_weights
from lit_agentrl.rollout import interrupt
from lit_agentrl.rollout.ahead import PlayAhead, PlayNow, staleness
from lit_agentrl.rollout.questions import Asked, Question
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.workers.base import Played, WorkerSettings
from lit_agentrl.rollout.workers.inline import Inline


class Players:
    """Players of evaluations, in this process, and of training episodes, in the worker if any.

    Args:
        rules: Rules by which episodes are played.
        worker: Settings of the player of training episodes.
        first_wave: Returns the first wave of an iteration, for playing ahead; None plays nothing ahead.
    """

    def __init__(
        self, rules: Rules, worker: WorkerSettings, first_wave: Callable[[int], Wave] | None
    ) -> None:
        self._rules = rules
        self._worker = worker
        self._first_wave = first_wave
        self._hooks = StrategyHooks()
        self._here: Inline | None = None
        self._judged: Inline | None = None  # plays evaluations
        self._now: PlayNow | None = None
        self._ahead: PlayAhead | None = None

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
        if network is None and (self._worker.place == "rank" or get_world_size() > 1):
            raise ValueError(
                "model has no network here, and a server answers to one process; use worker=none strategy=single, and "
                "engine.concurrency for more requests at a time"
            )
        self._network, self._context, self._hooks = network, forward_context, hooks
        self._here = self._judged = Inline(self._rules, network, forward_context, hooks, reference)
        if evaluated is not None and evaluated is not network:
            self._judged = Inline(self._rules, evaluated, forward_context, hooks)

    def start(self, *, last: int | None, iteration: int, state: dict[str, Any] | None) -> None:
        """Open the worker.

        Args:
            last: Number of iterations of the run; None for no end.
            iteration: The first iteration to play.
            state: `state_dict` of a run that was interrupted before that iteration.
        """
        self._stop()
        if self._worker.place == "here":
            return
        is_ahead = self._first_wave is not None
        device = next(self._network.parameters()).device
        network = self._hooks.unshard_on_every_rank(self._network).to(device)
        worker = self._worker.open(self._rules, network, self._context, is_ahead=is_ahead)
        if self._first_wave is None:
            self._now = PlayNow(worker, self._weights)
            return
        self._ahead = PlayAhead(
            worker, self._weights, self._first_wave, last=last, shares_cores=device.type == "cpu"
        )
        if state is not None and iteration > 0:
            self._ahead.resume(state, iteration)

    def _weights(self) -> dict[str, Tensor]:
        """Return the weights, gathered completely before anything is sent."""
        return get_named_weights(self._hooks.unshard_on_every_rank(self._network))

    def play(self, wave: Wave, version: int) -> Played:
        """Play the episodes of an evaluation; ``version`` is the version of the network's weights."""
        assert self._judged is not None, "open() comes before playing"
        return self._with_others(partial(self._judged.play, wave, version))

    def ask(self, questions: Sequence[Question], params: SamplingParams, version: int) -> Asked:
        """Answer independent questions with the policy; all ranks call it, also without questions."""
        assert self._here is not None, "open() comes before asking"
        with interrupt.at_sigterm():
            asked = self._here.ask(questions, params, version)
            self._hooks.barrier("asked")
        return asked

    def play_training(self, wave: Wave, version: int) -> Played:
        """Play episodes to train on."""
        if self._now is not None:
            return self._with_others(partial(self._now.play, wave, version))
        return self._with_others(lambda: self._played_ahead(wave) or self._play_shares(wave, version))

    def play_moved(self, wave: Wave, version: int) -> Played:
        """Play episodes to train on with the network's current weights, which belong to no version.

        A worker receives them under a number that no version has; the record names the version that they come from.
        """
        played = self.play_training(wave, -2 - version)
        for episode in played.episodes:
            episode.source = Source.TRIAL
            for turn in episode.turns:
                turn.policy_version = version
        return played

    def _play_here(self, wave: Wave, version: int) -> Played:
        assert self._here is not None, "open() comes before playing"
        return self._here.play(wave, version)

    def _play_shares(self, wave: Wave, version: int) -> Played:
        size = self._worker.share  # also in the first iteration, where a worker plays all later ones
        if size is None:
            return self._play_here(wave, version)
        assert self._here is not None, "open() comes before playing"
        return self._here.play_shares(wave, version, size, self._worker.threads or 1)

    def _played_ahead(self, wave: Wave) -> Played | None:
        return None if self._ahead is None else self._ahead.take(wave)

    def _with_others(self, play: Callable[[], Played]) -> Played:
        """Play on this rank, then wait for the other ranks.

        The barrier names a rank whose game or worker hangs.
        """
        with interrupt.at_sigterm():
            played = play()
            self._hooks.barrier("played")
        return played

    def update_begins(
        self, played: TrajectoryBatch | None, version: int, iteration: int, device: torch.device
    ) -> dict[str, float]:
        """Begin to play the next iteration if wanted; return what is logged.

        All episodes of this iteration have been played.
        """
        is_given = self._here is not None and self._here.capabilities.weights == "given"
        if self._ahead is None and not is_given:
            return {}
        lag = staleness(played, version, device)
        if self._ahead is None:
            return {"engine/staleness": lag}
        self._ahead.go_on(version, iteration)
        return {"train/staleness": lag, **({"engine/staleness": lag} if is_given else {})}

    def update_ends(self) -> None:
        """Give the trainer its CPU cores back."""
        if self._ahead is not None:
            self._ahead.update_is_over()

    def state_dict(self) -> dict[str, Any] | None:
        """Return the weights that play the next iteration; None if the checkpoint holds them."""
        return None if self._ahead is None else self._ahead.state_dict()

    def _stop(self) -> None:
        for player in (self._now, self._ahead):
            if player is not None:
                player.stop()
        self._now = self._ahead = None

    def close(self) -> None:
        """Stop the worker, and close the games and the engine of this process."""
        try:
            self._stop()
        finally:
            players = dict.fromkeys([self._here, self._judged])
            self._here = self._judged = None
            for each in players:
                if each is not None:
                    each.stop()
