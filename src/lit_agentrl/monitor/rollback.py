"""Restore the last healthy weights at an alarm, with a lower learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_agentrl.callbacks.options import check_rollback
from lit_agentrl.modules.contract import as_trained
from lit_agentrl.monitor.actions import Action
from lit_agentrl.strategies.hooks import get_hooks


class Rollback(Action):
    """Takes weights and optimizers back to the last healthy iteration; iterations and prompts go on.

    The start is healthy, and so is each validated iteration after which no rule was beyond its bound.  The weights and
    optimizers of the last healthy iteration are held in memory and saved in checkpoints, which are therefore twice as
    large: a resumed run rolls back to the same weights.

    Args:
        rules: see `Action`.
        lr_factor: factor in (0, 1] by which each rollback multiplies all learning rates, the critic's too.
        at_most: maximum number of rollbacks; a further alarm ends the run as collapsed.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(self, rules: Sequence[str] | None = None, lr_factor: float = 0.5, at_most: int = 3) -> None:
        super().__init__(rules)
        check_rollback(lr_factor=lr_factor, at_most=at_most)
        self.lr_factor, self.at_most = lr_factor, at_most
        self.num_rollbacks = 0
        self._healthy: dict[str, Any] | None = None

    @property
    def ends(self) -> bool:  # type: ignore[override]
        return self.num_rollbacks >= self.at_most

    def setup(self, trainer: Trainer, module: LightningModule) -> None:
        if not as_trained(module).updater.objective.trains:
            raise ValueError("action=rollback has nothing to take back: the algorithm takes no step")
        if get_hooks(trainer.strategy).is_sharded:
            raise ValueError(
                "action=rollback holds all weights, and the strategy shards them; use strategy=single or ddp, or "
                "another action"
            )
        every, last = trainer.check_val_every_n_epoch or 1, trainer.max_epochs or 0
        if 0 < last <= every and last > 1:
            raise ValueError(
                f"action=rollback goes back to validated iterations, and val.every={every} of "
                f"trainer.max_epochs={last} validates none before the last; lower val.every"
            )

    def start(self, trainer: Trainer, module: LightningModule) -> None:
        """Save the start, which counts as healthy."""
        if self._healthy is None:
            self._save_healthy(trainer, module, trainer.current_epoch)

    def note_healthy(self, trainer: Trainer, module: LightningModule) -> None:
        self._save_healthy(trainer, module, trainer.current_epoch + 1)

    def _save_healthy(self, trainer: Trainer, module: LightningModule, iteration: int) -> None:
        self._healthy = {
            "iteration": iteration,
            "weights": {
                name: _copy_to_cpu(weight.detach()) for name, weight in _list_changing_weights(module).items()
            },
            "optimizers": [_copy_to_cpu(optimizer.state_dict()) for optimizer in trainer.optimizers],
        }

    def act(self, trainer: Trainer, module: LightningModule) -> str:
        assert self._healthy is not None, "start() comes first"
        with torch.no_grad():
            for name, weight in _list_changing_weights(module).items():
                weight.copy_(self._healthy["weights"][name])
        for optimizer, state in zip(trainer.optimizers, self._healthy["optimizers"], strict=True):
            rates = [{key: group[key] for key in ("lr", "initial_lr")} for group in optimizer.param_groups]
            optimizer.load_state_dict(_copy_to_cpu(state))  # a copy, since the optimizer may keep its tensors
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group |= {key: value * self.lr_factor for key, value in rate.items()}
        for config in trainer.lr_scheduler_configs:
            config.scheduler.base_lrs = [rate * self.lr_factor for rate in config.scheduler.base_lrs]
        # the weights change, so the version must too: engines keep states of tokens per version
        as_trained(module).updater.progress.version += 1
        self.num_rollbacks += 1
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        return (
            f"rolled back to iteration {self._healthy['iteration']} ({self.num_rollbacks} of at most {self.at_most} "
            f"times), learning rate {rate:.3g}"
        )

    def metrics(self) -> dict[str, float]:
        return {"collapse/rollbacks": float(self.num_rollbacks)}

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.num_rollbacks, "healthy": self._healthy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_rollbacks, self._healthy = state["done"], state["healthy"]


def _list_changing_weights(module: LightningModule) -> dict[str, Tensor]:
    """Return the trained weights, and those of a reference that moves."""
    return {
        name: weight
        for name, weight in module.named_parameters()
        if weight.requires_grad or name.startswith("reference.")
    }


def _copy_to_cpu(tree: Any) -> Any:
    """Copy a tree with its tensors to the memory of the CPU."""
    if isinstance(tree, Tensor):
        return tree.to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: _copy_to_cpu(value) for key, value in tree.items()}
    return [_copy_to_cpu(value) for value in tree] if isinstance(tree, list) else tree
