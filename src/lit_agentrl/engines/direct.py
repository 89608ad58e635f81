"""Decoders of the Llama family, read without calling their modules: the same bits from a third of the operations.

A decode step of a small network is hundreds of operations of microseconds, and threads meet after each.  Modules of
transformers are made for any length, device and precision; here a step is what is left on a CPU once these are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, rms_norm, silu
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from lit_agentrl.engines.attention import NAME, attend
from lit_agentrl.engines.cache import SlotCache
from lit_agentrl.engines.inference import Inference
from lit_agentrl.engines.ragged import Packed
from lit_agentrl.models.onednn import product_for
from lit_agentrl.models.patched import is_patched

_KNOWN = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)  # no subclasses
_DTYPES = (torch.float32, torch.bfloat16)


class _Layer(NamedTuple):
    before: Any
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    q_norm: Any | None
    k_norm: Any | None
    out: nn.Linear
    between: Any
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear
    scaling: float


class Direct:
    """Reads as `Inference` does, and by it wherever anything is not as plain as expected; see `Reader`.

    Not plain are other classes, devices and precisions, autocast, adapters, hooks, and forwards that something has
    replaced.  It is looked at on each entry, so that what watches modules (``debug=nan``) sees them called.

    In the last layer only the last token of each episode goes on behind keys and values: nobody asks for the others.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        self._modules = Inference(network, NAME)
        self._network: Any = network
        self._parts = list(network.modules())
        self._layers = _layers(network) if type(network) in _KNOWN else None
        self._is_plain = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._is_plain = self._layers is not None and _is_plain(self._parts, self._network.dtype)
        with torch.inference_mode() if self._is_plain else self._modules():
            yield

    def cache(self, num_slots: int, max_length: int) -> SlotCache:
        """See `Reader`."""
        return self._modules.cache(num_slots, max_length)

    def read(self, cache: SlotCache, packed: Packed) -> Tensor:
        """See `Inference.read`."""
        if not self._is_plain:
            return self._modules.read(cache, packed)
        if torch.is_autocast_enabled("cpu"):  # which is entered after this
            with self._modules():
                return self._modules.read(cache, packed)
        return self._read(cache, packed)

    def _read(self, cache: SlotCache, packed: Packed) -> Tensor:
        assert self._layers is not None
        cache.reading = reading = packed.reading
        model = self._network.model
        state_ND = embedding(packed.token_1N[0], model.embed_tokens.weight)
        cos, sin = model.rotary_emb(state_ND[None], packed.position_1N)
        half = cos.shape[-1] // 2
        cos_N1H = cos[0].unsqueeze(1)
        sin_N1H = torch.cat((-sin[..., :half], sin[..., half:]), -1)[0].unsqueeze(1)
        total = len(state_ND)
        last = slice(total - reading.num_last, total)
        product = product_for([self._network.lm_head], total)
        for number, layer in enumerate(self._layers):
            is_end = number == len(self._layers) - 1
            own = last if is_end else slice(None)  # whose states go on
            read_ND = _norm(state_ND, layer.before)
            size = (total, -1, 2 * half)
            key = _turned(_normed(product(layer.k, read_ND).view(size), layer.k_norm), cos_N1H, sin_N1H)
            value = product(layer.v, read_ND).view(size)
            buffers = cache.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None], number)
            state_ND, read_ND = state_ND[own], read_ND[own]
            query = product(layer.q, read_ND).view(len(read_ND), -1, 2 * half)
            query = _turned(_normed(query, layer.q_norm), cos_N1H[own], sin_N1H[own])
            found_NHD = attend(query, *buffers, reading, layer.scaling, only_last=is_end)
            state_ND = state_ND + product(layer.out, found_NHD.flatten(1))
            read_ND = _norm(state_ND, layer.between)
            gate = silu(product(layer.gate, read_ND)).mul_(product(layer.up, read_ND))
            state_ND = state_ND + product(layer.down, gate)
        product = product_for([self._network.lm_head], reading.num_last)
        return product(self._network.lm_head, _norm(state_ND, model.norm))


def _layers(network: Any) -> list[_Layer] | None:
    """The parts of each layer by what they do; None where an option makes them other than expected."""
    if network.config.hidden_act != "silu":
        return None
    return [
        _Layer(
            each.input_layernorm, each.self_attn.q_proj, each.self_attn.k_proj, each.self_attn.v_proj,
            getattr(each.self_attn, "q_norm", None), getattr(each.self_attn, "k_norm", None), each.self_attn.o_proj,
            each.post_attention_layernorm, each.mlp.gate_proj, each.mlp.up_proj, each.mlp.down_proj,
            each.self_attn.scaling,
        )
        for each in network.model.layers
    ]  # fmt: skip


def _is_plain(modules: Sequence[nn.Module], dtype: torch.dtype) -> bool:
    """Whether calling the modules would do what is done here, and nothing else."""
    if dtype not in _DTYPES:
        return False
    for module in modules:
        is_foreign = not type(module).__module__.startswith(("torch.nn.modules.", "transformers."))
        if is_foreign or is_patched(module) or module._forward_hooks or module._forward_pre_hooks:
            return False
        for own in module.parameters(recurse=False):
            if (
                type(own) is not nn.Parameter or own.dtype != dtype or own.device.type != "cpu"
            ):  # sharded, or moved
                return False
    return True


def _norm(x: Tensor, module: Any) -> Tensor:
    """RMSNorm over the last dimension; in half precision rounded where the module rounds."""
    if x.dtype == torch.float32:
        return rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    normed: Tensor = module.weight * wide.to(x.dtype)
    return normed


def _normed(x: Tensor, module: Any | None) -> Tensor:
    return x if module is None else _norm(x, module)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions; the first half of ``sin`` has the sign of what stands there after the roll."""
    return x * cos + torch.roll(x, x.shape[-1] // 2, -1) * sin
