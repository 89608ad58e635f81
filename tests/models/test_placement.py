"""Where weights lie in memory, on which the last bits of products depend."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn

from lit_agentrl.models.policy import Policy, get_named_weights, load_nano, load_pretrained
from tests.conftest import tiny_network, tiny_policy


def lies_evenly(network: nn.Module) -> bool:
    return all(weight.data_ptr() % 64 == 0 for weight in get_named_weights(network).values())


@pytest.mark.parametrize("family", ["nano", "gpt2"])
def test_weights_and_their_copies_begin_at_multiples_of_64_bytes(family: str, tmp_path: object) -> None:
    """Those of a file lie where the file has them; a playing process gets its copy through torch.save."""
    policy = load_nano()
    if family == "gpt2":
        Policy(network=tiny_network(family), tokenizer=policy.tokenizer, name="tiny").save(str(tmp_path))
        policy = load_pretrained(str(tmp_path))
    file = io.BytesIO()
    torch.save(policy.network, file)
    file.seek(0)
    sent = torch.load(file, weights_only=False)
    assert lies_evenly(policy.network) and lies_evenly(sent) and lies_evenly(copy.deepcopy(policy.network))
    # what was tied still is
    assert get_named_weights(sent).keys() == get_named_weights(policy.network).keys()
    tied = policy.network.get_output_embeddings().weight is policy.network.get_input_embeddings().weight
    assert tied == policy.network.config.tie_word_embeddings


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    policy = tiny_policy()
    with torch.no_grad():
        policy.network.model.layers[1].mlp.up_proj.weight[0, 0] = value
    policy.save(tmp_path)
    with pytest.raises(
        ValueError, match=r"weights that are not finite, in model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        load_pretrained(str(tmp_path))
