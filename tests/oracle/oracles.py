"""Finding the two packages, and calling trl's losses without a trainer."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle.batches import Batch, filled, mask

PINS = dict(
    line.split("==")
    for line in Path(__file__).with_name("requirements.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


def load(module: str) -> Any:
    """A module of an oracle, of the pinned version; without it the test fails, it does not skip."""
    package, failure = module.split(".")[0], ""
    wanted = f"{package}=={PINS[package]}"
    try:
        if (found := importlib.metadata.version(package)) != PINS[package]:
            failure = f"{package} is {found}, not {wanted}: run `make oracle`"
        loaded = importlib.import_module(module)
    except ImportError as error:  # PackageNotFoundError is one
        failure = f"{module} cannot be imported ({error}): `make oracle` installs {wanted}"
    if failure:
        pytest.fail(failure, pytrace=False)
    return loaded


class Accelerator:
    """One process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, x: Tensor) -> Tensor:
        return x

    def reduce(self, x: Tensor, reduction: str) -> Tensor:
        return x

    def pad_across_processes(self, x: Tensor, **_: Any) -> Tensor:
        return x


def trainer(**settings: Any) -> SimpleNamespace:
    """What trl's ``_compute_loss`` reads from its trainer: one process, no gradient accumulation, training.

    ``settings`` are attributes of the trainer, or of its ``args`` where they start with ``args_``.
    """
    args = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1}
    args |= {
        name.removeprefix("args_"): value for name, value in settings.items() if name.startswith("args_")
    }
    attributes = {
        "accelerator": Accelerator(),
        "aux_loss_enabled": False,
        "beta": 0.0,
        "current_gradient_accumulation_steps": 1,
        "epsilon_high": 0.2,
        "epsilon_low": 0.2,
        "importance_sampling_level": "token",
        "loss_type": "grpo",
        "max_completion_length": 30,
        "model": SimpleNamespace(training=True),
        "off_policy_mask_threshold": None,
        "top_entropy_quantile": 1.0,
        "use_adaptive_entropy": False,
        "use_vllm": False,
        "_entropy_bonus_enabled": False,
        "_metrics": {"train": defaultdict(list)},
    }
    attributes |= {name: value for name, value in settings.items() if not name.startswith("args_")}
    return SimpleNamespace(**attributes, args=SimpleNamespace(**args))


def trl_loss(
    compute_loss: Any, made: SimpleNamespace, batch: Batch, *, logp_BT: Tensor, advantage: Tensor
) -> Tensor:
    """An unbound ``_compute_loss`` on the batch; the whole row counts as completion."""
    made._get_per_token_logps_and_entropies = lambda *_, **__: (logp_BT, filled(batch, "entropy_BT"), None)
    empty = torch.zeros(len(logp_BT), 0, dtype=torch.int64)
    old_logp_BT = filled(batch, "old_logp_BT", 0.0)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": torch.zeros_like(batch["is_action_BT"], dtype=torch.int64),
        "completion_mask": mask(batch),
        "advantages": advantage,
        "old_per_token_logps": old_logp_BT,
        "old_logps": old_logp_BT.sum(1),
        "ref_per_token_logps": filled(batch, "ref_logp_BT", 0.0),
        "num_items_in_batch": mask(batch).sum(),
    }
    loss: Tensor = compute_loss(made, made.model, inputs)
    return loss
