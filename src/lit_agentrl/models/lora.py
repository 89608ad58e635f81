"""Low-rank adapters (LoRA, arXiv 2106.09685) with ``peft``: attach, disable, merge, save."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lit_agentrl import seeds
from lit_agentrl.models.options import ALL_LINEAR, check_lora
from lit_agentrl.models.routers import find_routers

NAME = "default"  # name of a single adapter
LEVELS = ("executor", "planner")  # adapters of the levels of `two_level`, indexed by whether a turn is a plan


@dataclass(frozen=True, kw_only=True)
class LoRA:
    r"""Low-rank adapters of linear layers.

    They add a trained ``alpha / r * B A`` to each chosen weight ``W`` (out, in), with A (r, in) and B (out, r).
    B starts at zero, so the policy starts as the base.  The base is frozen.  There is no dropout: networks stay in
    eval mode, or recorded and recomputed log-probs would differ.

    Args:
        r: Rank.
        alpha: Numerator of the scale.
        target_modules: ``all-linear`` (every linear layer except the output head), or names of linear layers,
            such as ``[q_proj,v_proj]``.
        use_rslora: Whether to scale by ``alpha / sqrt(r)`` instead of ``alpha / r`` (arXiv 2312.03732).
        seed: Seed of A.
        levels: Whether the base has two adapters, `LEVELS`. One is active at a time; see `use_level`.

    Raises:
        ValueError: If a value is out of range; the message names the option.
    """

    r: int = 16
    alpha: float = 32.0
    target_modules: str | Sequence[str] = ALL_LINEAR
    use_rslora: bool = False
    seed: int = 0
    levels: bool = False

    def __post_init__(self) -> None:
        check_lora(r=self.r, alpha=self.alpha, target_modules=self.target_modules)

    def attach(self, network: PreTrainedModel, name: str) -> dict[str, Any]:
        """Put adapters on ``network`` in place and freeze everything else.

        The network keeps its class, so code that reads its trunk, head or config keeps working.  Adapters of a base
        in half precision are stored in float32.

        Args:
            network: The base, which must have no adapters.
            name: The base's name, for messages.

        Returns:
            The record with which a checkpoint can be loaded: the base, its fingerprint, and these options.

        Raises:
            ValueError: If ``peft`` is not installed, or a target is not a linear layer of the network.
        """
        if importlib.util.find_spec("peft") is None:
            raise ValueError("needs the package peft; install it with: pip install 'peft>=0.21'")
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.tuners_utils import cast_adapter_dtype

        layers = self.find_layers(network)  # raises if there are no such layers
        targets = ALL_LINEAR if ALL_LINEAR in self._target_names else self._target_names
        if targets == ALL_LINEAR and find_routers(network):
            # in a mixture of experts peft would also take routers and experts, which are not linear layers
            targets = layers
        base = {"base": name, "fingerprint": hash_parameters(network)}
        options = {"r": self.r, "alpha": float(self.alpha), "use_rslora": self.use_rslora}
        arguments: dict[str, Any] = {
            "r": self.r, "lora_alpha": self.alpha, "use_rslora": self.use_rslora, "target_modules": targets,
            "fan_in_fan_out": any(isinstance(module, Conv1D) for module in network.modules()),
            "base_model_name_or_path": network.config.name_or_path or name, "task_type": "CAUSAL_LM",
        }  # fmt: skip
        adapter_names = LEVELS if self.levels else (NAME,)
        config: Any = LoraConfig(**arguments)
        for adapter in adapter_names:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seeds.make_key(self.seed, f"lora {adapter}" if self.levels else "lora"))
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Already found a `peft_config`")  # two are intended
                    inject_adapter_in_model(copy.deepcopy(config), network, adapter)
        for layer_name, layer in find_adapter_layers(network):
            if not isinstance(layer.get_base_layer(), nn.Linear | Conv1D):
                raise ValueError(
                    f"target_modules={self.target_modules} would adapt {layer_name}, which is not a linear layer and "
                    "cannot be merged; choose layers of attention, such as [q_proj,v_proj]"
                )
        for adapter in adapter_names:
            cast_adapter_dtype(network, adapter)
        _activate(network, adapter_names[0])
        for parameter_name, parameter in network.named_parameters():
            parameter.requires_grad_(".lora_" in parameter_name)  # also weights of the inactive adapter
        config_in_use: Any = network.peft_config[adapter_names[0]]
        extra = {"levels": True} if self.levels else {}
        return {**base, **options, "targets": sorted(config_in_use.target_modules), **extra}

    def find_layers(self, network: PreTrainedModel) -> list[str]:
        """Return the full names of the linear layers that get an adapter.

        Raises:
            ValueError: If a target is not a linear layer of the network; the message names valid targets.
        """
        head: Any = network.get_output_embeddings()  # type: ignore[no-untyped-call]
        linear = [
            name
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and module is not head
        ]
        layers_of: dict[str, list[str]] = {
            target: [name for name in linear if target == ALL_LINEAR or f".{name}".endswith(f".{target}")]
            for target in self._target_names
        }
        for target, names in layers_of.items():
            if not names:
                valid = sorted({name.rpartition(".")[2] for name in linear})
                raise ValueError(
                    f"target_modules={target} is not a linear layer of the network's blocks; valid: "
                    f"{ALL_LINEAR}, or any of {', '.join(valid)}"
                )
        return sorted({name for names in layers_of.values() for name in names})

    @property
    def _target_names(self) -> list[str]:
        targets = self.target_modules
        return [targets] if isinstance(targets, str) else [str(target) for target in targets]


def hash_parameters(network: nn.Module) -> str:
    """Return the SHA-256 of names, shapes, precisions and bits of all parameters."""
    digest = hashlib.sha256()
    for name, parameter in network.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def find_adapter_layers(network: nn.Module) -> list[tuple[str, Any]]:
    """Return the layers with an adapter and their names; an empty list without adapters."""
    if getattr(network, "peft_config", None) is None:  # without adapters, avoid the slow import of peft
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [(name, module) for name, module in network.named_modules() if isinstance(module, BaseTunerLayer)]


def get_levels(network: nn.Module) -> tuple[str, ...]:
    """Return `LEVELS` if each has an adapter on the network, else an empty tuple."""
    return LEVELS if set(LEVELS) <= set(getattr(network, "peft_config", None) or ()) else ()


@contextmanager
def use_level(network: nn.Module, name: str) -> Iterator[None]:
    """Activate the adapter of one level inside the context.

    The set of weights that receive gradient does not change.
    """
    _activate(network, name)
    try:
        yield
    finally:
        _activate(network, LEVELS[0])


def _activate(network: nn.Module, name: str) -> None:
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for _, layer in find_adapter_layers(network):
        layer.set_adapter([name])
    for parameter in trainable:
        # peft clears the flags of inactive adapters, but the optimizer holds the weights of all
        parameter.requires_grad_(True)


@contextmanager
def disable_adapters(network: nn.Module) -> Iterator[None]:
    """Make the network compute bit-exactly as the base inside the context."""
    layers = [layer for _, layer in find_adapter_layers(network)]
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    _switch(layers, False, trainable)
    try:
        yield
    finally:
        _switch(layers, True, trainable)


def _switch(layers: Sequence[Any], is_on: bool, trainable: Sequence[nn.Parameter]) -> None:
    for layer in layers:
        layer.enable_adapters(is_on)
    for parameter in trainable:
        parameter.requires_grad_(True)  # peft also clears these flags, which strategies read


def merge_adapters(network: PreTrainedModel) -> PreTrainedModel:
    """Return a network with merged weights ``W + alpha / r * B A``.

    The result has the base's class and precision.  If there are two levels, the active adapter is merged, which is the
    executor's.  All other tensors are those of ``network``, not copies.
    """
    tensors = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    merged = copy.deepcopy(network, tensors)  # a new structure with the same tensors
    for name, layer in find_adapter_layers(merged):
        base = layer.get_base_layer()
        weight = base.weight.detach()
        merged_weight = weight.to(torch.promote_types(weight.dtype, torch.float32)) + layer.get_delta_weight(
            layer.active_adapters[0]
        )
        base.weight = nn.Parameter(merged_weight.to(weight.dtype), requires_grad=False)
        merged.set_submodule(name, base)
    del merged.peft_config
    return merged


def save_adapter(network: PreTrainedModel, folder: str | Path) -> None:
    """Write the adapter so that ``peft.PeftModel.from_pretrained(base, folder)`` reads it.

    Two levels are written to ``folder/NAME``.
    """
    for name in network.peft_config:
        _save_adapter(network, name, Path(folder) / name if get_levels(network) else Path(folder))


def _save_adapter(network: PreTrainedModel, name: str, folder: Path) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = get_peft_model_state_dict(network, adapter_name=name)
    named = {f"base_model.model.{key}": value.detach().cpu().contiguous() for key, value in state.items()}
    save_file(named, Path(folder) / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.copy(network.peft_config[name])
    config.inference_mode = True
    config.save_pretrained(str(folder))
