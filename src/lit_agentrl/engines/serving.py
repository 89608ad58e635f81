"""A network as an engine runs it: in eval mode, with attention over slots and quick matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedConfig, PreTrainedModel

_MIN_ROWS = 48  # below it the plain product is quicker


class Serving:
    """Runs ``network`` for inference; everything is put back on leaving.

    Args:
        network: may be in training mode, and shared with a trainer of the same thread.
        attention: name of the attention function to use; None keeps the model's own.
    """

    def __init__(self, network: PreTrainedModel, attention: str | None) -> None:
        self._modules = list(network.modules())
        configs = [c for m in self._modules if isinstance(c := getattr(m, "config", None), PreTrainedConfig)]
        self._configs = list({id(config): config for config in configs}.values()) if attention else []
        self._attention = attention
        self._linears = [m for m in self._modules if type(m) is nn.Linear]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        training = [module for module in self._modules if module.training]
        names = [config._attn_implementation_internal for config in self._configs]
        linears = [m for m in self._linears if "forward" not in m.__dict__ and _is_quick(m)]
        try:
            for module in training:
                module.__dict__["training"] = False
            for module in linears:
                module.__dict__["forward"] = partial(_quick_linear, module)
            for config in self._configs:
                config._attn_implementation_internal = self._attention
            with torch.inference_mode():
                yield
        finally:
            for config, name in zip(self._configs, names, strict=True):
                config._attn_implementation_internal = name
            for module in linears:
                del module.__dict__["forward"]
            for module in training:
                module.__dict__["training"] = True


def _is_quick(module: nn.Linear) -> bool:
    """Whether oneDNN may take the product.

    PyTorch gives float32 products on CPUs to MKL, which uses half the vector width on processors that are
    not Intel's; oneDNN uses all of it, at the same precision.
    """
    weight = module.weight
    if type(weight) is not nn.Parameter:  # sharded
        return False
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and _has_onednn()


def _has_onednn() -> bool:
    is_available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_available and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _quick_linear(module: nn.Linear, x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or x.numel() < _MIN_ROWS * x.shape[-1] or torch.is_autocast_enabled("cpu"):
        return linear(x, module.weight, module.bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, module.weight, module.bias, "none", [], "")
    return out
