"""Cutting batches: every row once, within the budget, trajectories whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_agentrl.rl.policy import aggregation
from lit_agentrl.update import microbatches
from lit_agentrl.update.microbatches import split_by_tokens
from lit_agentrl.update.minibatches import split_units


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_every_row_once_and_within_the_budget(lengths, budget):
    parts = split_by_tokens(torch.tensor(lengths), budget)
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(lengths)))
    for part in parts:
        widest = max(lengths[row] for row in part.tolist())
        assert widest * len(part) <= budget or len(part) == 1


def test_sorting_keeps_padding_small():
    lengths = torch.randint(10, 300, (200,), generator=torch.Generator().manual_seed(0))
    parts = split_by_tokens(lengths, 4096)
    padded = sum(int(lengths[p].max()) * len(p) for p in parts)
    assert 1 - float(lengths.sum()) / padded < 0.1


@given(st.integers(1, 6), st.integers(6, 30), st.integers(0, 5))
def test_minibatches_hold_whole_trajectories_and_are_even(count, trajectories, seed):
    ids = torch.arange(trajectories).repeat(2)
    parts = split_units(ids, count, torch.Generator().manual_seed(seed))
    assert sorted(row for part in parts for row in part.tolist()) == list(range(2 * trajectories))
    owners = [set(ids[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == trajectories
    assert max(map(len, owners)) - min(map(len, owners)) <= 1


def test_more_minibatches_than_trajectories_is_an_error():
    with pytest.raises(ValueError, match="update.minibatches=4 exceeds the 3 trajectories"):
        split_units(torch.arange(3), 4, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_and_weights_do_not_depend_on_the_default_precision(dtype, monkeypatch):
    """A rank without rows gives numbers of the precision that the others give, and counts stay exact."""
    # another rank has one micro-batch
    monkeypatch.setattr(microbatches, "max_count_over_ranks", lambda count, _: max(count, 1))

    def score(*, tokens_BT, is_action_BT, packing, place_A):
        return torch.ones(tokens_BT.shape, dtype=dtype)

    def rows(count):
        tensors = {"tokens_BT": torch.ones((count, 4), dtype=torch.int64)}
        return tensors | {name: tensors["tokens_BT"].bool() for name in ("is_action_BT", "is_real_BT")}

    torch.set_default_dtype(torch.bfloat16)
    try:
        empty, full = (microbatches.run_micro_batches(score, rows(count), 64) for count in (0, 3))
        many = torch.ones((331, 31), dtype=torch.bool)
        weights = aggregation.token_mean(is_action_BT=many)
        of_rows = aggregation.seq_mean_token_mean(is_action_BT=many, trajectory_B=torch.arange(331))
    finally:
        torch.set_default_dtype(torch.float32)
    assert empty.dtype == full.dtype == dtype and full.eq(1).all()
    assert float(weights.denominator) == 331 * 31 and float(of_rows.denominator) == 331
    torch.testing.assert_close(of_rows.weight_BT, torch.full((331, 31), 1 / 31))
