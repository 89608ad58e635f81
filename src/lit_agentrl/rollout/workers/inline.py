"""Playing in this process, with the trainer's own network."""

from __future__ import annotations

from transformers import PreTrainedModel

from lit_agentrl.distributed import StrategyDoors
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played


class Inline:
    """Plays when it is asked for the episodes, with the weights that the network then has.

    Args:
        rules: how episodes are played.
        network: the trainer's.
        forward_context: the strategy's precision context.
        doors: of the strategy.

    Attributes:
        capabilities: of the engine.
    """

    def __init__(
        self, rules: Rules, network: PreTrainedModel, forward_context: ForwardContext, doors: StrategyDoors
    ) -> None:
        self._network = network
        self._gathered = doors.gathered
        engine = rules.open_engine(network, forward_context)
        self.capabilities = engine.capabilities
        self._sync = WeightSync(engine, network, rules, forward_context, barrier=doors.barrier)
        self._scheduler = Scheduler(rules, engine)

    def play(self, wave: Wave, version: int) -> Played:
        """The episodes, played now; ``version`` is that of the weights."""
        # ranks decode different numbers of steps: no collective within, once the weights are given
        with self._gathered(self._network):
            self._sync.load(None, version)  # the weights are the trainer's own
            row = self._sync.probed(wave.params)
            return Played(self._scheduler.play(wave), row=row)

    def stop(self) -> None:
        """Close the games that are kept for further episodes."""
        self._scheduler.close()
