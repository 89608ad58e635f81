"""Rows of a tree: what several of them share is computed once, and the gradient is that of separate rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.packing import enable_packing
from lit_agentrl.update.microbatches import split_micro_batches
from tests.conftest import tiny_network
from tests.rl.ragged import fresh
from tests.update.bare import build, float64, gradient, off_policy, step


def tree() -> TrajectoryBatch:
    """Rows 1 to 5 are one group; four of them take over the first 3, 5, 7 columns of row 1, and all that is there."""
    batch = off_policy()
    columns = {name: tensor.clone() for name, tensor in batch.to_dict().items() if name.endswith("_BT")}
    for row, shared in ((2, 3), (3, 5), (4, 7), (5, 7)):
        for tensor in columns.values():
            tensor[row, :shared] = tensor[1, :shared]
    return replace(batch, **columns)


@pytest.mark.parametrize("name", ["arpo", "arpo advantage=branch_hard", "tree_grpo"])
def test_a_shared_token_is_computed_once(name: str) -> None:
    with float64():
        batch, found = tree(), []
        for packing in (False, "shared"):
            module = build(fresh(*name.split()), packing=packing)
            step(module, batch)
            found.append(gradient(module))
        assert found[0].dtype == torch.float64 and found[0].norm() > 0
        assert (found[1] - found[0]).norm() <= 1e-9 * found[0].norm()
    real = batch.is_real_BT
    parts = split_micro_batches(batch.to_dict(), 10**6, "shared")
    assert sum(part.num_needed for part in parts) <= batch.node_BT[real].unique().numel() < int(real.sum())


@pytest.mark.parametrize("norms_in_float32", [False, True])
def test_sums_over_rows_differ_by_the_rounding_of_the_least_precise_layer(norms_in_float32: bool) -> None:
    """Of a float64 network ``transformers`` computes the norms of Llama in float32.

    Rows that begin alike are summed before such a layer rounds their gradient, if they are in one batch, and after it
    where each process has some of them.  So what two processes learn is equal to about 1e-8 then, not to 1e-15.
    """
    with float64():
        network = tiny_network().double()
        if not norms_in_float32:
            for norm in (each for each in network.modules() if isinstance(each, LlamaRMSNorm)):
                norm.forward = partial(
                    F.rms_norm, normalized_shape=norm.weight.shape, weight=norm.weight, eps=1e-6
                )
        assert not enable_packing(network)
        tokens_BT = torch.randint(5, 60, (8, 12), generator=torch.Generator().manual_seed(0))
        tokens_BT[:, :6] = tokens_BT[0, :6]
        is_real_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        rows = {
            "tokens_BT": tokens_BT,
            "is_real_BT": is_real_BT,
            "is_action_BT": is_real_BT & (torch.arange(12) > 5),
        }

        def summed(*cuts: slice) -> torch.Tensor:
            network.zero_grad()
            for cut in cuts:
                [part] = split_micro_batches({name: rows[name][cut] for name in rows}, 10**6, "shared")
                given = {
                    name: rows[name][cut][part.rows, : part.width] for name in ("tokens_BT", "is_action_BT")
                }
                score_tokens(network, **given, packing=part.packing).logp_BT.sum().backward()
            return torch.cat(
                [weight.grad.flatten() for weight in network.parameters() if weight.grad is not None]
            )

        together, apart = summed(slice(None)), summed(slice(4), slice(4, None))
    difference = float((together - apart).norm() / together.norm())
    assert (1e-11 < difference < 1e-7) if norms_in_float32 else difference < 1e-13
