"""Training on one recorded batch through a Trainer, alone or as one of several ranks that hold parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from hydra.utils import instantiate
from lightning.pytorch.strategies import Strategy
from omegaconf import OmegaConf
from torch.distributed.tensor import DTensor

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.data.prompts import OneBatch
from lit_agentrl.models.policy import Policy
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.paths import find_config
from lit_agentrl.rl.binding import bind
from lit_agentrl.strategies.checkpoint_io import AtomicIO
from lit_agentrl.update.moving import Moving
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.golden.curves import ADAMW
from tests.rl.ragged import config_of
from tests.update.bare import gpt2, off_policy

GROUPS = [[0, 1, 2], [3, 4, 5]]  # of each rank; lengths are ragged


def whole(value: torch.Tensor) -> torch.Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


class Recorder(pl.Callback):
    """Gradients before each optimizer step of the first iteration, and the row of each iteration."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.rows: list[dict[str, float]] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Any) -> None:
        if trainer.current_epoch == 0:
            named = pl_module.named_parameters()
            self.gradients.append({name: whole(p.grad) for name, p in named if p.grad is not None})

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        self.rows.append(dict(pl_module.row))
        pl_module.row = {}


def parts_of(name: str) -> tuple[Any, str]:
    """Config and critic of ``ALGORITHM [AXIS=OPTION …] [critic=OPTION] [moving]``."""
    algorithm, *changes = (each for each in name.split() if each != "moving")
    critic = [change.removeprefix("critic=") for change in changes if change.startswith("critic=")]
    return config_of(algorithm, *(c for c in changes if not c.startswith("critic="))), (
        critic or ["separate"]
    )[0]


def batch_of(name: str, groups: Sequence[int]) -> TrajectoryBatch | None:
    """The rows of these groups that the algorithm's filter keeps."""
    batch = off_policy.__wrapped__(distance=0.0)  # in the precision of now, which a cache would not know of
    tensors = {field: getattr(batch, field) for field in batch.__dataclass_fields__}
    kept = bind(instantiate(parts_of(name)[0].filter), tensors).keep_groups
    chosen = torch.isin(batch.group_B, kept) & torch.isin(batch.group_B, torch.tensor(groups))
    return batch.select(chosen) if chosen.any() else None


def module_of(name: str) -> PolicyModule:
    config, kind = parts_of(name)
    algorithm = instantiate(config.algo)
    critic = OmegaConf.load(find_config(f"critic/{kind}.yaml")) if algorithm.needs("value_BT") else None
    module = PolicyModule(
        Policy(network=gpt2(), tokenizer=None, name="gpt2"), objective=algorithm,  # type: ignore[arg-type]
        update=UpdateSettings(grad_clip=1e9, max_logp_gap=1e9, tokens_per_microbatch=100),
        optim=OptimSettings(optimizer=ADAMW, lr=0.003),
        critic=instantiate(critic, grad_clip=1e9) if critic is not None else None,
        reference=Moving(alpha=0.5) if "moving" in name.split() else None,
    )  # fmt: skip
    if module.critic is not None:
        torch.nn.init.normal_(module.critic.head.weight, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for reference in module.updater.networks.frozen:  # as if training had begun elsewhere: no KL is 0
            for weight in reference.parameters():
                weight.mul_(0.9)
    return module


def train(
    name: str, strategy: str | Strategy = "auto", *, iterations: int = 5, save: Path | None = None,
    resume: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Gradients of the first iteration, rows of all, and final weights.

    Args:
        name: see `parts_of`.
        strategy: of Lightning.  Where ranks were started, this one trains on its groups alone.
        iterations: at the end.
        save: where to, at the end.
        resume: a checkpoint to continue from.
    """
    size = dist.get_world_size() if dist.is_initialized() else 1
    mine = GROUPS[dist.get_rank()] if size > 1 else sum(GROUPS, [])
    module, recorder = module_of(name), Recorder()
    trainer = pl.Trainer(
        max_epochs=iterations, accelerator="cpu", devices=size, strategy=strategy, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[recorder],
        plugins=[AtomicIO()], use_distributed_sampler=False,
    )  # fmt: skip

    def make() -> StepBatch:
        trajectories = batch_of(name, mine)
        empty = {} if trajectories is not None else {"episodes": [None]}
        return StepBatch(
            trainer.current_epoch,
            [],
            [],
            [],
            trajectories=trajectories,
            num_groups=6,
            num_kept_groups=4,
            **empty,
        )

    trainer.fit(module, OneBatch(make), ckpt_path=None if resume is None else str(resume), weights_only=True)
    if save is not None:
        trainer.save_checkpoint(save, weights_only=False)
    watch = getattr(strategy, "_watch", None)
    if watch is not None:  # there will be another strategy in this process group
        watch.close()
    weights = {name: whole(value) for name, value in module.state_dict().items()}
    return {"gradients": recorder.gradients, "rows": recorder.rows, "weights": weights}
