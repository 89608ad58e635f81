"""Quick float32 matrix products of linear layers on CPUs, with gradient.

PyTorch gives float32 products on CPUs to MKL, which uses half the vector width on processors that are not
Intel's; oneDNN uses all of it, at the same precision.  PyTorch offers its products for inference alone, so the
backward pass is written here, of the same products.
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

from lit_agentrl.models.patched import is_patched, patched

_MIN_ROWS = 48  # below it the plain product is quicker
_STEP, _LARGE, _LARGE_STEP = 16, 256, 64  # see `padding_for`
_PREPARED = 128  # products kept prepared, about 0.6 MiB each: one decode step and one micro-batch need fewer
# of oneDNN and of PyTorch's layer on it
_CAPACITIES = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"


def bound_caches() -> None:
    """Keep few products prepared in this process and those it starts, where the user has not said how many.

    To be called before the first product, when oneDNN reads the variables.  A product is prepared for each number
    of rows that is met, and ragged episodes meet hundreds: 1,024 of them, which oneDNN would keep, come to 0.6 GiB.
    """
    for name in _CAPACITIES:
        os.environ.setdefault(name, str(_PREPARED))


def padding_for(num_tokens: int) -> int:
    """Tokens to be added so that few different numbers are met: for each, products are prepared anew."""
    step = _STEP if num_tokens <= _LARGE else _LARGE_STEP
    return -num_tokens % step if num_tokens >= _MIN_ROWS else 0


def quick_linears(modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Linear layers among ``modules`` take oneDNN's products while inside, where that is possible.

    Those are layers of class ``nn.Linear`` with whole float32 weights on a CPU; under autocast, in another precision
    and on few rows they do as always.  Gradients flow as through ``torch.nn.functional.linear``, once.
    """
    # what stands in a layer's way already would not be called
    taken = [m for m in modules if type(m) is nn.Linear and not is_patched(m) and _is_quick(m)]
    return patched(taken, lambda module, _: partial(_forward, cast(nn.Linear, module)))


def _is_quick(module: nn.Linear) -> bool:
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
    return _product(x, module.weight, module.bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``; carries no gradient."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        grad_NO = grad.reshape(-1, grad.shape[-1])
        of_x = _product(grad, weight.t()) if need_x else None
        of_weight = None
        if need_weight:
            x_NI = x.reshape(-1, x.shape[-1])
            if grad_NO.shape[1] > x_NI.shape[1]:  # the quicker of two ways: the wider one gives the columns
                of_weight = _product(x_NI.t(), grad_NO.t()).t()
            else:
                of_weight = _product(grad_NO.t(), x_NI.t())
        return of_x, of_weight, grad_NO.sum(0) if need_bias else None
