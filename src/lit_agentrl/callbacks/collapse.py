"""A policy that has lost everything, or is about to: each is told once."""

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
FALL = 1.0  # nats a side of a pair, on both sides; rates that keep a policy whole stay within 0.5
NOISE = "draws all tokens almost alike"
FALLING = "the log-probs of both sides of a pair have fallen"


class CollapseWatch(Callback):
    """Tells in one line that a policy draws all tokens alike, or takes probability off both sides of its pairs.

    The second is of losses of pairs: what the policy plays instead, nobody has compared.

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
        row = measured(pl_module)
        self._look(row.get("rollout/entropy"), trainer.current_epoch, trainer, pl_module)
        self._look_at_pairs(row, trainer)

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
        if pl_module.network is None:  # behind an API, which tells no entropies
            return
        config = pl_module.network.config  # type: ignore[union-attr]
        highest = math.log(config.get_text_config().vocab_size)  # type: ignore[operator,union-attr]
        if entropy is None or entropy < SHARE * highest:
            return
        self._tell(
            trainer, NOISE,
            f"after {iterations} iteration{'s' * (iterations != 1)} the policy {NOISE} "
            f"(entropy {entropy:.3f} of at most {highest:.3f} nats a token): what it knew is lost; "
            "try a lower optim.lr or temperature",
        )  # fmt: skip

    def _look_at_pairs(self, row: dict[str, float], trainer: Trainer) -> None:
        moved = [row.get(f"train/moved_{side}", 0.0) for side in ("chosen", "rejected")]
        if max(moved) > -FALL:
            return
        after = trainer.current_epoch + 1
        self._tell(
            trainer, FALLING,
            f"after {after} iteration{'s' * (after != 1)} {FALLING}, by {-moved[0]:.1f} nats (chosen) and "
            f"{-moved[1]:.1f} (rejected): probability goes to replies that nobody compared; watch val/success and "
            "rollout/invalid_share, and try a lower optim.lr, a larger algo.beta or algo/nll=unit",
        )  # fmt: skip

    def _tell(self, trainer: Trainer, kind: str, line: str) -> None:
        if any(kind in told for told in self.warnings):
            return
        self.warnings.append(line)
        if trainer.is_global_zero:
            log.warning("warning: %s", line)
