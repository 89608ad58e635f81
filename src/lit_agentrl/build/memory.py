"""Plan the memory of a run from its config, before its weights are read."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf
from transformers import AutoConfig, PreTrainedConfig

from lit_agentrl.build.critics import build_critic, read_beta
from lit_agentrl.build.strategy import build_strategy, count_processes, is_parallel
from lit_agentrl.build.structure import build_algorithm
from lit_agentrl.models.memory_plan import MemoryPlan
from lit_agentrl.models.packages import locate_model
from lit_agentrl.models.policy import NANO_FOLDER, load_nano, load_pretrained
from lit_agentrl.models.pretrained import hold_back_logs, make_load_options
from lit_agentrl.strategies.fsdp import FSDP
from lit_agentrl.update.critic import shared
from lit_agentrl.update.microbatches import MAX_ATTENDED
from lit_agentrl.update.settings import CPU_VALUES

_NATIVE = "lit_agentrl.engines.native.engine.NativeEngine"
_VLLM = "lit_agentrl.engines.served.vllm.VLLMEngine"
_PROCESS = "lit_agentrl.rollout.workers.process.ProcessSettings"
_HERE = "lit_agentrl.rollout.workers.inline.Here"


def plan_memory(cfg: DictConfig, **given: Any) -> MemoryPlan | None:
    """Return the memory plan of a run, or None if its network cannot be planned.

    Args:
        cfg: the composed config; ``auto`` counts as 32-bit precision, one slot, no checkpointing and the sizes of
            a CPU.
        given: fields of the plan that replace those of the config.
    """
    config = _find_config(cfg.model)
    if config is None:
        return None
    lora, strategy = cfg.model.get("lora"), build_strategy(cfg)
    processes = math.prod(count_processes(cfg)) if is_parallel(strategy) else 1
    is_fsdp = isinstance(strategy, FSDP)
    slots, update = cfg.engine.get("num_slots"), cfg["update"]
    tokens, chunk = update.tokens_per_microbatch, update.get("logits_chunk")
    precision = given.get("precision", name_precision(cfg, str(cfg.trainer.get("precision"))))
    fields = {
        "config": config,
        "strategy": "fsdp" if is_fsdp else "ddp" if processes > 1 else "single",
        "ranks": processes,
        "precision": precision,
        "lora": None if lora is None else lora.r,
        "targets": () if lora is None else tuple(_as_names(lora.target_modules)),
        "slots": slots if _is_native(cfg) and isinstance(slots, int) else int(_is_native(cfg)),
        "context": cfg.rollout.max_context_tokens,
        "tokens": tokens if isinstance(tokens, int) else CPU_VALUES["tokens_per_microbatch"],
        "attended": MAX_ATTENDED if update.get("packing") == "shared" else 1,
        "logits_chunk": CPU_VALUES["logits_chunk"] if chunk == "auto" else chunk,
        "checkpointing": update.checkpoint_activations is True
        or bool(is_fsdp and cfg.strategy.get("activation_checkpointing")),
        "accumulate_sharded": bool(is_fsdp and cfg.strategy.get("accumulate_sharded")),
        "offload_frozen": bool(is_fsdp and cfg.strategy.get("offload_frozen")),
        "graphs": _is_native(cfg) and cfg.engine.get("window") != 0 and not is_fsdp,
        "play_copy": _find_copy(cfg),
        "truncates": cfg.rollout.top_p < 1 or cfg.rollout.top_k > 0,
        "players": _count_players(cfg),
        **_find_vllm(cfg),
        "autocast": is_fsdp and cfg.strategy.get("compute_dtype") != "bfloat16" and precision == "mixed",
        **_find_further_networks(cfg),
    }
    try:
        plan = MemoryPlan(**fields | given)
        plan.count_terms()
    except ValueError:  # no decoder like Llama, or adapters on layers that it does not have
        return None
    return plan


def name_precision(cfg: DictConfig, precision: str) -> str:
    """Return the planner's name for the precision of a run with this ``trainer.precision``."""
    if cfg.model.get("dtype") in ("bfloat16", "float16") or precision == "bf16-true":
        return "bfloat16"
    is_mixed = precision == "bf16-mixed" or cfg.strategy.get("compute_dtype") == "bfloat16"
    return "mixed" if is_mixed else "float32"


def _find_further_networks(cfg: DictConfig) -> dict[str, Any]:
    """Return the fields of a plan about critic, reference and KV stores."""
    algorithm, structure = build_algorithm(cfg)
    critic = build_critic(cfg, algorithm)
    critic_kind, is_slow = "none", False
    if critic is not None:
        make_critic = critic.args[1]  # type: ignore[attr-defined]
        critic_kind = "shared" if make_critic.func is shared else "separate"
        is_slow = make_critic.keywords.get("target_rate", 1.0) < 1
    has_levels = bool(OmegaConf.select(cfg, "model.lora.levels", default=False))
    # critic.beta evaluates with an engine of its own, whose slots hold the state of policy and critic
    stores = structure.hook.count_stores() + has_levels + (2 if read_beta(cfg) else 0)
    dtype = algorithm.requirements.reference_dtype
    return {
        "critic": critic_kind,
        "slow_critic": is_slow,
        "reference": algorithm.needs("ref_logp_BT") or algorithm.needs("ref_kl_BT"),
        "reference_bytes": None if dtype is None else getattr(torch, dtype).itemsize,
        "stores": stores,
    }


def _find_copy(cfg: DictConfig) -> bool | None:
    """Return whether windows decode with a copy of the weights; None if the planner decides."""
    if not _is_native(cfg) or cfg.engine.get("window") == 0:
        return False
    chosen = cfg.engine.get("play_copy")
    return chosen if isinstance(chosen, bool) else None


def _find_vllm(cfg: DictConfig) -> dict[str, Any]:
    """Return the fields of a vLLM in this process."""
    if cfg.engine.get("_target_") != _VLLM:
        return {}
    cache = cfg.engine.get("cache_gb")
    size = 0.0 if isinstance(cache, str) else cache * 2.0**30  # auto fits what is left
    return {"vllm": size, "vllm_sleeps": cfg.engine.get("sleep") != 0}


def _count_players(cfg: DictConfig) -> int:
    """Count the processes that play on the trainer's device."""
    worker = cfg.get("worker") or {}
    target = worker.get("_target_", _HERE)
    is_process = target == _PROCESS or (target == _HERE and cfg.rollout.get("overlap") is True)
    return worker.get("count", 1) if is_process and worker.get("device") is None else 0


def _as_names(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else [str(name) for name in names]


def _is_native(cfg: DictConfig) -> bool:
    return bool(cfg.engine.get("_target_") == _NATIVE)


def _find_config(model: DictConfig) -> PreTrainedConfig | None:
    """Return the shape of the network, or None where only its own code knows it."""
    loader = get_method(model["_target_"])
    if loader is load_nano:
        return _read_config(str(NANO_FOLDER.with_name(model.get("name", NANO_FOLDER.name))))
    is_known = loader is load_pretrained and not OmegaConf.is_missing(model, "name")
    if not is_known:
        return None
    try:
        return _read_config(locate_model(str(model.name)))
    except ValueError:  # loading the network names the reason
        return None


@lru_cache
def _read_config(name: str) -> PreTrainedConfig | None:
    try:
        with hold_back_logs():
            config: PreTrainedConfig = AutoConfig.from_pretrained(name, **make_load_options(name))
    except (OSError, ValueError):  # loading the network names the reason
        return None
    return config
