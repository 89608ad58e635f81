"""Check that the GPUs of a run are there, without Lightning."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


def require_gpus(accelerator: str, devices: int | str | Sequence[int]) -> None:
    """Refuse ``trainer.accelerator`` and ``trainer.devices`` if they name GPUs that torch does not find.

    Raises:
        ValueError: they do.
    """
    if accelerator == "gpu" and torch.backends.mps.is_available():
        return  # `choose_accelerator` refuses it
    count = torch.cuda.device_count()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "" if hidden is None else f" (the environment variable CUDA_VISIBLE_DEVICES={hidden})"
    if not count:
        raise ValueError(
            f"accelerator={accelerator}: torch finds no GPU here{why}; set trainer.accelerator=cpu"
        )
    wanted = devices - 1 if isinstance(devices, int) else None if isinstance(devices, str) else max(devices)
    if wanted is not None and wanted >= count:
        shown = list(devices) if isinstance(devices, Sequence) else devices
        raise ValueError(
            f"devices={shown} does not exist for trainer.accelerator={accelerator} here, which has {count}{why}; use "
            "a smaller number"
        )
