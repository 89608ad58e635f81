"""Find the name of a network's cache argument."""

from __future__ import annotations

import inspect
from typing import Any

# of transformers from 5.24 on, of older ones, and of its state-space models
_NAMES = ("cache", "past_key_values", "cache_params")


def find_cache_argument(network: Any) -> str | None:
    """Return the name of the network's cache argument, or None if it has none.

    The output of the network holds the cache under the same name.

    Args:
        network: A Hugging Face causal LM or its trunk, with or without adapters of peft.
    """
    base = getattr(network, "get_base_model", lambda: network)()
    parameters = inspect.signature(base.forward).parameters
    return next((name for name in _NAMES if name in parameters), None)
