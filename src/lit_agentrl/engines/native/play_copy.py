"""A copy of weights for decoding: one precision, adapters merged, products joined.

A layer of the network as it is launches about 40 kernels for one token; a layer of the copy launches 14, counted by
``tests/engines/test_play_copy.py``: two norms, four products (two of them with the residual sum), five for positions
and activation, two writes to the slots, and attention.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, silu
from transformers import PreTrainedModel

from lit_agentrl.engines.native.attention import find_autocast_dtype
from lit_agentrl.engines.native.cache import SlotCache
from lit_agentrl.engines.native.ragged import Packed

_FUSED = 16  # weights copied by one call; merged ones exist in float32 during it
CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def find_copy_obstacle(network: Any) -> str:
    """Return why a network cannot be copied, or an empty string."""
    if type(network).__name__ not in CLASSES:
        return f"{type(network).__name__} is none of {', '.join(CLASSES)}"
    config, layer = network.config, network.model.layers[0]
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    if any(
        _get_base(m).bias is not None
        for m in (layer.self_attn.o_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    ):
        return "its output products have biases"
    if len(getattr(network, "peft_config", ())) > 1:
        return "it has several adapters"
    if any(type(parameter) is not nn.Parameter for parameter in network.parameters()):
        return "its weights are sharded"
    return ""


def choose_copy(play_copy: bool | str, network: Any, *, is_autocast: bool) -> bool:
    """Return whether windows decode with a copy.

    ``auto`` is true on CUDA under autocast, whose casts the copy saves, and for networks in half precision; not for
    adapters of a base in half precision, because the base is large compared to the adapters.
    `MemoryPlan.count_play_copy` counts the memory of the copy.
    """
    if isinstance(play_copy, bool):
        return play_copy
    if find_copy_obstacle(network):
        return False
    is_half = network.dtype in (torch.float16, torch.bfloat16)
    is_wanted = not hasattr(network, "peft_config") if is_half else is_autocast
    return network.device.type == "cuda" and is_wanted


def require_copy(play_copy: bool | str, network: Any, *, steps: int) -> None:
    """Check that a copy that is asked for can be made and is used.

    Raises:
        ValueError: If windows have no ``steps``, or the network cannot be copied.
    """
    if play_copy is not True:
        return
    if not steps:
        raise ValueError("play_copy=true has no effect without windows; set engine.window=8")
    if reason := find_copy_obstacle(network):
        raise ValueError(f"play_copy=true cannot copy the model: {reason}; set engine.play_copy=auto")


@dataclass
class _Layer:
    """Weights of one layer; heads of queries are in the order (group, key/value head)."""

    first_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, ...] | None  # of queries and keys
    out: Tensor
    second_norm: Tensor
    gate_up: Tensor
    down: Tensor


class PlayCopy:
    """Reads tokens with copied weights, as `Inference.read` does with the network's own.

    The weights are copied by the first `update`.

    Args:
        network: A network without `find_copy_obstacle`.
        dtype: Precision of weights and computation.
    """

    def __init__(self, network: PreTrainedModel, dtype: torch.dtype) -> None:
        self._network: Any = network
        self._dtype = dtype
        config, model = network.config, self._network.model
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._dim, self._scaling = model.layers[0].self_attn.head_dim, model.layers[0].self_attn.scaling
        self._eps = config.rms_norm_eps
        self._parts: list[tuple[Tensor, Callable[[], Tensor]]] = []
        self._embedding_VH = self._add_weight(partial(_compute_weight, model.embed_tokens))
        self._layers = [self._add_layer(layer) for layer in model.layers]
        self._norm = self._add_weight(partial(_compute_weight, model.norm))
        is_tied = self._network.lm_head.weight is model.embed_tokens.weight
        self._head_VH = (
            self._embedding_VH
            if is_tied
            else self._add_weight(partial(_compute_weight, self._network.lm_head))
        )
        half = torch.ones(self._dim // 2, dtype=dtype, device=network.device)
        self._sign_D = torch.cat([-half, half])

    @torch.no_grad()
    def update(self) -> None:
        """Copy the present weights of the network, in place."""
        for start in range(0, len(self._parts), _FUSED):
            targets, sources = zip(*self._parts[start : start + _FUSED], strict=True)
            torch._foreach_copy_(targets, [compute() for compute in sources])

    def read(self, cache: SlotCache, packed: Packed) -> Tensor:
        """See `Inference.read`; the engine never passes a `MaskedLayout` with chunks."""
        layout = packed.layout
        device = packed.token_1N.device
        is_cast = find_autocast_dtype(device) is not None
        with torch.autocast(device.type, enabled=False) if is_cast else nullcontext():
            hidden_NH = embedding(packed.token_1N[0], self._embedding_VH)
            rows, size = hidden_NH.shape
            cos_1ND, sin_1ND = self._network.model.rotary_emb(hidden_NH, packed.position_1N)
            cos_N1D, sin_N1D = cos_1ND.transpose(0, 1), (sin_1ND * self._sign_D).transpose(0, 1)
            for number, layer in enumerate(self._layers):
                heads_NAD = linear(self._normalize(hidden_NH, layer.first_norm), layer.qkv, layer.qkv_bias)
                heads_NAD = heads_NAD.view(rows, -1, self._dim)
                rotated, value = heads_NAD[:, : -self._kv_heads], heads_NAD[:, -self._kv_heads :]
                if layer.head_norms is not None:
                    parts = torch.split(rotated, [self._heads, self._kv_heads], dim=1)
                    pairs = zip(parts, layer.head_norms, strict=True)
                    rotated = torch.cat([self._normalize(part, weight) for part, weight in pairs], dim=1)
                rotated = torch.addcmul(rotated * cos_N1D, rotated.roll(self._dim // 2, -1), sin_N1D)
                query, key = rotated[:, : self._heads], rotated[:, self._heads :]
                keys, values = cache.write(number, layout, key, value)
                query = query.view(rows, -1, self._kv_heads, self._dim).transpose(1, 2).to(keys.dtype)
                out = layout.attend(query, keys, values, self._scaling)
                hidden_NH.addmm_(out.transpose(1, 2).reshape(rows, -1).to(self._dtype), layer.out.t())
                gate, up = linear(self._normalize(hidden_NH, layer.second_norm), layer.gate_up).chunk(2, -1)
                hidden_NH.addmm_(silu(gate).mul_(up), layer.down.t())
            last_NH = hidden_NH[-layout.num_last :]
            return linear(self._normalize(last_NH, self._norm), self._head_VH)

    def _normalize(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self._eps)

    def _add_weight(self, *sources: Callable[[], Tensor]) -> Tensor:
        """Make a tensor of the rows of all sources, which `update` fills."""
        shapes = [compute().shape for compute in sources]
        device = self._network.device
        whole = torch.empty((sum(s[0] for s in shapes), *shapes[0][1:]), dtype=self._dtype, device=device)
        self._parts += zip(torch.split(whole, [s[0] for s in shapes]), sources, strict=True)
        return whole

    def _add_layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        q, k, v = (partial(_compute_weight, each) for each in projections)
        sizes = self._kv_heads, self._dim
        # not a method: a reference cycle would keep the copy of a closed engine alive
        order = partial(partial, _order_queries, *sizes)
        has_bias = _get_base(attention.q_proj).bias is not None
        q_bias, k_bias, v_bias = (partial(_get_bias, each) for each in projections)
        norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        return _Layer(
            first_norm=self._add_weight(partial(_compute_weight, layer.input_layernorm)),
            qkv=self._add_weight(order(q), k, v),
            qkv_bias=self._add_weight(order(q_bias), k_bias, v_bias) if has_bias else None,
            head_norms=None
            if None in norms
            else tuple(self._add_weight(partial(_compute_weight, n)) for n in norms),
            out=self._add_weight(partial(_order_outputs, *sizes, partial(_compute_weight, attention.o_proj))),
            second_norm=self._add_weight(partial(_compute_weight, layer.post_attention_layernorm)),
            gate_up=self._add_weight(
                partial(_compute_weight, mlp.gate_proj), partial(_compute_weight, mlp.up_proj)
            ),
            down=self._add_weight(partial(_compute_weight, mlp.down_proj)),
        )


def _order_queries(kv_heads: int, dim: int, compute: Callable[[], Tensor]) -> Tensor:
    """Order rows by group first, so that attention reads and writes them without a copy."""
    weight = compute()
    return weight.view(kv_heads, -1, dim, *weight.shape[1:]).transpose(0, 1).reshape(weight.shape)


def _order_outputs(kv_heads: int, dim: int, compute: Callable[[], Tensor]) -> Tensor:
    """Order columns as `_order_queries` orders rows."""
    weight = compute()
    return weight.view(len(weight), kv_heads, -1, dim).transpose(1, 2).reshape(weight.shape)


def _get_base(module: Any) -> Any:
    return module.get_base_layer() if hasattr(module, "get_base_layer") else module


def _get_bias(module: Any) -> Tensor:
    bias: Tensor = _get_base(module).bias
    return bias


def _compute_weight(module: Any) -> Tensor:
    """Return the weight of a module, its adapter merged."""
    weight: Tensor = _get_base(module).weight
    if not hasattr(module, "get_delta_weight"):
        return weight
    delta: Tensor = module.get_delta_weight(module.active_adapters[0])
    return weight.to(torch.promote_types(weight.dtype, torch.float32)) + delta
