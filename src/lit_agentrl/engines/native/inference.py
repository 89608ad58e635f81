"""Run a network for inference: eval mode, attention over slots, fast linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from lit_agentrl.engines.native.cache import SlotCache
from lit_agentrl.engines.native.cache_argument import find_cache_argument
from lit_agentrl.engines.native.ragged import Packed
from lit_agentrl.models.onednn import use_onednn_linears


class Reader(Protocol):
    """Computes the next-token logits of an engine's slots.

    Calling a reader returns the context in which `read` may be called.
    """

    def __call__(self) -> AbstractContextManager[None]: ...

    def make_cache(self, num_slots: int, max_length: int) -> Any:
        """Create the state of ``num_slots`` slots.

        The result has a method ``move`` that copies one slot to another.
        """

    def read(self, cache: Any, packed: Packed) -> Tensor:
        """See `Inference.read`."""


class Inference:
    """Runs ``network`` for inference, and restores its settings afterwards.

    Args:
        network: May be in training mode, and shared with a trainer in the same thread.
        attention: Name of the attention function to use; None keeps the model's own.
    """

    def __init__(self, network: PreTrainedModel, attention: str | None) -> None:
        self._modules = list(network.modules())
        configs = [c for m in self._modules if isinstance(c := getattr(m, "config", None), PreTrainedConfig)]
        self._configs = list({id(config): config for config in configs}.values()) if attention else []
        self._attention = attention
        self._network = network
        self._cache_argument = find_cache_argument(network) or "past_key_values"

    @contextmanager
    def __call__(self) -> Iterator[None]:
        training = [module for module in self._modules if module.training]
        names = [config._attn_implementation_internal for config in self._configs]
        try:
            for module in training:
                module.__dict__["training"] = False
            for config in self._configs:
                config._attn_implementation_internal = self._attention
            with torch.inference_mode(), use_onednn_linears(self._modules):
                yield
        finally:
            for config, name in zip(self._configs, names, strict=True):
                config._attn_implementation_internal = name
            for module in training:
                module.__dict__["training"] = True

    def make_cache(self, num_slots: int, max_length: int) -> SlotCache:
        """See `Reader`."""
        return SlotCache(num_slots, max_length)

    def read(self, cache: SlotCache, packed: Packed) -> Tensor:
        """Read packed tokens into the slots of ``cache``, inside the context only.

        Returns:
            The logits (num_last, V) of each slot's last token.
        """
        cache.layout = layout = packed.layout
        output = self._network(
            input_ids=packed.token_1N,
            position_ids=packed.position_1N,
            use_cache=True,
            logits_to_keep=layout.num_last,
            layout=layout,
            **{self._cache_argument: cache},
        )
        logits: Tensor = output.logits[0, -layout.num_last :]
        return logits
