"""One process on one device."""

from __future__ import annotations

from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator


def single() -> str:
    """Lightning's own choice for one device; see `accelerator`.

    A run of several devices needs a strategy that deals work among them; assembly refuses it under this one.
    """
    return "auto"


def accelerator(wanted: str) -> str:
    """What to compute on: ``auto`` is CUDA where there is a device, else the CPU, also beside an Apple GPU.

    Draws and statistics are computed in float64, which Apple's GPUs do not have.

    Raises:
        ValueError: an Apple GPU is asked for by name.
    """
    is_apple = MPSAccelerator.is_available() and not CUDAAccelerator.is_available()
    if wanted == "mps" or (wanted == "gpu" and is_apple):
        raise ValueError(
            f"accelerator={wanted}: Apple's GPUs have no float64, in which draws and statistics are computed; "
            "use trainer.accelerator=cpu"
        )
    return "cpu" if wanted == "auto" and is_apple else wanted
