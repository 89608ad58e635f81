"""The schedule of one-step overlap: what is trained on next is played while this iteration trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy

from lit_agentrl.models.policy import named_weights
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.workers.process import Played, PlayingProcess

_ENTRY = "played_ahead"  # of a checkpoint
_SHARDED = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)


def require_whole_weights(strategy: Strategy) -> None:
    """Refuse strategies that leave a process with a part of the weights.

    Raises:
        ValueError: naming the remedy.
    """
    if isinstance(strategy, _SHARDED):
        raise ValueError(
            f"rollout.overlap=true needs all weights in each process, and {type(strategy).__name__} shards them; "
            "use strategy=single or ddp, or rollout.overlap=false"
        )


class PlayAhead:
    """Plays iteration i + 1 with the weights that iteration i begins with, while iteration i trains.

    The lag is one update, always.  Only the first iteration of a run is played by the caller, with the start
    weights.  A checkpoint written after iteration i holds the weights that i began with, as far as training has
    moved them since: a resumed run plays i + 1 again from those, and gets the same episodes.

    Args:
        rules: how episodes are played.
        wave_of: the first wave of an iteration.
        device: of the playing process; None for the trainer's.
        threads: of it; None for half of those that torch uses, the trainer keeping the other half.
        patience: see `PlayingProcess`.
    """

    def __init__(
        self,
        rules: Rules,
        wave_of: Callable[[int], Wave],
        *,
        device: str | None = None,
        threads: int | None = None,
        patience: float = 600.0,
    ) -> None:
        rules.require_picklable()
        self._rules = rules
        self._wave_of = wave_of
        self._device = device
        self._threads = threads
        self._patience = patience
        self._process: PlayingProcess | None = None
        self._version: int | None = None  # of the weights that are played with; None before there are any
        self._restored: dict[str, Any] | None = None
        self._threads_before = self._threads_of_training = torch.get_num_threads()

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the process; in a resumed run also what the interrupted one was playing."""
        self.end()
        network: Any = pl_module.network
        before = torch.get_num_threads()
        threads = self._threads or max(1, before // 2)
        self._threads_before = self._threads_of_training = before
        if network.device.type == "cpu":
            self._threads_of_training = max(1, before - threads)
        self._process = PlayingProcess(
            self._rules, network, trainer.precision_plugin.forward_context,
            device=torch.device(self._device) if self._device else network.device,
            threads=threads, patience=self._patience,
        )  # fmt: skip
        if self._restored is not None and trainer.current_epoch > 0:
            weights = named_weights(network) | self._restored["weights"]
            self._load(trainer, weights, self._restored["version"], trainer.current_epoch)
        self._restored = None

    def take(self, wave: Wave) -> Played | None:
        """The episodes of a wave, played with the weights before the last update; None in a first iteration."""
        if self._process is None or self._version is None:
            return None
        return self._process.take(wave)

    def go_on(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All of this iteration has been played: begin with the next, and leave cores to it."""
        weights = named_weights(pl_module.network)  # type: ignore[arg-type]
        self._load(trainer, weights, int(getattr(pl_module, "version", 0)), trainer.current_epoch + 1)
        torch.set_num_threads(
            self._threads_of_training
        )  # whether or not there is a next: bits must not differ

    def update_is_over(self) -> None:
        """Give the trainer its cores back, for validation."""
        torch.set_num_threads(self._threads_before)

    def end(self) -> None:
        """Stop playing."""
        if self._process is not None:
            self._process.stop()
            torch.set_num_threads(self._threads_before)
        self._process = self._version = None

    def save(self, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the weights that the next iteration is played with."""
        if self._process is not None and self._version is not None:
            now = named_weights(pl_module.network)  # type: ignore[arg-type]
            moved = self._process.weights.differing(now)
            checkpoint[_ENTRY] = {"version": self._version, "weights": moved}

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of :meth:`save`; acts when training begins."""
        self._restored = checkpoint.get(_ENTRY)

    def _load(self, trainer: Trainer, weights: dict[str, torch.Tensor], version: int, iteration: int) -> None:
        assert self._process is not None, "begin() comes before training"
        self._process.load(weights, version)
        self._version = version
        if trainer.max_epochs in (None, -1) or iteration < (trainer.max_epochs or 0):
            self._process.submit(self._wave_of(iteration))
