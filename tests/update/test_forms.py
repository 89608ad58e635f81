"""Padded, packed and shared rows, and the kernel of GPUs: one gradient for any objective and any tree."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.models.routers import Routing
from lit_agentrl.update import networks
from lit_agentrl.update.settings import UpdateSettings
from tests.conftest import thinned
from tests.models.kernel import use_kernel
from tests.update import bare
from tests.update.bare import float64, gradient, off_policy, step
from tests.update.test_invariances import VARIANTS, after, module_of

FORMS = {
    "packed": {"packing": True},
    "shared": {"packing": "shared"},
    "shared in pieces": {"packing": "shared", "tokens_per_microbatch": 60, "logits_chunk": 7},
}


@cache
def random_tree(seed: int) -> TrajectoryBatch:
    """Rows of a group take over the first columns of a random row of it, up to all; their last turn stays."""
    batch = off_policy()
    draw = torch.Generator().manual_seed(seed)
    columns = {name: tensor.clone() for name, tensor in batch.to_dict().items() if name.endswith("_BT")}
    lengths, groups = batch.is_real_BT.sum(1).tolist(), batch.group_B.tolist()
    last_end = (batch.is_turn_end_BT * torch.arange(batch.is_turn_end_BT.shape[1])).amax(1).tolist()
    for row in range(1, len(groups)):
        others = [other for other in range(row) if groups[other] == groups[row]]
        if not others:
            continue
        other = others[int(torch.randint(len(others), (), generator=draw))]
        end = int(torch.randint(2, min(last_end[row], lengths[other]) + 1, (), generator=draw))
        for tensor in columns.values():
            tensor[row, :end] = tensor[other, :end]
    return replace(batch, **columns)


@cache
def padded(mixed: tuple[str, ...], seed: int) -> torch.Tensor:
    return after(mixed, random_tree(seed), packing=False)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [None, "2.11"])
@pytest.mark.parametrize("mixed", thinned([(mixed,) for mixed in VARIANTS], one_in=16), ids=" ".join)
def test_the_gradient_is_that_of_padded_rows(
    mixed: tuple[str, ...], kernel: str | None, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = use_kernel(monkeypatch, kernel) if kernel else []
    seed = VARIANTS.index(mixed)
    with float64():
        expected, found = padded(mixed, seed), after(mixed, random_tree(seed), **FORMS[form])
    assert found.dtype == torch.float64 and expected.norm() > 0 and bool(calls) == bool(kernel)
    assert (found - expected).norm() <= 1e-12 * expected.norm()


@pytest.mark.parametrize("kernel", [None, "2.12"])
@pytest.mark.parametrize("form", FORMS)
def test_in_float32_too(form: str, kernel: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = after(("grpo",), random_tree(0), packing=False)
    if kernel:
        use_kernel(monkeypatch, kernel)
    found = after(("grpo",), random_tree(0), **FORMS[form])
    assert found.dtype == torch.float32
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_a_reference_is_tried_on_the_device_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits on the CPU, which has no kernel: rows were padded if the policy was scored before it."""
    tried: list[str] = []

    def choose(tried_networks: list[Any], packing: bool | str, *, is_cuda: bool) -> str:
        tried.extend(network.device.type for network in tried_networks)
        return "padded"

    monkeypatch.setattr(networks, "choose_form", choose)
    _ = networks.Networks(
        bare.gpt2().to("meta"), critic=None, reference=bare.gpt2(), settings=UpdateSettings(), temperature=1.0,
        routing=Routing(),
    ).form  # fmt: skip
    assert tried == ["meta", "meta"]


def make_wide(seed: int = 0) -> GPT2LMHeadModel:
    """A network whose heads have the 16 numbers that the kernel of GPUs needs; it takes multiples of 8."""
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=2, n_positions=64, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


@pytest.mark.gpu
def test_on_cuda_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare, "gpt2", make_wide)

    def train(**update: Any) -> tuple[str, torch.Tensor]:
        module = module_of(("grpo",), **update).to("cuda")
        module.prepare()
        with torch.autocast("cuda", torch.bfloat16):
            step(module, random_tree(0).to("cuda"))
        return module.updater.networks.form, gradient(module)

    _, expected = train(packing=False)
    for form, settings in FORMS.items():
        _, found = train(**settings)
        assert (found - expected).norm() <= 0.05 * expected.norm(), form
    assert train()[0] == "packed"
