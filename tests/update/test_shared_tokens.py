"""Rows of a tree: what several of them share is computed once, and the gradient is that of separate rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.update.microbatches import micro_batches
from tests.rl.ragged import fresh
from tests.update.bare import build, float64, gradient, off_policy, step


def tree() -> TrajectoryBatch:
    """Rows 1 to 5 are one group; four of them take over the first 3, 5, 7 columns of row 1, and all that is there."""
    batch = off_policy()
    columns = {name: tensor.clone() for name, tensor in batch.tensors().items() if name.endswith("_BT")}
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
    parts = micro_batches(batch.tensors(), 10**6, "shared")
    assert sum(part.num_needed for part in parts) <= batch.node_BT[real].unique().numel() < int(real.sum())
