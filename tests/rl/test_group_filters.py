"""Group selection by spread and by outcome."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.binding import bind, try_out
from lit_agentrl.rl.policy import filters
from lit_agentrl.rl.policy.filters import dynamic_sampling, min_p, reject_uniform, std_nucleus, var_threshold

NAN = float("nan")
FILTERS = [
    partial(std_nucleus, p=0.9),
    partial(min_p, p=0.5),
    var_threshold,
    reject_uniform,
    partial(dynamic_sampling, target=1),
]


def select(fn, returns, groups, trajectories=None, success=None):
    """Groups kept; a return of at least 1 is a success unless told."""
    return_B = torch.tensor(returns, dtype=torch.float64)
    tensors = {
        "return_B": return_B,
        "group_B": torch.tensor(groups, dtype=torch.int64),
        "trajectory_B": torch.tensor(range(len(groups)) if trajectories is None else trajectories),
        "success_B": return_B >= 1 if success is None else torch.tensor(success),
    }
    selection = bind(fn, tensors)
    assert selection.keep_groups.dtype == torch.int64
    return selection.keep_groups.tolist()


def pairs(*spreads):
    """Groups 0, 1, … of two returns each whose difference is given; the std is that over sqrt(2)."""
    returns = [r for spread in spreads for r in (0.0, spread)]
    return returns, [g for g in range(len(spreads)) for _ in range(2)]


def test_the_worked_example(batch):
    sampled = bind(dynamic_sampling, batch)
    assert sampled.keep_groups.tolist() == [0, 1] and not sampled.want_more
    assert bind(reject_uniform, batch).keep_groups.tolist() == [0, 1]
    assert bind(partial(std_nucleus, p=0.5), batch).keep_groups.tolist() == [1]  # stds .5 and .635085
    assert bind(partial(std_nucleus, p=0.6), batch).keep_groups.tolist() == [0, 1]
    assert bind(partial(min_p, p=0.787), batch).keep_groups.tolist() == [0, 1]  # .5 / .635085 is .7873
    assert bind(partial(min_p, p=0.788), batch).keep_groups.tolist() == [1]
    assert bind(partial(var_threshold, threshold=0.25), batch).keep_groups.tolist() == [0, 1]
    assert bind(partial(var_threshold, threshold=0.26), batch).keep_groups.tolist() == [1]


@pytest.mark.parametrize(
    ("p", "kept"), [(0.1, [1]), (0.49, [1]), (0.5, [1]), (0.51, [1, 3]), (0.8, [1, 3]), (0.81, [0, 1, 3])]
)
def test_std_nucleus_keeps_the_fewest_widest_groups(p, kept):
    returns, groups = pairs(2.0, 5.0, 0.0, 3.0)  # shares .2, .5, 0, .3
    assert select(partial(std_nucleus, p=p, slack=0.0), returns, groups) == kept


def test_std_nucleus_slack_is_in_points():
    root2 = 2**0.5
    returns, groups = pairs(root2, 0.02 * root2, 0.009 * root2)  # stds 1, .02 and .009
    assert select(partial(std_nucleus, p=1.0), returns, groups) == [0, 1]
    assert select(partial(std_nucleus, p=1.0, slack=0.03), returns, groups) == [0]
    assert select(partial(std_nucleus, p=1.0, slack=0.0), returns, groups) == [0, 1, 2]
    tiny, groups = pairs(0.01, 0.001)  # nothing is needed to reach a sum of less than the slack
    assert select(partial(std_nucleus, p=1.0), tiny, groups) == []


def test_std_nucleus_with_all_the_mass_keeps_every_group_with_spread():
    returns, groups = pairs(1e6, 0.0, 1e-12, 3.0, 0.0)
    assert select(partial(std_nucleus, p=1.0, slack=0.0), returns, groups) == [0, 2, 3]


@pytest.mark.parametrize("count", range(1, 11))
def test_std_nucleus_counts_equal_groups_exactly(count):
    returns, groups = pairs(*[0.1] * 10)
    kept = select(partial(std_nucleus, p=count / 10, slack=0.0), returns, groups)
    assert kept == list(range(count))  # ties go to the earlier group


def test_min_p():
    returns, groups = pairs(2.0, 5.0, 0.0, 3.0, 5.0)
    assert select(partial(min_p, p=0.39), returns, groups) == [0, 1, 3, 4]
    assert select(partial(min_p, p=0.41), returns, groups) == [1, 3, 4]
    assert select(partial(min_p, p=1.0), returns, groups) == [1, 4]


def test_var_threshold_default():
    returns, groups = pairs(0.14, 0.142, 0.0)  # variances .0098, .010082, 0
    assert select(var_threshold, returns, groups) == [1]
    assert select(partial(var_threshold, threshold=0.49), *pairs(1.0)) == [0]  # its variance is 0.5
    assert select(partial(var_threshold, threshold=0.51), *pairs(1.0)) == []


def test_reject_uniform_goes_by_success_not_by_return():
    groups = [0, 0, 1, 1, 2, 2]
    returns = [0.0, 1.0, 3.0, 3.0, 5.0, 6.0]
    assert select(reject_uniform, returns, groups, success=[False, False, True, False, True, True]) == [1]


def test_dynamic_sampling_wants_more_until_full():
    tensors = {
        "return_B": torch.zeros(8),
        "group_B": torch.tensor([7, 7, 3, 3, 9, 9, 1, 1]),
        "success_B": torch.tensor([True, False, True, True, False, True, True, False]),
    }
    for target, kept, want_more in [
        (1, [7], False),
        (2, [7, 9], False),
        (3, [7, 9, 1], False),
        (4, [7, 9, 1], True),
        (None, [7, 9, 1], False),
    ]:
        selection = bind(partial(dynamic_sampling, target=target), tensors)
        assert selection.keep_groups.tolist() == kept and selection.want_more is want_more
    same = bind(reject_uniform, tensors)
    assert same.keep_groups.tolist() == [7, 9, 1] and not same.want_more


@pytest.mark.parametrize("fn", FILTERS)
def test_uniform_groups_leave_nothing(fn):
    assert select(fn, [0.1] * 6, [0, 0, 0, 1, 1, 1]) == []


@pytest.mark.parametrize("fn", FILTERS)
def test_singletons_and_no_rows_leave_nothing(fn):
    assert select(fn, [0.0, 1.0, 2.0], [0, 1, 2]) == []
    assert select(fn, [], []) == []


@pytest.mark.parametrize("fn", FILTERS)
def test_unscorable_returns_are_left_out(fn):
    groups = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    returns = [NAN, NAN, NAN, 1.0, NAN, 1.0, 0.0, 4.0, NAN]
    assert select(fn, returns, groups, success=[True, False, True] * 3) == [2]


@pytest.mark.parametrize("fn", FILTERS)
def test_order_is_that_of_first_appearance(fn):
    groups = [9, 2, 9, 5, 2, 5]
    returns = [0.0, 0.0, 2.0, 3.0, 2.1, 3.0]
    assert select(fn, returns, groups) == ([9] if "target" in getattr(fn, "keywords", {}) else [9, 2])


@pytest.mark.parametrize("fn", FILTERS[:-1])  # the surplus that dynamic_sampling drops depends on the order
def test_row_order_does_not_matter(fn):
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(6).repeat_interleave(4)
    returns = torch.rand(24, generator=generator) * groups  # group 0 has no spread
    whole = select(fn, returns.tolist(), groups.tolist())
    order = torch.randperm(24, generator=generator)
    shuffled = select(fn, returns[order].tolist(), groups[order].tolist(), order.tolist())
    assert sorted(shuffled) == sorted(whole) and 0 < len(whole) < 6


@pytest.mark.parametrize("fn", FILTERS[:3])
def test_rows_of_one_trajectory_count_once(fn):
    returns, groups, trajectories = [0.0, 0.0, 0.0, 1.0, 0.0, 0.9], [0] * 4 + [1] * 2, [0, 0, 0, 1, 2, 3]
    once = select(fn, [0.0, 1.0, 0.0, 0.9], [0, 0, 1, 1])
    assert select(fn, returns, groups, trajectories) == once and 0 in once


def test_rows_of_one_trajectory_count_once_in_the_comparison():
    returns, groups, trajectories = [0.0, 0.0, 0.0, 1.0, 0.0, 0.8], [0] * 4 + [1] * 2, [0, 0, 0, 1, 2, 3]
    strict = partial(min_p, p=1.0)  # stds .707 and .566; counting rows it would be .5 and .566
    assert select(strict, returns, groups, trajectories) == [0]
    assert select(strict, returns, groups) == [1]


@pytest.mark.parametrize("fn", FILTERS)
def test_fit_for_a_run(fn):
    try_out("filter", fn, filters.Selection, TrajectoryBatch.make_toy().to_dict())


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (partial(std_nucleus, p=0), r"p=0 must be in \(0, 1\]; filter=none keeps all"),
        (partial(std_nucleus, p=1.1), r"p=1\.1 must be in \(0, 1\]"),
        (partial(std_nucleus, p=NAN), r"p=nan must be"),
        (partial(std_nucleus, p=0.5, slack=-0.1), r"slack=-0\.1 must be >= 0"),
        (partial(std_nucleus, p=0.5, slack=NAN), r"slack=nan must be >= 0"),
        (partial(min_p, p=0), r"p=0 must be in \(0, 1\]; filter=none keeps all"),
        (partial(min_p, p=2), r"p=2 must be in \(0, 1\]"),
        (partial(var_threshold, threshold=0), r"threshold=0 must be > 0 .*; filter=none keeps all"),
        (partial(var_threshold, threshold=NAN), r"threshold=nan must be > 0"),
        (partial(dynamic_sampling, target=0), r"target=0 must be a whole number >= 1"),
        (partial(dynamic_sampling, target=1.5), r"target=1\.5 must be a whole number"),
        (partial(dynamic_sampling, target=True), r"target=true must be a whole number"),
    ],
)
def test_wrong_constants(fn, message):
    with pytest.raises(ValueError, match=message):
        select(fn, [0.0, 1.0], [0, 0])


@pytest.mark.parametrize("fn", FILTERS)
def test_wrong_shapes(batch, fn):
    with pytest.raises(ValueError, match="has B="):
        bind(fn, batch | {"group_B": batch["group_B"][:5]})


@pytest.mark.parametrize("fn", FILTERS[:3])
def test_returns_must_agree_within_a_trajectory(fn):
    with pytest.raises(ValueError, match="return_B differs between rows of one trajectory"):
        select(fn, [0.0, 1.0], [0, 0], [4, 4])
