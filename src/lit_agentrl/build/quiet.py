"""Silence of libraries about what a run does on purpose."""

from __future__ import annotations

import logging
import os
import warnings

import torch


def quieten() -> None:
    """Silence what is noise under one batch an epoch; everything that concerns the user stays."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.accelerators.cuda").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric.utilities.distributed").setLevel(logging.WARNING)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else torch's profiler tells when it starts and stops
    warnings.filterwarnings("ignore", message="Profiler (won't be using warmup|clears events).*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    # networks stay in eval mode: dropout would make recorded and recomputed log-probs differ
    warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # what is logged has been counted over all ranks already
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")
    # an evaluation has no use for the callbacks whose state lies in the checkpoint
    warnings.filterwarnings(
        "ignore", message=".*callbacks used to create the checkpoint need to be provided.*"
    )
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
    torch.set_float32_matmul_precision("high" if torch.cuda.is_available() else "highest")
