"""Low-rank adapters (LoRA, arXiv 2106.09685) through ``peft``: put on, switched off, merged, written."""

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
from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.models.routers import routers_of

ALL_LINEAR = "all-linear"
NAME = "default"  # where there is one
LEVELS = ("executor", "planner")  # where each level of `two_level` has its own; a plan is True


@dataclass(frozen=True, kw_only=True)
class LoRA:
    r"""Beside each chosen weight ``W`` (out, in) a trained ``alpha / r * B A``, with A (r, in) and B (out, r).

    B starts at zero, so that the policy starts as the base.  The base is frozen.  There is no dropout:
    networks stay in eval mode, or recorded and recomputed log-probs would differ.

    Args:
        r: rank.
        alpha: numerator of the scale.
        target_modules: ``all-linear`` (every linear layer but the output head), or names of linear layers,
            such as ``[q_proj,v_proj]``.
        use_rslora: scale by ``alpha / sqrt(r)`` instead (arXiv 2312.03732).
        seed: of the draw of A.
        levels: two adapters on the one base, `LEVELS`, of which one acts at a time; see `level_in_use`.

    Raises:
        ValueError: a value out of range, naming the option.
    """

    r: int = 16
    alpha: float = 32.0
    target_modules: str | Sequence[str] = ALL_LINEAR
    use_rslora: bool = False
    seed: int = 0
    levels: bool = False

    def __post_init__(self) -> None:
        require_whole("r", self.r, 1)
        require_number("alpha", self.alpha, "> 0", lambda alpha: alpha > 0)
        if not self.target_modules:
            raise ValueError(f"target_modules={self.target_modules} names no layer; {ALL_LINEAR} is all")

    def attach(self, network: PreTrainedModel, name: str) -> dict[str, Any]:
        """Put adapters on ``network`` in place and freeze everything else.

        The network keeps its class, so that whatever reads its trunk, head or config goes on working.  Adapters
        of a base in half precision are kept in float32.

        Args:
            network: the base; refused if it has adapters.
            name: the base's name, for messages.

        Returns:
            What a checkpoint must record to be read again: base, its fingerprint, and these options.

        Raises:
            ValueError: ``peft`` is not installed, or a target is no linear layer of the network.
        """
        if importlib.util.find_spec("peft") is None:
            raise ValueError("needs the package peft; install it with: pip install 'peft>=0.21'")
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.tuners_utils import cast_adapter_dtype

        layers = self.layers(network)  # raises where there are none
        targets = ALL_LINEAR if ALL_LINEAR in self._names else self._names
        if targets == ALL_LINEAR and routers_of(network):
            # of a mixture of experts peft would take routers and experts too, which are no linear layers
            targets = layers
        base = {"base": name, "fingerprint": fingerprint(network)}
        options = {"r": self.r, "alpha": float(self.alpha), "use_rslora": self.use_rslora}
        given: dict[str, Any] = {
            "r": self.r, "lora_alpha": self.alpha, "use_rslora": self.use_rslora, "target_modules": targets,
            "fan_in_fan_out": any(isinstance(module, Conv1D) for module in network.modules()),
            "base_model_name_or_path": network.config.name_or_path or name, "task_type": "CAUSAL_LM",
        }  # fmt: skip
        names = LEVELS if self.levels else (NAME,)
        config: Any = LoraConfig(**given)
        for each in names:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seeds.make_key(self.seed, f"lora {each}" if self.levels else "lora"))
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Already found a `peft_config`")  # two are meant
                    inject_adapter_in_model(copy.deepcopy(config), network, each)
        for where, layer in adapter_layers(network):
            if not isinstance(layer.get_base_layer(), nn.Linear | Conv1D):
                raise ValueError(
                    f"target_modules={self.target_modules} would adapt {where}, which is no linear layer and cannot be "
                    "merged; name layers of attention, such as [q_proj,v_proj]"
                )
        for each in names:
            cast_adapter_dtype(network, each)
        _act(network, names[0])
        for where, parameter in network.named_parameters():
            parameter.requires_grad_(".lora_" in where)  # of the one that does not act too
        found: Any = network.peft_config[names[0]]
        more = {"levels": True} if self.levels else {}
        return {**base, **options, "targets": sorted(found.target_modules), **more}

    def layers(self, network: PreTrainedModel) -> list[str]:
        """Full names of the linear layers that are to carry an adapter.

        Raises:
            ValueError: a target is no linear layer of the network, naming those there are.
        """
        head: Any = network.get_output_embeddings()  # type: ignore[no-untyped-call]
        linear = [
            name
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and module is not head
        ]
        found: dict[str, list[str]] = {
            target: [name for name in linear if target == ALL_LINEAR or f".{name}".endswith(f".{target}")]
            for target in self._names
        }
        for target, names in found.items():
            if not names:
                valid = sorted({name.rpartition(".")[2] for name in linear})
                raise ValueError(
                    f"target_modules={target} is no linear layer of the network's blocks; valid: "
                    f"{ALL_LINEAR}, or any of {', '.join(valid)}"
                )
        return sorted({name for names in found.values() for name in names})

    @property
    def _names(self) -> list[str]:
        given = self.target_modules
        return [given] if isinstance(given, str) else [str(each) for each in given]


def fingerprint(network: nn.Module) -> str:
    """SHA-256 of names, shapes, precisions and bits of all parameters."""
    digest = hashlib.sha256()
    for name, parameter in network.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def adapter_layers(network: nn.Module) -> list[tuple[str, Any]]:
    """The layers that carry an adapter, with their names; none without ``model/lora``."""
    if getattr(network, "peft_config", None) is None:  # do not wait for peft's import where there are none
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [(name, module) for name, module in network.named_modules() if isinstance(module, BaseTunerLayer)]


def levels_of(network: nn.Module) -> tuple[str, ...]:
    """`LEVELS`, where each of them has an adapter on the network; else none."""
    return LEVELS if set(LEVELS) <= set(getattr(network, "peft_config", None) or ()) else ()


@contextmanager
def level_in_use(network: nn.Module, name: str) -> Iterator[None]:
    """Within, the adapter of one level acts; which of them gradients may flow into does not change."""
    _act(network, name)
    try:
        yield
    finally:
        _act(network, LEVELS[0])


def _act(network: nn.Module, name: str) -> None:
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for _, layer in adapter_layers(network):
        layer.set_adapter([name])
    for parameter in trainable:
        parameter.requires_grad_(True)  # peft clears the flags of the others, and the optimizer has them all


@contextmanager
def adapters_off(network: nn.Module) -> Iterator[None]:
    """Within, the network computes as the base, to the bit."""
    layers = [layer for _, layer in adapter_layers(network)]
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
        parameter.requires_grad_(True)  # peft also clears the flags, which strategies read


def merged(network: PreTrainedModel) -> PreTrainedModel:
    """A network without adapters whose weights are ``W + alpha / r * B A``, of the base's class and precision.

    Of two levels it is the one that acts, the executor.  All other tensors are those of ``network``, not copies.
    """
    tensors = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    plain = copy.deepcopy(network, tensors)  # the structure anew, the tensors the same
    for name, layer in adapter_layers(plain):
        base = layer.get_base_layer()
        weight = base.weight.detach()
        total = weight.to(torch.promote_types(weight.dtype, torch.float32)) + layer.get_delta_weight(
            layer.active_adapters[0]
        )
        base.weight = nn.Parameter(total.to(weight.dtype), requires_grad=False)
        plain.set_submodule(name, base)
    del plain.peft_config
    return plain


def save_adapter(network: PreTrainedModel, folder: str | Path) -> None:
    """Write the adapter, as ``peft.PeftModel.from_pretrained(base, folder)`` reads it; of levels ``folder/NAME``."""
    for name in network.peft_config:
        _save_one(network, name, Path(folder) / name if levels_of(network) else Path(folder))


def _save_one(network: PreTrainedModel, name: str, folder: Path) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = get_peft_model_state_dict(network, adapter_name=name)
    named = {f"base_model.model.{key}": value.detach().cpu().contiguous() for key, value in state.items()}
    save_file(named, Path(folder) / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.copy(network.peft_config[name])
    config.inference_mode = True
    config.save_pretrained(str(folder))
