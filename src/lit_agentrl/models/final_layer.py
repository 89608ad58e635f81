"""The last layer for the tokens whose logits are read: what it makes of the others, nobody reads."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from lit_agentrl.models.onednn import padding_for
from lit_agentrl.models.patched import Forward, is_patched, patched

_RUN_AGAIN: WeakSet[nn.Module] = WeakSet()
_WORTH = 0.75  # of the tokens; where more are read, all are computed


def final_feed_forward(network: nn.Module) -> nn.Module | None:
    """The feed-forward network of the last layer, which works on each token by itself; None where it cannot be told.

    A layer that is run again in the backward pass is left as it is.
    """
    trunk: Any = getattr(network, "base_model", network)
    count = getattr(getattr(trunk, "config", None), "num_hidden_layers", None)
    lists = [child for child in trunk.children() if isinstance(child, nn.ModuleList) and len(child) == count]
    if len(lists) != 1:
        return None
    last = lists[0][-1]
    is_run_again = is_patched(last) or last in _RUN_AGAIN
    # of its own: a wrapper that runs it again would hand on what it wraps
    return None if is_run_again else dict(last.named_children()).get("mlp")


def mark_run_again(layer: nn.Module) -> None:
    """Say that a layer is run again in the backward pass, by which it must compute what it did before."""
    _RUN_AGAIN.add(layer)


def read_places(place_A: Tensor, num_tokens: int) -> Tensor | None:
    """Each place that is read once, and some others, since products are prepared anew for each number of tokens.

    None where most are read, and on other devices than CPUs, which would have to be waited for.
    """
    if place_A.device.type != "cpu":
        return None
    is_read_N = np.zeros(num_tokens, dtype=np.bool_)
    is_read_N[place_A.numpy()] = True
    read, others = np.flatnonzero(is_read_N), np.flatnonzero(~is_read_N)
    padding = padding_for(len(read))
    if len(read) + padding > _WORTH * num_tokens:
        return None
    return torch.from_numpy(np.concatenate([read, others[:padding]]))


def computed_at(module: nn.Module | None, places: Tensor | slice | None) -> AbstractContextManager[None]:
    """Inside, a module of (1, N, D) tokens computes at these places alone, and gives zeros elsewhere.

    Args:
        module: None: nothing is changed.
        places: each once; None: all.
    """
    if module is None or places is None:
        return nullcontext()
    return patched([module], lambda _, whole: partial(_at, places, whole))


def _at(places: Tensor | slice, whole: Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    out = whole(x[:, places], *args, **kwargs)
    if not isinstance(out, Tensor):  # with what a router says of each token
        return whole(x, *args, **kwargs)
    zeros = out.new_zeros((*x.shape[:2], out.shape[2]))
    if isinstance(places, slice):
        zeros[:, places] = out
        return zeros
    return zeros.index_copy(1, places, out)
