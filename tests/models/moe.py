"""Tiny mixtures of experts of several families, at random."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)  # fmt: skip

_BASE: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.5, "num_experts_per_tok": 2,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "n_shared_experts": 1,
}  # fmt: skip
FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "mixtral": (MixtralConfig, {"num_local_experts": 4}),
    "qwen2_moe": (
        Qwen2MoeConfig,
        {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_moe": (Qwen3MoeConfig, {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8}),
    "olmoe": (OlmoeConfig, {"num_experts": 4}),
    "deepseek_v2": (DeepseekV2Config, {**_DEEPSEEK, "topk_method": "group_limited_greedy"}),
    "deepseek_v3": (DeepseekV3Config, _DEEPSEEK),
}


def moe(family: str = "mixtral", seed: int = 0, **options: Any) -> PreTrainedModel:
    kind, own = FAMILIES[family]
    torch.manual_seed(seed)
    config = kind(**{**_BASE, **own, **options})
    # the grouped product is one of float32
    wide = {"experts_implementation": "eager"} if torch.get_default_dtype() == torch.float64 else {}
    network: PreTrainedModel = AutoModelForCausalLM.from_config(config, **wide).eval()
    return network
