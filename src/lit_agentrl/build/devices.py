"""Choose values for the device where a config says ``auto``."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.build.instantiation import SLOTS
from lit_agentrl.build.memory import name_precision, plan_memory
from lit_agentrl.config.signatures import BY_DEVICE
from lit_agentrl.files import write_atomic
from lit_agentrl.models.memory_plan import CONTEXT, MemoryPlan, fit_microbatch
from lit_agentrl.strategies.launching import is_on_cuda
from lit_agentrl.update.settings import CPU_VALUES

AUTO = "auto"
_SIZES = ("update.tokens_per_microbatch", "update.logits_chunk")
_ON_CPU = ("32-true", SLOTS, False, *(CPU_VALUES[key.removeprefix("update.")] for key in _SIZES))
ON_CPU: dict[str, Any] = dict(zip(BY_DEVICE, _ON_CPU, strict=True))
GIB = 2**30
# shares of the other memory that a plan may use, since estimates may be too low and fragments are lost
_SAFE, _TIGHT = 0.9, 0.95
_PATIENCE_S = 10.0  # with nvidia-smi
_FEW_SLOTS = 32  # with fewer, activations are recomputed to make room for more


@dataclass(frozen=True)
class Device:
    """A device that a run trains on.

    Attributes:
        name: name of the product.
        memory: bytes; 0 for a CPU.
        has_bfloat16: whether it multiplies bfloat16 in hardware.
        taken: bytes that other programs hold.
    """

    name: str
    memory: int = 0
    has_bfloat16: bool = False
    taken: int = 0

    def compute_limit(self, share: float) -> float:
        """Return the bytes of a share of the memory that a run can have."""
        return share * (self.memory - self.taken - CONTEXT)

    def has_room(self, plan: MemoryPlan, share: float = _TIGHT) -> bool:
        """Return whether the planned peak is within this share of the memory."""
        return plan.count_terms()["peak"] <= self.compute_limit(share)


CPU = Device("CPU")


def find_device(trainer: DictConfig) -> Device:
    """Return the device of a run; of several, the one with the least free memory."""
    if not is_on_cuda(str(trainer.get("accelerator", AUTO))) or not torch.cuda.is_available():
        return CPU
    count = torch.cuda.device_count()
    devices = trainer.get("devices", 1)
    try:
        numbers = list(range(count)) if devices == AUTO else CUDAAccelerator.parse_devices(devices)
    except (TypeError, ValueError, MisconfigurationException):
        numbers = []
    numbers = [number for number in numbers or [] if number < count]
    if not numbers:  # `build_trainer` refuses the options
        return CPU
    all_properties = [torch.cuda.get_device_properties(number) for number in numbers]
    has_bfloat16 = all(properties.major >= 8 for properties in all_properties)
    devices_found = [
        Device(each.name, each.total_memory, has_bfloat16, _measure_taken(number, str(each.uuid)))
        for number, each in zip(numbers, all_properties, strict=True)
    ]
    return min(devices_found, key=lambda device: device.memory - device.taken)


@cache  # the same for all copies of a config, whatever this process has put on the card in between
def _measure_taken(number: int, uuid: str) -> int:
    """Return the bytes that other programs hold on a card, if nvidia-smi tells.

    ``torch.cuda.mem_get_info`` would open a context on the card, which launchers and sweeps would keep.
    """
    command = ["nvidia-smi", f"--id=GPU-{uuid}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
        used = 2**20 * int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0
    return max(0, used - CONTEXT - torch.cuda.memory_reserved(number))


def choose_for_device(cfg: DictConfig, device: Device | None = None) -> str:
    """Replace each ``auto`` of `BY_DEVICE` by a value for the device, in place.

    On a CPU these are the values of `ON_CPU`.  On a GPU with bfloat16 the precision is bf16-mixed.  The number of
    slots is the largest that fits by the memory plan, up to the episodes that a rank plays in an iteration.
    Activations are recomputed if fewer than `_FEW_SLOTS` fit otherwise.  Micro-batches take the memory that is left.

    Args:
        cfg: the composed config.
        device: the device; None finds the one of ``trainer``.

    Returns:
        A line with the chosen values and the planned memory; empty on a CPU.
    """
    auto_keys = [key for key in ON_CPU if OmegaConf.select(cfg, key) == AUTO]
    if not auto_keys:
        return ""
    device = find_device(cfg.trainer) if device is None else device
    chosen, plan = dict(ON_CPU), None
    if device.memory:
        set_values: dict[str, Any] = {
            key: OmegaConf.select(cfg, key) for key in ON_CPU if key not in auto_keys
        }
        chosen, plan = _choose_for_gpu(cfg, device, set_values)
    for key in auto_keys:
        OmegaConf.update(cfg, key, chosen[key])
    if not device.memory:
        return ""
    options = " ".join(f"{key}={_format(chosen[key])}" for key in auto_keys)
    taken = f", {device.taken / GIB:.1f} of them taken by other programs" if device.taken else ""
    size = f"{device.memory / GIB:.1f} GiB{taken}"
    return f"chosen for {device.name} ({size}): {options}{_describe(plan, device)}"


def save_choice(cfg: DictConfig, folder: Path) -> None:
    """Write the chosen values into the saved config of a run, which a resume reads."""
    file = folder / ".hydra" / "config.yaml"
    if not file.is_file():  # hydra.output_subdir=null
        return
    saved = OmegaConf.load(file)
    auto_keys = [key for key in ON_CPU if OmegaConf.select(saved, key) == AUTO]
    for key in auto_keys:
        OmegaConf.update(saved, key, OmegaConf.select(cfg, key))
    if auto_keys:
        write_atomic(file, OmegaConf.to_yaml(saved))


def _choose_for_gpu(
    cfg: DictConfig, device: Device, set_values: dict[str, Any]
) -> tuple[dict[str, Any], MemoryPlan | None]:
    """Return the values for a GPU, and the memory plan with them, if any."""
    computes_itself = cfg.strategy.get("compute_dtype") == "bfloat16"  # fsdp, which then wants 32-true
    is_mixed = device.has_bfloat16 and not computes_itself
    chosen = {**ON_CPU, "trainer.precision": "bf16-mixed" if is_mixed else "32-true", **set_values}
    base = plan_memory(cfg, precision=name_precision(cfg, str(chosen["trainer.precision"])))
    if base is None:
        return chosen, None
    plans = list(_list_plans(base, cfg, set_values))
    candidates = ((share, plan) for share in (_SAFE, _TIGHT) for plan in plans)
    plan = next((plan for share, plan in candidates if device.has_room(plan, share)), plans[-1])
    if not set_values.keys() & set(_SIZES):
        plan = fit_microbatch(plan, device.compute_limit(_SAFE if device.has_room(plan, _SAFE) else _TIGHT))
        chosen |= dict(zip(_SIZES, (plan.tokens, plan.logits_chunk), strict=True))
    if plan.slots:
        chosen["engine.num_slots"] = plan.slots
    chosen["update.checkpoint_activations"] = set_values.get(
        "update.checkpoint_activations", plan.checkpointing
    )
    return chosen, plan


def _list_plans(base: MemoryPlan, cfg: DictConfig, set_values: dict[str, Any]) -> Iterator[MemoryPlan]:
    """Yield plans from the fastest to the one with the smallest memory."""
    num_episodes = -(-cfg.rollout.prompts * cfg.rollout.members // base.ranks)  # each rank plays its share
    slots = [2**k for k in reversed(range(num_episodes.bit_length())) if 2**k < num_episodes]
    sizes = [num_episodes, *slots] if base.slots and "engine.num_slots" not in set_values else [base.slots]
    if base.checkpointing or "update.checkpoint_activations" in set_values:
        yield from (base.copy_with(slots=size) for size in sizes)
        return
    for checkpointing, min_slots in ((False, min(_FEW_SLOTS, num_episodes)), (True, 1)):
        for size in sizes:
            if size >= min_slots or len(sizes) == 1:
                yield base.copy_with(slots=size, checkpointing=checkpointing)


def _describe(plan: MemoryPlan | None, device: Device) -> str:
    if plan is None:
        return "; the memory of this network cannot be planned"
    text = f"; planned peak {plan.count_terms()['peak'] / GIB:.1f} GiB"
    if device.has_room(plan, _SAFE):
        return text
    if device.has_room(plan):
        return f"{text}, which is tight"
    saves = "model/lora=default" if plan.lora is None else "model.dtype=bfloat16"
    other = "strategy=fsdp on more devices" if plan.lora is None else "a smaller model"
    return f"{text}, which is likely too much: use {saves}, {other}, or a lower rollout.max_context_tokens"


def _format(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
