"""Write the policy as a folder that other programs load, ``hf/`` of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_agentrl.files import replace_folder
from lit_agentrl.modules.contract import Agent
from lit_agentrl.strategies.background import copy_network_to_host
from lit_agentrl.strategies.checkpoint_io import AtomicIO, CheckpointError
from lit_agentrl.strategies.hooks import get_hooks


def export_policy(trainer: Trainer, module: LightningModule, folder: Path, *, wait: bool) -> None:
    """Replace a folder by the export of the module's policy; all ranks must call it.

    Rank zero writes; ``wait=False`` lets the thread of `AtomicIO` write a copy, if the export depends on the network
    alone.  A module without a network, whose policy is behind an API, exports nothing.

    Raises:
        CheckpointError: the folder cannot be written; for a write by the thread see `AtomicIO.save_checkpoint`.
    """
    hooks = get_hooks(trainer.strategy)
    if isinstance(module, Agent) and module.policy.network is not None:
        network = hooks.unshard_on_rank_zero(module.policy.network)  # a collective
        if trainer.is_global_zero and network is not None:
            write = partial(_replace, folder, module.export)
            io = trainer.strategy.checkpoint_io
            if isinstance(io, AtomicIO):
                wait = wait or not getattr(module, "exports_network_alone", False)
                io.write_or_start(folder, write, network, copy_network_to_host, wait=wait)
            else:
                write(network)
    hooks.barrier("export")


def _replace(folder: Path, export: Callable[..., None], network: Any) -> None:
    try:
        replace_folder(folder, partial(export, network=network))
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(
            f"cannot write {folder}: {reason}; its earlier contents are unchanged"
        ) from error
