"""Two processes against one on recorded rows of very unequal length: gradients, loss curves, forwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.data.prompts import OneBatch
from lit_agentrl.distributed import get_rank, get_world_size
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.policy import Policy
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.rl.binding import bind
from lit_agentrl.strategies.ddp import DDP
from lit_agentrl.strategies.fsdp import FSDP
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.rl.ragged import config_of, ragged
from tests.strategies.processes import on_ranks
from tests.strategies.recorded import whole
from tests.update.bare import gpt2

CASES = {  # algorithm and what is changed of the update
    "grpo": {},
    "ppo": {"minibatches": 4, "epochs": 2},
    "dapo": {"minibatches": 2},
    "gspo": {"epochs": 2},
}
ITERATIONS = 5
EMPTIED = ("dapo",)  # whose filter leaves nothing of the second rank
STRATEGIES: dict[str, Callable[[], Any]] = {
    "auto": lambda: "auto",
    "ddp": lambda: DDP(timeout_s=60),
    "fsdp": lambda: FSDP(timeout_s=60),
}


def recorded(algo: str) -> TrajectoryBatch:
    """24 rows in 6 groups, from 3 to 60 tokens, of which the filter keeps some; on-policy, float32."""
    tensors = ragged(3, sizes=(4,) * 6, turns=(1, 4), reply=(1, 14))
    tensors = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    with torch.no_grad():
        logp_BT = score_tokens(
            gpt2(), tokens_BT=tensors["tokens_BT"], is_action_BT=tensors["is_action_BT"]
        ).logp_BT
    tensors["sampler_logp_BT"] = logp_BT
    tensors["sampler_entropy_BT"] = tensors["sampler_entropy_BT"].nan_to_num(0.0)
    tensors["reward_BT"] = tensors["reward_BT"].nan_to_num(0.0)
    tensors["success_B"][tensors["group_B"] % 2 == 1] = True  # the filter leaves nothing of the second rank
    tensors["return_B"][tensors["group_B"] % 2 == 1] = 1.0
    batch = TrajectoryBatch(**{name: tensors[name] for name in TrajectoryBatch.__dataclass_fields__})
    kept = bind(
        instantiate(config_of(algo).filter), {n: getattr(batch, n) for n in batch.__dataclass_fields__}
    )
    return batch.select(torch.isin(batch.group_B, kept.keep_groups))


class Watch(pl.Callback):
    """Gradients at every optimizer step, rows of every iteration, forwards of every rank."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []
        self.rows: list[dict[str, float]] = []
        self.forwards = 0

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        pl_module.network.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.forwards += torch.is_grad_enabled()

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Any) -> None:
        grads = [whole(p.grad).flatten() for group in optimizer.param_groups for p in group["params"]]
        self.gradients.append(torch.cat(grads).clone())

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        self.rows.append(dict(pl_module.row))
        pl_module.row = {}


def trained(algo: str, update: dict[str, int], strategy: str) -> Watch:
    config = config_of(algo)
    algorithm = instantiate(config.algo)
    critic = None
    if algorithm.needs("value_BT"):
        section = OmegaConf.load(CONFIG_DIR / "critic/separate.yaml")
        section.optim.lr = 0.01
        critic = instantiate(section)
    adamw = partial(torch.optim.AdamW, betas=(0.9, 0.99), weight_decay=0.0)
    module = PolicyModule(
        Policy(network=gpt2(), tokenizer=None, name="gpt2"), objective=algorithm, critic=critic,
        update=UpdateSettings(tokens_per_microbatch=150, max_logp_gap=1e9, **update),
        optim=OptimSettings(optimizer=adamw, lr=0.003),
    )  # fmt: skip
    rows, watch = recorded(algo), Watch()
    iteration = iter(range(ITERATIONS))

    def batch() -> StepBatch:
        mine = rows.select(rows.group_B % get_world_size() == get_rank())
        return StepBatch(next(iteration), [], [], [], mine if mine.num_rows else None, [None])  # type: ignore[list-item]

    trainer = pl.Trainer(
        max_epochs=ITERATIONS, accelerator="cpu", devices=1 if strategy == "auto" else 2, logger=False,
        strategy=STRATEGIES[strategy](), enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[watch],
    )  # fmt: skip
    trainer.fit(module, OneBatch(batch))
    found = Watch()  # without what Lightning hung on to the other, which cannot be sent
    found.gradients, found.rows, found.forwards = watch.gradients, watch.rows, watch.forwards
    return found


@pytest.mark.parametrize(
    ("algo", "strategy"),
    [
        ("grpo", "ddp"), *(pytest.param(algo, "ddp", marks=pytest.mark.slow) for algo in CASES if algo != "grpo"),
        *(pytest.param(algo, "fsdp", marks=pytest.mark.slow) for algo in CASES),
    ],
)  # fmt: skip
def test_two_processes_are_one(algo: str, strategy: str, tmp_path: Path) -> None:
    """GRPO, PPO with its critic, DAPO whose filter empties the second rank, GSPO; several minibatches."""
    lengths_B = recorded(algo).is_real_BT.sum(1)
    assert lengths_B.max() > 5 * lengths_B.min()
    assert bool((recorded(algo).group_B % 2 == 1).any()) == (algo not in EMPTIED)
    alone = trained(algo, CASES[algo], "auto")
    both = on_ranks(trained, tmp_path, algo, CASES[algo], strategy)
    assert both[0].forwards == both[1].forwards > 0
    first = both[0].gradients
    assert len(first) == len(alone.gradients) >= ITERATIONS
    assert all(torch.equal(x, y) for x, y in zip(first, both[1].gradients, strict=True))
    of_gradients = max(
        float((x - y).abs().max()) for x, y in zip(first[:2], alone.gradients[:2], strict=True)
    )
    of_losses = max(
        abs(x[name] - y[name])
        for x, y in zip(both[0].rows, alone.rows, strict=True)
        for name in ("train/loss", "train/grad_norm", "critic/loss", "critic/explained_variance")
        if name in y
    )
    print(f"{algo}: gradients differ by {of_gradients:.1e}, loss curves by {of_losses:.1e}")
    assert of_gradients < 1e-6 < float(alone.gradients[0].abs().max())
    assert of_losses < 1e-4
