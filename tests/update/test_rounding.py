"""Which optimizers lose small steps of half-precision weights, and what is said of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from lit_agentrl.build.precision import describe_lost_steps
from lit_agentrl.update.rounding import check_lost_steps
from lit_agentrl.update.settings import OptimSettings


class Masters(torch.optim.SGD):
    """Steps float32 copies, and writes them into the weights."""

    def __init__(self, params: Any, lr: float) -> None:
        self.weights = list(params)
        self.copies = [torch.nn.Parameter(weight.detach().float()) for weight in self.weights]
        super().__init__(self.copies, lr=lr)

    def step(self, closure: Any = None) -> None:
        for weight, copy in zip(self.weights, self.copies, strict=True):
            copy.grad = weight.grad.float()
        super().step()
        for weight, copy in zip(self.weights, self.copies, strict=True):
            weight.data.copy_(copy.data)


@pytest.mark.parametrize(
    ("optimizer", "loses"), [(torch.optim.AdamW, True), (torch.optim.SGD, True), (Masters, False)]
)
def test_optimizers(optimizer: Any, loses: bool) -> None:
    assert check_lost_steps(optimizer) is loses


@pytest.mark.parametrize(
    ("model", "precision", "lr", "said"),
    [
        ({"dtype": "bfloat16"}, "32-true", 1e-6, "model.dtype=bfloat16 with optim.lr=1e-06: steps smaller"),
        ({}, "bf16-true", 1e-6, "trainer.precision=bf16-true with"),
        ({"dtype": "bfloat16"}, "bf16-mixed", 1e-5, ""),
        ({"dtype": "float32"}, "bf16-mixed", 1e-6, ""),
        ({"dtype": "bfloat16", "lora": {"r": 8}}, "32-true", 1e-6, ""),
    ],
)
def test_the_warning(model: dict[str, Any], precision: str, lr: float, said: str) -> None:
    cfg = OmegaConf.create({"model": model, "trainer": {"precision": precision}, "strategy": {}})
    line = describe_lost_steps(cfg, OptimSettings(optimizer=partial(torch.optim.AdamW), lr=lr))
    assert line.startswith(said) and bool(line) == bool(said)
