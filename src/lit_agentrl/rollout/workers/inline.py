"""Playing in this process, with the trainer's own network."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.rollout.questions import Answers, Question, ask
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played, Worker, WorkerSettings
from lit_agentrl.rollout.workers.options import check_here
from lit_agentrl.rollout.workers.shares import cut_wave, join_shares, play_share, use_torch_threads


@dataclass(frozen=True, kw_only=True)
class Here(WorkerSettings):
    """Options of a trainer that plays training episodes itself.

    Args:
        share: Prompts that are played together, one share after the other; None for all at once.
        threads: Torch threads while a share is played; None for 1, as in any other worker.

    Raises:
        ValueError: A value is out of range, or there are threads without shares.
    """

    share: int | None = None
    threads: int | None = None
    opens_worker = False

    def __post_init__(self) -> None:
        check_here(share=self.share, threads=self.threads)

    def open(self, *given: object, is_ahead: bool) -> Worker:
        raise NotImplementedError("the trainer plays itself")


class LocalPlayer:
    """A player in this process, with the network's weights at the time of the request.

    Args:
        rules: Rules by which episodes are played.
        network: The trainer's network.
        forward_context: Precision context of the strategy.
        hooks: Hooks of the strategy.
        reference: Network of an opponent, if there is one.

    Attributes:
        capabilities: Capabilities of the engine.
    """

    def __init__(
        self,
        rules: Rules,
        network: PreTrainedModel,
        forward_context: ForwardContext,
        hooks: StrategyHooks,
        reference: Any = None,
    ) -> None:
        self._network = network
        self._seed, self._chat = rules.seed, rules.chat
        self._hooks, self._reference = hooks, reference
        more = {} if reference is None else {"reference": reference}
        self._engine = engine = rules.open_engine(network, forward_context, **more)
        self.capabilities = engine.capabilities
        self._sync = WeightSync(engine, network, rules, forward_context, barrier=hooks.barrier)
        self._scheduler = Scheduler(rules, engine)

    def play(self, wave: Wave, version: int) -> Played:
        """Play all episodes of a wave together; ``version`` is that of the weights."""
        # ranks decode different numbers of steps: no collective is allowed here after the weights are loaded
        with self._hooks.gather_weights(self._network), self._use_opponent():
            self._sync.load(None, version)  # None: the trainer's own weights
            metrics = self._sync.probe(wave.params)
            episodes = self._scheduler.play(wave)
            return Played(episodes, metrics=metrics, used=self._sync.measure_usage())

    def play_shares(self, wave: Wave, version: int, size: int, threads: int) -> Played:
        """Play a wave in shares of ``size`` prompts, each with an initially empty engine."""
        shares, played = cut_wave(wave, size, self._seed), {}
        with self._hooks.gather_weights(self._network), self._use_opponent(), use_torch_threads(threads):
            self._sync.load(None, version)  # also on a rank without a share
            for share in shares:
                played[share.number] = play_share(share, self._sync, self._scheduler, version)
        return join_shares(wave, shares, played)

    def ask(self, questions: Sequence[Question], params: SamplingParams, version: int) -> Answers:
        """Answer independent questions with the policy, between waves."""
        with self._hooks.gather_weights(self._network):
            self._sync.load(None, version)
            self._sync.probe(params)
            asked = ask(self._engine, self._chat, questions, params)
            return replace(asked, used=self._sync.measure_usage())

    def _use_opponent(self) -> AbstractContextManager[object]:
        """Move the reference to the device of the policy within the context."""
        if self._reference is None:
            return nullcontext()
        return self._hooks.place_on_device(self._reference, self._network.device)

    def rest(self) -> None:
        """Release the engine's memory until the next wave, if the engine can."""
        self._sync.rest()

    def stop(self) -> None:
        """Close the environments held for further episodes, and stop the engine."""
        try:
            self._scheduler.close()
        finally:
            self._engine.stop()
