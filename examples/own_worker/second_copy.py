"""A worker of one's own: training episodes are played by a second copy of the network, which may lie elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.models.policy import get_named_weights
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.workers.base import Played, Worker, WorkerSettings
from lit_agentrl.rollout.workers.weights import differing


@dataclass(frozen=True, kw_only=True)
class SecondCopy(WorkerSettings):
    """Plays with a copy on ``device``."""

    device: str = "cpu"

    def open(
        self, rules: Rules, network: PreTrainedModel, forward_context: ForwardContext, *, is_ahead: bool
    ) -> Worker:
        twin: PreTrainedModel = copy.deepcopy(network).to(self.device)  # type: ignore[arg-type]
        return Copy(rules, twin, forward_context)


class Copy:
    """Plays when its episodes are taken, so it keeps no core busy while the trainer trains."""

    threads = 0

    def __init__(self, rules: Rules, network: PreTrainedModel, forward_context: ForwardContext) -> None:
        self._network = network
        self._engine = rules.open_engine(network, forward_context)
        self._scheduler = Scheduler(rules, self._engine)
        self._wave: Wave | None = None

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        self._engine.load(weights, version)

    def submit(self, wave: Wave) -> None:
        self._wave = wave

    def take(self) -> Played:
        assert self._wave is not None, "nothing was submitted"
        wave, self._wave = self._wave, None
        return Played(self._scheduler.play(wave))

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return differing(get_named_weights(self._network), weights)

    def stop(self) -> None:
        self._scheduler.close()
        self._engine.stop()
