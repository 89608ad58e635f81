"""One process on one device."""

from __future__ import annotations


def single() -> str:
    """Lightning's own choice for one device, by ``trainer.accelerator``: ``auto`` takes CUDA, then MPS, then CPU.

    A run of several devices needs a strategy that deals work among them; assembly refuses it under this one.
    """
    return "auto"
