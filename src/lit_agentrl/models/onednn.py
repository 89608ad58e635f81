"""Fast float32 matrix products of linear layers on CPUs, with gradient.

PyTorch gives float32 products on CPUs to MKL, which uses half the vector width on processors that are not
Intel's; oneDNN uses all of it, at the same precision.  PyTorch offers oneDNN's products only for inference, so the
backward pass is implemented here with the same products.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lit_agentrl.models.patching import is_patched, patch_forwards

_MIN_ROWS = 48  # with fewer rows the plain product is faster
_STEP, _LARGE, _LARGE_STEP = 16, 256, 64  # see `compute_padding`
_CACHE_SIZE = 128  # cached primitives, about 0.6 MiB each: one decode step and one micro-batch need fewer
# cache sizes of oneDNN and of PyTorch's layer above it
_CAPACITIES = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"


def bound_caches() -> None:
    """Limit the primitive caches of this process and its children, unless set already.

    Must be called before the first product, when oneDNN reads the variables.  A primitive is cached for each number
    of rows that occurs, and ragged episodes have hundreds: oneDNN's default of 1,024 takes 0.6 GiB.
    """
    for name in _CAPACITIES:
        os.environ.setdefault(name, str(_CACHE_SIZE))


def compute_padding(num_tokens: int) -> int:
    """Compute the number of padding tokens, which limits how many different sizes occur.

    oneDNN prepares products for each new size.
    """
    step = _STEP if num_tokens <= _LARGE else _LARGE_STEP
    return -num_tokens % step if num_tokens >= _MIN_ROWS else 0


def use_onednn_linears(modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Use oneDNN's products for linear layers among ``modules`` inside the context, where possible.

    It is possible for layers of class ``nn.Linear`` with unsharded float32 weights on a CPU.  Under autocast, in
    another precision and for few rows they compute as usual.  Gradients flow as through
    ``torch.nn.functional.linear``, but cannot be differentiated again.
    """
    # an existing patch of a layer would not be called
    layers = [m for m in modules if type(m) is nn.Linear and not is_patched(m) and _is_supported(m)]
    return patch_forwards(layers, lambda module, _: partial(_forward, cast(nn.Linear, module)))


def _is_supported(module: nn.Linear) -> bool:
    weight = module.weight
    if type(weight) is not nn.Parameter:  # sharded
        return False
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and _has_onednn()


def _has_onednn() -> bool:
    is_available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_available and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _forward(module: nn.Linear, x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or x.numel() < _MIN_ROWS * x.shape[-1] or torch.is_autocast_enabled("cpu"):
        return linear(x, module.weight, module.bias)
    if torch.is_grad_enabled():
        out: Tensor = _Linear.apply(x, module.weight, module.bias)  # type: ignore[no-untyped-call]
        return out
    return _multiply(x, module.weight, module.bias)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``; carries no gradient."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        grad_NO = grad.reshape(-1, grad.shape[-1])
        grad_x = _multiply(grad, weight.t()) if need_x else None
        grad_weight = None
        if need_weight:
            x_NI = x.reshape(-1, x.shape[-1])
            if grad_NO.shape[1] > x_NI.shape[1]:  # the faster order: the wider matrix gives the columns
                grad_weight = _multiply(x_NI.t(), grad_NO.t()).t()
            else:
                grad_weight = _multiply(grad_NO.t(), x_NI.t())
        return grad_x, grad_weight, grad_NO.sum(0) if need_bias else None
