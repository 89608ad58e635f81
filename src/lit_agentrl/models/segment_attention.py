"""Causal attention within the segments of a packed row, by one kernel or in batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import embedding, scaled_dot_product_attention
from transformers.integrations.sdpa_attention import repeat_kv

_deterministic: Any = torch.utils.deterministic  # a module whose attribute is a property
_MIN_FILL = 0.92  # length of the shortest row of a batch, relative to its longest row

Places = npt.NDArray[np.int64]


def upload(arrays: Sequence[Places], device: torch.device) -> list[Tensor]:
    """Copy arrays of integers to a device, on a GPU without waiting for the copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays])).pin_memory()
    parts = torch.split(flat.to(device, non_blocking=True), [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def pick(states: Tensor, index: Tensor) -> Tensor:
    """Return ``states[index]``, with a deterministic gradient.

    The gradient of an index that occurs twice is always summed in the same order.
    """
    return embedding(index, states.flatten(1)).view(len(index), *states.shape[1:])


# ---------------------------------------------------------------------- by one kernel
@dataclass(frozen=True)
class KernelLayout:
    """Queries and keys of the kernel for segments of any length.

    A segment is one row, or several rows if each continues the one before.  Its queries are the tokens that no
    earlier row has.  They are the last tokens of its row, and they are neighbours in the packed row.

    Attributes:
        key_M: Packed index of each key; None if these are the packed tokens in order.
        query_bounds: int32 first query of each segment, and the end of the last.
        key_bounds: int32 first key of each segment, and the end of the last.
        longest_query: Most queries of a segment.
        longest_key: Most keys of a segment.
    """

    key_M: Tensor | None
    query_bounds: Tensor
    key_bounds: Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, places: Sequence[Places], common: Sequence[int], device: torch.device) -> KernelLayout:
        """Return the layout of rows, given their packed indices and ``Packing.common``."""
        queries: list[int] = []
        keys: list[Places] = []
        for place, shared in zip(places, common, strict=True):
            if shared == len(place):  # nothing new
                continue
            if keys and shared == len(keys[-1]) and keys[-1][-1] == place[shared - 1]:
                queries[-1], keys[-1] = queries[-1] + len(place) - shared, place
            else:
                queries.append(len(place) - shared)
                keys.append(place)
        sizes = [len(place) for place in keys]
        is_plain = queries == sizes
        bounds = [np.array([0, *accumulate(lengths)], dtype=np.int64) for lengths in (queries, sizes)]
        index = [] if is_plain else [np.concatenate(keys)]
        query_bounds, key_bounds, *key_M = upload([*bounds, *index], device)
        return cls(
            key_M[0] if key_M else None, query_bounds.int(), key_bounds.int(), max(queries), max(sizes)
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Return (1, N, heads, D) from (1, heads, N, D) tensors."""
        dtype = min((query.dtype, key.dtype, value.dtype), key=lambda dtype: dtype.itemsize)
        q, k, v = (states.squeeze(0).transpose(0, 1).to(dtype) for states in (query, key, value))
        if self.key_M is not None:
            k, v = torch.split(pick(torch.cat([k, v], 1), self.key_M), k.shape[1], dim=1)
        bounds = self.query_bounds, self.key_bounds
        return attend_segments(q, k, v, *bounds, self.longest_query, self.longest_key, scale)[None]


def attend_segments(
    query_NHD: Tensor, key_MGD: Tensor, value_MGD: Tensor, query_bounds: Tensor, key_bounds: Tensor,
    longest_query: int, longest_key: int, scale: float | None,
) -> Tensor:  # fmt: skip
    """Compute causal attention within each segment by the kernel for segments of any length.

    The last query of a segment reads all its keys, the one before all but the last, and so on.  G key heads serve H
    query heads; where the kernel of this torch has no ``enable_gqa`` (2.11), they are repeated.
    """
    options: dict[str, Any] = {"scale": scale, "window_size": (-1, 0)}
    groups = query_NHD.shape[1] // key_MGD.shape[1]
    if groups > 1:
        if _has_grouped_heads(varlen_attn):
            options["enable_gqa"] = True
        else:
            key_MGD, value_MGD = (_repeat_heads(states, groups) for states in (key_MGD, value_MGD))
    output_NHD = varlen_attn(
        query_NHD, key_MGD, value_MGD, query_bounds, key_bounds, longest_query, longest_key, **options
    )
    assert isinstance(output_NHD, Tensor)  # no auxiliary output is asked for
    if output_NHD.grad_fn is not None:
        _make_deterministic(output_NHD.grad_fn)
    return output_NHD


def _make_deterministic(node: Any) -> None:
    """Make the backward pass of the kernel sum in a fixed order."""
    before: list[tuple[bool, bool, bool]] = []

    def switch_on(_: Any) -> None:
        is_on, warns_only = (
            torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        )  # fmt: skip
        before.append((is_on, warns_only, _deterministic.fill_uninitialized_memory))
        torch.use_deterministic_algorithms(True)
        _deterministic.fill_uninitialized_memory = False  # True would write all results twice

    def restore(*_: Any) -> None:
        is_on, warns_only, _deterministic.fill_uninitialized_memory = before.pop()
        torch.use_deterministic_algorithms(is_on, warn_only=warns_only)

    node.register_prehook(switch_on)
    node.register_hook(restore)


@lru_cache
def _has_grouped_heads(kernel: Callable[..., Any]) -> bool:
    """Return whether a kernel lets several query heads read one key head."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def _repeat_heads(states_MGD: Tensor, groups: int) -> Tensor:
    """Return (M, G x groups, D): each head ``groups`` times in a row."""
    return states_MGD[:, :, None].expand(-1, -1, groups, -1).flatten(1, 2)


def attend_in_turn(
    query_NHD: Tensor, key_MGD: Tensor, value_MGD: Tensor, query_bounds: Tensor, key_bounds: Tensor,
    scale: float | None,
) -> Tensor:  # fmt: skip
    """Compute what `attend_segments` computes, one segment after the other: the reference of the kernel."""
    parts = []
    groups = query_NHD.shape[1] // key_MGD.shape[1]
    bounds = zip(pairwise(query_bounds.tolist()), pairwise(key_bounds.tolist()), strict=True)
    for queries, keys in bounds:
        q, k, v = (
            states[slice(*ends)].transpose(0, 1)[None]
            for states, ends in ((query_NHD, queries), (key_MGD, keys), (value_MGD, keys))
        )
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(
            k.shape[2] - q.shape[2]
        )
        out = scaled_dot_product_attention(
            q, repeat_kv(k, groups), repeat_kv(v, groups), attn_mask=mask, scale=scale
        )
        parts.append(out[0].transpose(0, 1))
    padding = query_NHD.new_zeros(len(query_NHD) - int(query_bounds[-1]), *query_NHD.shape[1:])
    return torch.cat([*parts, padding])


@lru_cache
def find_kernel_obstacle(
    device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, dim: int
) -> str:
    """Return why the kernel cannot be used for such heads; empty if it can.

    The kernel is tried once, forward and backward, on two short segments.  One has fewer queries than keys.
    """
    if device.type != "cuda":
        return "there is no variable-length kernel for CPUs"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"there is no variable-length kernel in {str(dtype).removeprefix('torch.')}"
    return _try_kernel(device, dtype, heads, key_heads, dim)


# an engine asks in inference mode, which records no gradient
@torch.inference_mode(False)
@torch.enable_grad()
def _try_kernel(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, dim: int) -> str:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, heads, dim), (8, key_heads, dim), (8, key_heads, dim), (5, heads, dim))
    *states, weights = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    bounds = [torch.tensor(ends, dtype=torch.int32, device=device) for ends in ([0, 2, 5], [0, 5, 8])]
    is_on, warns_only = (
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    )  # fmt: skip
    fills = _deterministic.fill_uninitialized_memory

    def compute(attend: Callable[..., Tensor], kind: torch.dtype, *longest: int) -> list[Tensor]:
        inputs = [tensor.to(kind).requires_grad_() for tensor in states]
        result = attend(*inputs, *bounds, *longest, dim**-0.5)
        return [result.detach(), *torch.autograd.grad((result * weights).sum(), inputs)]

    try:
        with torch.autocast(device.type, enabled=False):
            computed, expected = (
                compute(attend_segments, dtype, 3, 5), compute(attend_in_turn, torch.float32)
            )  # fmt: skip
    except torch.OutOfMemoryError:  # this says nothing about the kernel
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    finally:  # a backward pass that fails restores nothing
        torch.use_deterministic_algorithms(is_on, warn_only=warns_only)
        _deterministic.fill_uninitialized_memory = fills
    gap = max(
        float((one.float() - other).abs().max() / other.abs().max())
        for one, other in zip(computed, expected, strict=True)
    )
    return "" if gap <= 0.05 else f"the variable-length kernel is off by {gap:.2g} of the greatest number"


# ---------------------------------------------------------------------- in batches
@dataclass(frozen=True)
class BatchLayout:
    """Batches of rows of similar length, each padded to its longest row.

    Attributes:
        batches: Rows and tokens of each call of attention, in order.
        layout_M: Packed index of each token that attention reads; None if these are the packed tokens in order.
        result_N: Index of each packed token's result among the M tokens read; None if ``layout_M`` is None.
    """

    batches: tuple[tuple[int, int], ...]
    layout_M: Tensor | None
    result_N: Tensor | None

    @classmethod
    def of(cls, places: Sequence[Places], num_tokens: int, device: torch.device) -> BatchLayout:
        """Return the layout of rows, given their packed indices and the number of packed tokens."""
        batches = _batch_rows(places)
        layout_M, result_N = _compute_layout(batches, places, num_tokens)
        sizes = tuple((len(rows), tokens) for rows, tokens in batches)
        if len(layout_M) == num_tokens and bool((layout_M == np.arange(num_tokens)).all()):
            return cls(sizes, None, None)
        laid_out_M, results_N = upload([layout_M, result_N], device)
        return cls(sizes, laid_out_M, results_N)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Return (1, N, heads, D) from (1, heads, N, D) tensors, in at least float32."""
        groups = query.shape[1] // key.shape[1]
        states_QKV = (query, key, value)
        # under autocast, rotated queries and keys are float32 while values are in half precision
        dtype = min((states.dtype for states in states_QKV), key=lambda dtype: dtype.itemsize)
        if dtype in (torch.float16, torch.bfloat16):
            states_QKV = (query.float(), key.float(), value.float())
        with torch.autocast(query.device.type, enabled=False):
            sizes = [rows * tokens for rows, tokens in self.batches]
            split = [torch.split(self._arrange(states), sizes) for states in states_QKV]
            parts = []
            for (rows, tokens), *states in zip(self.batches, *split, strict=True):
                q, k, v = (x.view(rows, tokens, *x.shape[1:]).transpose(1, 2) for x in states)
                out = scaled_dot_product_attention(
                    q, repeat_kv(k, groups), repeat_kv(v, groups), is_causal=True, scale=scale
                )
                parts.append(out.transpose(1, 2).flatten(0, 1))
            states_MHD = torch.cat(parts)
            gathered = states_MHD if self.result_N is None else pick(states_MHD, self.result_N)
            return gathered[None].to(dtype)

    def _arrange(self, states: Tensor) -> Tensor:
        """Return (M, heads, D) from (1, heads, N, D), in the layout of attention."""
        states_NHD = states.squeeze(0).transpose(0, 1)
        return states_NHD if self.layout_M is None else pick(states_NHD, self.layout_M)


def _batch_rows(places: Sequence[Places]) -> list[tuple[list[int], int]]:
    """Group the rows that attention reads into batches of similar length.

    A row that the next row continues is not read separately.

    Returns:
        The rows of each batch, and the tokens of its longest row.
    """
    next_places = [*places[1:], np.array([], dtype=np.int64)]
    complete = [
        row
        for row, (own, after) in enumerate(zip(places, next_places, strict=True))
        if len(after) < len(own) or own[-1] != after[len(own) - 1]
    ]
    batches: list[tuple[list[int], int]] = []
    for row in sorted(complete, key=lambda row: -len(places[row])):
        if batches and len(places[row]) >= _MIN_FILL * batches[-1][1]:
            batches[-1][0].append(row)
        else:
            batches.append(([row], len(places[row])))
    return batches


def _compute_layout(
    batches: list[tuple[list[int], int]], places: Sequence[Places], num_tokens: int
) -> tuple[Places, Places]:
    """Return ``layout_M`` and ``result_N`` of `BatchLayout`; padding gets arbitrary values."""
    layout_M = np.zeros(sum(len(rows) * tokens for rows, tokens in batches), dtype=np.int64)
    result_N = np.zeros(num_tokens, dtype=np.int64)
    start = 0
    for rows, tokens in batches:
        for row in rows:
            place = places[row]
            layout_M[start : start + len(place)] = place
            result_N[place] = np.arange(start, start + len(place))
            start += tokens
    return layout_M, result_N
