"""What a run comes to: sums over its iterations, and what its engine was asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl.batch import StepBatch
from lit_agentrl.callbacks.iteration_log import measured

_PHASES = ("rollout", "update", "validate")


class Totals(Callback):
    """Sums over a run's iterations, in its checkpoints so that a resumed run counts each once; and torch's threads.

    Attributes:
        used: what the engine was asked for, in evaluations too.
    """

    def __init__(self) -> None:
        self.counts = {"iterations": 0, "episodes": 0, "action_tokens": 0, "prefilled_tokens": 0}
        self.seconds = dict.fromkeys(_PHASES, 0.0)
        self.threads = torch.get_num_threads()
        self.used: Counter[str] = Counter()
        self._is_final = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *where: int
    ) -> None:
        self.used.update(batch.used)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *where: int
    ) -> None:
        self.used.update(batch.used)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *where: int
    ) -> None:
        self.used.update(batch.used)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        row = measured(pl_module)
        self.counts["iterations"] = trainer.current_epoch + 1
        for name in ("action_tokens", "prefilled_tokens"):
            self.counts[name] += int(row.get(f"rollout/{name}", 0))
        self.counts["episodes"] += int(row.get("rollout/episodes", 0) + row.get("rollout/failed", 0))
        for phase in _PHASES:
            self.seconds[phase] += row.get(f"time/{phase}", 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": dict(self.counts), "seconds": dict(self.seconds), "threads": self.threads,
            "used": dict(self.used),
        }  # fmt: skip

    def close(self) -> None:
        """Training is over: take nothing over from checkpoints that are measured now."""
        self._is_final = True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """All but the threads, of which the run has as many as it goes on with."""
        if self._is_final:
            return
        self.used = Counter(state_dict.get("used", {}))  # earlier versions have none
        self.counts = dict(state_dict["counts"])
        self.seconds = dict(state_dict["seconds"])
