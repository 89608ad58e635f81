"""The kernel for segments of any length on a CPU, which has none: the same interface, computed in turn."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lit_agentrl.models import packing, segment_attention
from lit_agentrl.models.segment_attention import attend_in_turn

Kernel = Callable[..., torch.Tensor]


def attend_groups(
    query: Any, key: Any, value: Any, query_bounds: Any, key_bounds: Any, longest_query: int, longest_key: int, *,
    scale: float | None, window_size: tuple[int, int], enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """As of torch 2.12."""
    assert window_size == (-1, 0) and (enable_gqa or query.shape[1] == key.shape[1])
    assert query_bounds.dtype == key_bounds.dtype == torch.int32 and query.dtype == key.dtype == value.dtype
    assert (longest_query, longest_key) == (int(query_bounds.diff().max()), int(key_bounds.diff().max()))
    assert int(key_bounds[-1]) <= len(key) == len(value) and int(query_bounds[-1]) <= len(query)
    assert bool((query_bounds.diff() > 0).all() and (query_bounds.diff() <= key_bounds.diff()).all())
    return attend_in_turn(query, key, value, query_bounds, key_bounds, scale)


def attend_equal_heads(
    query: Any, key: Any, value: Any, query_bounds: Any, key_bounds: Any, longest_query: int, longest_key: int, *,
    scale: float | None, window_size: tuple[int, int],
) -> torch.Tensor:  # fmt: skip
    """As of torch 2.11."""
    assert query.shape[1:] == key.shape[1:] == value.shape[1:]
    return attend_groups(
        query, key, value, query_bounds, key_bounds, longest_query, longest_key, scale=scale,
        window_size=window_size,
    )  # fmt: skip


KERNELS = {"2.12": attend_groups, "2.11": attend_equal_heads}


def use_kernel(monkeypatch: pytest.MonkeyPatch, version: str) -> list[int]:
    """Read packed rows as on a GPU; return a list that gets the keys of each call."""
    calls: list[int] = []

    def count(attend: Kernel) -> Kernel:
        def attend_counted(*args: Any, **options: Any) -> torch.Tensor:
            calls.append(len(args[1]))
            return attend(*args, **options)

        attend_counted.__signature__ = inspect.signature(attend)  # type: ignore[attr-defined]
        return attend_counted

    monkeypatch.setattr(segment_attention, "varlen_attn", count(KERNELS[version]))
    monkeypatch.setattr(packing, "find_kernel_obstacle", lambda *_: "")
    return calls
