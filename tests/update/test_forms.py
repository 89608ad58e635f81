"""Padded, packed and shared rows, and the kernel of GPUs: one gradient for any objective and any tree."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from tests.conftest import thinned
from tests.models.kernel import use_kernel
from tests.update.bare import float64, off_policy
from tests.update.test_invariances import VARIANTS, after

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
@pytest.mark.parametrize("mixed", thinned([(mixed,) for mixed in VARIANTS], one_in=9), ids=" ".join)
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
