"""Which device one process computes on."""

from __future__ import annotations

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator

from lit_agentrl.strategies.single import choose_accelerator, single


def _have(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: cuda))
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: mps))


def test_auto_takes_cuda_before_all_and_no_apple_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _have(monkeypatch, cuda=True, mps=False)
    assert choose_accelerator("auto") == "auto"  # which Lightning resolves to CUDA
    _have(monkeypatch, cuda=False, mps=True)
    assert choose_accelerator("auto") == "cpu" and choose_accelerator("cpu") == "cpu"
    with pytest.raises(ValueError, match="^accelerator=gpu: Apple's GPUs have no float64"):
        choose_accelerator("gpu")
    _have(monkeypatch, cuda=False, mps=False)
    with pytest.raises(ValueError, match="^accelerator=mps"):
        choose_accelerator("mps")
    trainer = Trainer(
        accelerator=choose_accelerator("auto"), strategy=single(), logger=False, enable_checkpointing=False
    )
    assert trainer.strategy.root_device.type == "cpu" and trainer.world_size == 1
