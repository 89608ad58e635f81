"""Weights for vLLM, without vLLM: all of them, or what is missing is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lit_agentrl.engines.served.vllm_setup import load_all_weights
from lit_agentrl.engines.served.vllm_worker import Extension


class Model(nn.Module):
    """Loads as models of vLLM do: what it is given, and says what that was."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)

    def load_weights(self, weights: Any) -> set[str]:
        own, given = dict(self.named_parameters()), dict(weights)
        with torch.no_grad():
            for name, tensor in given.items():
                own[name].copy_(tensor)
        return set(given)


def test_a_folder_is_loaded_whole_or_refused(tmp_path: Any) -> None:
    model, new = Model(), {name: torch.full((2, 2), 3.0) for name in ("a.weight", "b.weight")}
    save_file(new, tmp_path / "model.safetensors")
    worker = Extension()
    worker.model_runner = SimpleNamespace(model=model)
    worker.load_folder(str(tmp_path))
    assert all(parameter.eq(3.0).all() for parameter in model.parameters())
    with pytest.raises(ValueError, match="no weights for b.weight"):
        load_all_weights(model, {"a.weight": new["a.weight"]})
    model.b.weight = nn.Parameter(torch.empty(0))
    with pytest.raises(ValueError, match="packed b.weight and others away"):
        load_all_weights(model, new)
