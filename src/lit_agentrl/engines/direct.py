"""Decoders of the Llama family, read without calling their modules: the same bits from a third of the operations.

A decode step of a small network is hundreds of operations of microseconds, and threads meet after each.  Modules of
transformers are made for any length, device and precision; here a step is what is left on a CPU once these are known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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
from transformers.activations import ACT2FN

from lit_agentrl.engines.attention import NAME, attend
from lit_agentrl.engines.cache import SlotCache
from lit_agentrl.engines.inference import Inference
from lit_agentrl.engines.ragged import Packed
from lit_agentrl.models.onednn import product_for
from lit_agentrl.models.patched import is_patched

_KNOWN = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)  # no subclasses
_DTYPES = (torch.float32, torch.bfloat16)
_FEWEST = 4  # rows of which a product has the bits that it has within more rows


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
    replaced or compiled.  It is looked at on each entry, so that what watches modules (``debug=nan``) sees them called.

    In the last layer only the last token of each episode goes on behind keys and values: nobody asks for the others.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        self._modules = Inference(network, NAME)
        self._network: Any = network
        self._layers: list[_Layer] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the last entry found the network plain."""
        return self._layers is not None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._layers = None if torch.is_autocast_enabled("cpu") else _plain_layers(self._network)
        with self._modules() if self._layers is None else torch.inference_mode():
            yield

    def cache(self, num_slots: int, max_length: int) -> SlotCache:
        """See `Reader`."""
        return self._modules.cache(num_slots, max_length)

    def read(self, cache: SlotCache, packed: Packed) -> Tensor:
        """See `Inference.read`."""
        if self._layers is None:
            return self._modules.read(cache, packed)
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
        has_enough = reading.num_last >= _FEWEST
        for number, layer in enumerate(self._layers):
            is_end = has_enough and number == len(self._layers) - 1
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
        return product(self._network.lm_head, _norm(state_ND[-reading.num_last :], model.norm))


def _plain_layers(network: Any) -> list[_Layer] | None:
    """The parts of each layer; None where calling the modules might do anything else than is done here."""
    if type(network) not in _KNOWN or _has_global_hooks() or network.dtype not in _DTYPES:
        return None
    # the classes of the family, which stand in one file
    family = sys.modules[type(network).__module__]
    kind = partial(getattr, family)
    name, model = type(network).__name__.removesuffix("ForCausalLM"), network.model
    norm = kind(f"{name}RMSNorm")
    expected = [
        (network, type(network)), (model, kind(f"{name}Model")), (model.embed_tokens, nn.Embedding), (model.norm, norm),
        (model.rotary_emb, kind(f"{name}RotaryEmbedding")), (network.lm_head, nn.Linear),
    ]  # fmt: skip
    layers = []
    for each in model.layers[: network.config.num_hidden_layers]:
        expected += [(each, kind(f"{name}DecoderLayer"))]
        own, mlp = each.self_attn, each.mlp
        expected += [
            (own, kind(f"{name}Attention")),
            (mlp, kind(f"{name}MLP")),
            (mlp.act_fn, type(ACT2FN["silu"])),
        ]
        norms = [each.input_layernorm, each.post_attention_layernorm]
        heads = [getattr(own, part, None) for part in ("q_norm", "k_norm")]
        linears = [own.q_proj, own.k_proj, own.v_proj, own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        expected += [(part, norm) for part in (*norms, *heads) if part is not None]
        expected += [(part, nn.Linear) for part in linears]
        q, k, v, out, gate, up, down = linears
        layers.append(
            _Layer(norms[0], q, k, v, heads[0], heads[1], out, norms[1], gate, up, down, own.scaling)
        )
    is_plain = all(_is_plain(part, wanted, network.dtype) for part, wanted in expected)
    return layers if is_plain and model.embed_tokens.max_norm is None else None


def _is_plain(module: Any, wanted: type, dtype: torch.dtype) -> bool:
    kind: Any = type(module)
    if kind is not wanted or is_patched(module) or module._compiled_call_impl is not None:
        return False
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    return all(  # not sharded, quantised or moved
        type(own) is nn.Parameter and own.dtype == dtype and own.device.type == "cpu"
        for own in module.parameters(recurse=False)
    )


def _has_global_hooks() -> bool:
    hooks = torch.nn.modules.module
    return bool(hooks._global_forward_hooks or hooks._global_forward_pre_hooks)


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
