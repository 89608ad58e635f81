"""Group selection."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.policy import filters


def select(ratio, returns, groups):
    return filters.top_std(
        return_B=torch.tensor(returns),
        group_B=torch.tensor(groups),
        trajectory_B=torch.arange(len(groups)),
        ratio=ratio,
    ).keep_groups.tolist()


def test_golden(batch):
    half = bind(partial(filters.top_std, ratio=0.5), batch)
    assert half.keep_groups.tolist() == [1] and half.keep_groups.dtype == torch.int64 and not half.want_more
    assert bind(partial(filters.top_std, ratio=1.0), batch).keep_groups.tolist() == [0, 1]
    assert bind(filters.keep_all, batch).keep_groups.tolist() == [0, 1]


def test_order_is_that_of_first_appearance_not_of_spread_or_id():
    groups = [9, 2, 9, 2, 5, 5, 7, 7]
    returns = [0.0, 0.0, 1.0, 5.0, 0.0, 0.5, 0.0, 9.0]
    assert select(0.75, returns, groups) == [9, 2, 7]
    assert select(0.5, returns, groups) == [2, 7]
    assert filters.keep_all(group_B=torch.tensor(groups)).keep_groups.tolist() == [9, 2, 5, 7]


def test_ties_go_to_the_earlier_group():
    assert select(0.5, [0.3, 0.1, 0.7, 0.7, 0.3, 0.1], [4, 4, 4, 1, 1, 1]) == [4]
    assert select(0.5, [0.3, 0.1, 0.7, 0.7, 0.3, 0.1], [1, 1, 1, 4, 4, 4]) == [1]


@pytest.mark.parametrize(("ratio", "kept"), [(0.01, 1), (0.29, 29), (0.295, 29), (0.7, 70), (1.0, 100)])
def test_number_kept(ratio, kept):
    groups = [g for g in range(100) for _ in range(2)]
    assert len(select(ratio, [float(g * (i % 2)) for i, g in enumerate(groups)], groups)) == kept


def test_unscorable_returns_are_left_out_of_the_spread():
    nan = float("nan")
    groups = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    returns = [0.0, 1.0, nan, 5.0, nan, nan, nan, nan, nan]
    assert select(0.34, returns, groups) == [0]
    assert select(1.0, returns, groups) == [0, 1, 2]


def test_rows_of_one_trajectory_count_once():
    selection = filters.top_std(
        return_B=torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0, 1.1]),
        group_B=torch.tensor([0, 0, 0, 0, 1, 1]),
        trajectory_B=torch.tensor([0, 1, 2, 2, 3, 4]),  # stds .577 (.5 if rows counted) and .778
        ratio=0.5,
    )
    assert selection.keep_groups.tolist() == [1]
    heavy = filters.top_std(
        return_B=torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0, 0.6]),
        group_B=torch.tensor([0, 0, 0, 0, 1, 1]),
        trajectory_B=torch.tensor([0, 0, 0, 1, 2, 3]),  # std .707 against .424; .5 if rows counted
        ratio=0.5,
    )
    assert heavy.keep_groups.tolist() == [0]


@pytest.mark.parametrize("ratio", [1.3, 0, -0.5, float("nan")])
def test_ratio_must_be_a_share(ratio):
    with pytest.raises(ValueError, match=rf"ratio={ratio} must be in \(0, 1\]; 1\.0 keeps all groups"):
        select(ratio, [0.0, 1.0], [0, 0])
