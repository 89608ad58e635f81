"""Check, without Lightning, that the GPUs of a run exist."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


def require_gpus(accelerator: str, devices: int | str | Sequence[int]) -> None:
    """Refuse ``trainer.accelerator`` and ``trainer.devices`` if they name GPUs that torch does not find.

    Raises:
        ValueError: a named GPU does not exist.
    """
    if accelerator == "gpu" and torch.backends.mps.is_available():
        return  # `choose_accelerator` refuses it
    count = torch.cuda.device_count()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    environment_note = "" if hidden is None else f" (the environment variable CUDA_VISIBLE_DEVICES={hidden})"
    if not count:
        raise ValueError(
            f"accelerator={accelerator}: torch finds no GPU here{environment_note}; set trainer.accelerator=cpu"
        )
    last_index = (
        devices - 1 if isinstance(devices, int) else None if isinstance(devices, str) else max(devices)
    )
    if last_index is not None and last_index >= count:
        shown = list(devices) if isinstance(devices, Sequence) else devices
        raise ValueError(
            f"devices={shown} does not exist for trainer.accelerator={accelerator} here, which has "
            f"{count}{environment_note}; use a smaller number"
        )
