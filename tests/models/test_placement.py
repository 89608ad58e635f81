"""Copies of a policy."""

from __future__ import annotations

import copy

import pytest
import torch

from lit_agentrl.models.policy import load_nano, named_weights, offsets, place
from tests.conftest import tiny_network


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_copy_lies_in_memory_as_the_original(family: str) -> None:
    """The shipped weights lie where their file has them, which is not where a copy is put."""
    network = load_nano().network if family == "llama" else tiny_network(family)
    twin = copy.deepcopy(network)
    if family == "llama":
        assert offsets(twin) != offsets(network)
    place(twin, offsets(network))
    assert offsets(twin) == offsets(network)
    assert named_weights(twin).keys() == named_weights(network).keys()  # what was tied still is
    for name, weight in named_weights(network).items():
        assert torch.equal(weight, named_weights(twin)[name]), name
        assert weight.data_ptr() != named_weights(twin)[name].data_ptr()
