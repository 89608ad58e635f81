"""The first number that is not finite is named by its place."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lit_agentrl.callbacks.nonfinite import FirstNonFinite
from lit_agentrl.checks import NotFinite
from tests.callbacks.conftest import Batches

Loss = Callable[[Tensor], Tensor]


class Small(LightningModule):
    """Two layers, trained by hand towards what a test asks for."""

    def __init__(self, loss: Loss, lr: float = 0.1) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        self.loss, self.lr = loss, lr
        self.row: dict[str, float] = {}
        self.last_row: dict[str, float] = {}
        self.policy: Any = None
        self.version = 0

    def export(self, folder: Any, network: Any = None) -> None:
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(self.network(torch.ones(2, 3))))
        optimizer.step()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.network(torch.ones(2, 3))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def fit(folder: Path, module: Small, *callbacks: Callback) -> Small:
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, callbacks=list(callbacks), enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False, num_sanity_val_steps=0, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, Batches(), Batches())
    return module


def mean(scores: Tensor) -> Tensor:
    return scores.mean()


def huge(scores: Tensor) -> Tensor:
    return 1e30 * scores.mean()


def logarithm(scores: Tensor) -> Tensor:
    return torch.log(-scores.abs() - 1).sum()


def root(scores: Tensor) -> Tensor:
    return torch.sqrt(scores - scores.detach()).sum()  # finite, and its slope is not


def total(scores: Tensor) -> Tensor:
    masked = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool), -torch.inf)
    return torch.softmax(torch.cat([scores, masked], 1), 1).sum() + scores.sum()


@pytest.mark.parametrize(
    ("loss", "lr", "place"),
    [
        (logarithm, 0.1, "NaN (2 of 2 numbers) first appears in log, called by logarithm in tests/callbacks/test_nonf"),
        (root, 0.1, "in the gradient that SqrtBackward0, called by root in tests/callbacks/test_nonfinite.py:"),
        (huge, 1e30, "first appears in network.0.weight after a step of SGD: lower optim.lr, in the update of"),
    ],
)  # fmt: skip
def test_what_an_update_breaks_is_named(tmp_path: Path, loss: Loss, lr: float, place: str) -> None:
    with pytest.raises(NotFinite) as stopped:
        fit(tmp_path, Small(loss, lr), FirstNonFinite())
    assert place in str(stopped.value) and str(stopped.value).endswith(" of iteration 1")
    assert not torch.is_anomaly_enabled()


def test_a_module_is_named_with_its_cause(tmp_path: Path) -> None:
    module = Small(mean)
    with torch.no_grad():
        module.network[1].weight[0, 0] = torch.nan
    with pytest.raises(
        NotFinite, match=r"output of network\.1 \(Linear; its weight is not finite\), in the upd"
    ):
        fit(tmp_path, module, FirstNonFinite())


def test_a_module_that_is_sent_to_a_worker_is_looked_at_there(tmp_path: Path) -> None:
    module, watch = Small(mean), FirstNonFinite()
    watch.setup(None, module, "fit")  # type: ignore[arg-type]
    sent = pickle.loads(pickle.dumps(module.network))
    with torch.no_grad():
        sent[0].bias.fill_(torch.inf)
    with pytest.raises(
        NotFinite, match=r"output of network\.0 \(Linear; its bias is not finite\), in the rollout"
    ):
        sent(torch.ones(1, 3))


def test_finite_runs_are_the_same_and_nothing_stays_behind(tmp_path: Path) -> None:
    watched, plain = fit(tmp_path, Small(total), FirstNonFinite()), fit(tmp_path, Small(total))
    for mine, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert not torch.is_anomaly_enabled()
    assert not any(module._forward_hooks for module in watched.modules())
