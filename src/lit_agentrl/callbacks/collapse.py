"""A policy that has lost everything, told once."""

from __future__ import annotations

import logging
import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lit_agentrl.callbacks.iteration_log import measured
from lit_agentrl.report.episodes import EpisodeMetrics

log = logging.getLogger(__name__)
SHARE = 0.99  # of the entropy of uniform draws


class CollapseWatch(Callback):
    """Tells in one line that the policy draws as if all tokens were equally likely.

    Attributes:
        warnings: what was told, also before a resumed run was interrupted.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        return {"warnings": list(self.warnings)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Adds what a checkpoint knows, in place: the summary holds the same list."""
        self.warnings += [line for line in state_dict["warnings"] if line not in self.warnings]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Of the training episodes, which the weights of before this iteration's update have played."""
        self._look(measured(pl_module).get("rollout/entropy"), trainer.current_epoch, trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look_at_games(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look_at_games(trainer, pl_module)

    def _look_at_games(self, trainer: Trainer, pl_module: LightningModule) -> None:
        iterations = trainer.current_epoch + (trainer.state.fn == TrainerFn.FITTING)
        played: dict[str, EpisodeMetrics] = pl_module.eval_metrics  # type: ignore[assignment]
        for metrics in played.values():
            self._look(metrics.compute().get("entropy"), iterations, trainer, pl_module)

    def _look(
        self, entropy: float | None, iterations: int, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        config = pl_module.network.config  # type: ignore[union-attr]
        highest = math.log(config.get_text_config().vocab_size)  # type: ignore[operator,union-attr]
        if self.warnings or entropy is None or entropy < SHARE * highest:
            return
        self.warnings.append(
            f"after {iterations} iteration{'s' * (iterations != 1)} the policy draws all tokens almost alike "
            f"(entropy {entropy:.3f} of at most {highest:.3f} nats a token): what it knew is lost; "
            "try a lower optim.lr or temperature"
        )
        if trainer.is_global_zero:
            log.warning("warning: %s", self.warnings[-1])
