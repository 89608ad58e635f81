"""Choose memory, sleep and precision of a vLLM engine beside the trainer; imports no vLLM.

On a GPU the engine sleeps during updates: its keys and values, and at level 2 its weights, then take no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from transformers import PreTrainedModel

from lit_agentrl.engines.native.attention import find_autocast_dtype
from lit_agentrl.engines.options import AUTO
from lit_agentrl.engines.served.vllm_setup import set_variables
from lit_agentrl.models.memory_plan import get_head_dim, get_kv_heads

_GIB = 2**30
_SHARE = 0.5  # of the memory that is left: activations of vLLM, a reference and fragments take the rest
_CPU_CACHE_BYTES = _GIB


@dataclass(frozen=True)
class Memory:
    """The memory of a device in bytes, when vLLM is opened."""

    free: int
    total: int


def choose_sleep(sleep: int | str, *, on_gpu: bool) -> int:
    """Return the level at which vLLM sleeps during updates.

    ``auto`` is 2 on a GPU and 0 on a CPU.
    At level 2 nothing is copied to the host: the next version of the weights is sent whole in any case.

    Raises:
        ValueError: If a CPU is asked to sleep, which vLLM ignores.
    """
    if not on_gpu and sleep not in (AUTO, 0):
        raise ValueError(f"sleep={sleep} needs a GPU: vLLM stays awake on a CPU; set engine.sleep=auto")
    if sleep == AUTO:
        return 2 if on_gpu else 0
    return int(sleep)


def choose_dtype(
    network: PreTrainedModel, context: AbstractContextManager[object], *, on_gpu: bool
) -> torch.dtype:
    """Return the precision of vLLM's weights.

    On a GPU it is that of the trainer's forwards, on a CPU that of the trainer's weights.
    """
    if on_gpu:
        with context:
            if (found := find_autocast_dtype(torch.device("cuda"))) is not None:
                return found
    return network.dtype


def choose_cache_bytes(
    cache_gb: float | str,
    memory: Memory | None,
    network: PreTrainedModel,
    *,
    itemsize: int,
    num_slots: int,
    max_context: int,
) -> int:
    """Return the bytes for keys and values.

    ``auto`` is a share of the free memory of a GPU, and 1 GiB on a CPU.
    The share is taken of what is left after vLLM's weights and the trainer's weights and moments.  It is at most what
    all slots need for full contexts.

    Args:
        cache_gb: The option.
        memory: Memory of the GPU; None on a CPU.
        network: The trainer's network, which may not be on its device yet.
        itemsize: Bytes of a number in the cache.
        num_slots: Number of episodes decoded together.
        max_context: Maximum tokens of an episode.

    Raises:
        ValueError: If auto leaves less than one context needs.
    """
    if not isinstance(cache_gb, str):
        return int(cache_gb * _GIB)
    if memory is None:
        return _CPU_CACHE_BYTES
    config = network.config.get_text_config()
    token_bytes = 2 * config.num_hidden_layers * get_kv_heads(config) * get_head_dim(config) * itemsize
    parameters = list(network.parameters())
    vllm_bytes = itemsize * sum(p.numel() for p in parameters)
    trainer_bytes = sum(p.numel() * p.element_size() for p in parameters if p.device.type == "cpu")
    moment_bytes = 2 * sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    free_bytes = memory.free - vllm_bytes - trainer_bytes - moment_bytes
    chosen = int(min(_SHARE * free_bytes, token_bytes * num_slots * max_context))
    if chosen < token_bytes * max_context:
        raise ValueError(
            f"cache_gb=auto: {max(free_bytes, 0) / _GIB:.1f} GiB are left beside the weights, too few for keys and "
            f"values of rollout.max_context_tokens={max_context}; use a smaller model, model/lora=default, or "
            "engine=native"
        )
    return chosen


def choose_utilization(memory: Memory) -> float:
    """Return ``gpu_memory_utilization``, which vLLM compares with the free memory at its start.

    The memory of keys and values is given apart, so it has no other effect.
    """
    return max(0.01, 0.95 * memory.free / memory.total)


def choose_memory(
    cache_gb: float | str, network: PreTrainedModel, *, on_gpu: bool, **sizes: int
) -> dict[str, Any]:
    """Return the options of vLLM about memory; see `choose_cache_bytes`."""
    memory = find_memory() if on_gpu else None
    options: dict[str, Any] = {
        "kv_cache_memory_bytes": choose_cache_bytes(cache_gb, memory, network, **sizes)
    }
    return options if memory is None else {**options, "gpu_memory_utilization": choose_utilization(memory)}


def find_memory() -> Memory | None:
    """Return the memory of this process's GPU; None without one."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return Memory(free, total)


def require_first_device(index: int, ranks: int) -> None:
    """Refuse a GPU on which vLLM would not be opened.

    Raises:
        ValueError: If a single process trains on another than the first visible GPU.
    """
    if ranks == 1 and index:
        raise ValueError(
            f"vLLM takes the first visible GPU, and this run trains on number {index}; "
            f"set CUDA_VISIBLE_DEVICES={index} and trainer.devices=1"
        )


@contextmanager
def join_ranks(index: int) -> Iterator[dict[str, Any]]:
    """Give the options with which vLLM is opened once in each of several training processes.

    vLLM then uses their process groups, each rank by itself, and takes the GPU with this index.
    """
    ranks = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    require_first_device(index, ranks)
    if ranks == 1:
        yield {}
        return
    with set_variables(RANK=str(distributed.get_rank()), LOCAL_RANK=str(index)):
        yield {"distributed_executor_backend": "external_launcher"}
