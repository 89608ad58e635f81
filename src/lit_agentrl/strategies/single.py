"""One process on one device."""

from __future__ import annotations

from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator


def single() -> str:
    """Return the name of Lightning's default strategy for one device; see `choose_accelerator`.

    A run on several devices needs a strategy that distributes work; assembly refuses it with this strategy.
    """
    return "auto"


def choose_accelerator(accelerator: str) -> str:
    """Return the accelerator to use: ``auto`` chooses CUDA if available, never an Apple GPU.

    On a machine with only an Apple GPU, ``auto`` is the CPU: random draws and statistics are computed in float64,
    which Apple's GPUs do not have.

    Raises:
        ValueError: an Apple GPU is requested by name.
    """
    is_apple = MPSAccelerator.is_available() and not CUDAAccelerator.is_available()
    if accelerator == "mps" or (accelerator == "gpu" and is_apple):
        raise ValueError(
            f"accelerator={accelerator}: Apple's GPUs have no float64, in which draws and statistics are computed; "
            "use trainer.accelerator=cpu"
        )
    return "cpu" if accelerator == "auto" and is_apple else accelerator
