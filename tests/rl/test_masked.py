"""Masked reductions and group moments."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lit_agentrl.rl import masked

X = [1.0, 2.0, 6.0, float("nan")]
MASK = torch.tensor([True, True, True, False])


def test_reductions_ignore_garbage_and_its_gradient():
    x = torch.tensor(X, requires_grad=True)
    (masked.masked_sum(x, MASK) + masked.masked_mean(x, MASK)).backward()
    assert masked.masked_sum(x, MASK) == 9 and masked.masked_mean(x, MASK) == 3
    torch.testing.assert_close(x.grad, torch.tensor([4 / 3, 4 / 3, 4 / 3, 0]))


def test_whiten():
    white = masked.masked_whiten(torch.tensor(X), MASK, eps=0.0)
    torch.testing.assert_close(white, torch.tensor([-2.0, -1.0, 3.0, 0.0]) / 7**0.5)
    one = torch.tensor([False, True, False, False])
    assert masked.masked_whiten(torch.tensor(X), one).tolist() == [0, 0, 0, 0]
    assert masked.masked_mean(torch.tensor(X), ~MASK & MASK) == 0


def test_skewness_by_hand():
    skewness = masked.compute_masked_skewness
    # centred -2 -1 3: m_2 = 14 / 3, m_3 = 18 / 3
    assert float(skewness(torch.tensor(X), MASK)) == pytest.approx(6 / (14 / 3) ** 1.5)
    assert float(skewness(-torch.tensor(X), MASK)) == pytest.approx(-6 / (14 / 3) ** 1.5)
    equal = torch.full((7,), 0.1, requires_grad=True)
    assert skewness(equal, torch.ones(7, dtype=torch.bool)) == 0 == skewness(torch.tensor(X), MASK & ~MASK)
    assert not skewness(equal, torch.ones(7, dtype=torch.bool)).requires_grad


def test_moments_are_per_group():
    value, group = torch.tensor([1.0, 5.0, 3.0, 0.1, 0.1, 0.1, 7.0]), torch.tensor([0, 2, 0, 2, 1, 1, 3])
    moments = masked.group_moments(value, group, 5)
    torch.testing.assert_close(moments.centred_N, torch.tensor([-1, 2.45, 1, -2.45, 0, 0, 0]))
    assert moments.centred_N[4:].eq(0).all() and moments.std_N[4:].eq(0).all()
    assert moments.count_N.tolist() == [2, 2, 2, 2, 2, 2, 1]
    torch.testing.assert_close(moments.std_N[0], torch.tensor(2.0).sqrt())


def test_trajectories_are_found_once_each():
    found = masked.find_trajectories(
        return_B=torch.tensor([1.0, 1.0, 2.0, torch.nan, 3.0]),
        group_B=torch.tensor([8, 8, 4, 4, 4]),
        trajectory_B=torch.tensor([0, 0, 0, 1, 2]),
    )
    assert found.return_S.tolist() == [2, 3, 1] and found.group_S.tolist() == [0, 0, 1]
    assert found.index_B.tolist() == [2, 2, 0, -1, 1] and found.num_groups == 2
    spread = found.to_rows(torch.tensor([10.0, 20.0, 30.0]), torch.zeros(1))
    assert spread.tolist() == [30, 30, 10, 0, 20]


def test_tokens_are_summed_over_the_rows_of_each_scored_trajectory():
    nan = float("nan")
    trajectories = masked.find_trajectories(
        return_B=torch.tensor([1.0, nan, 1.0, 2.0]), group_B=torch.tensor([0, 0, 0, 1]),
        trajectory_B=torch.tensor([7, 8, 7, 9]),
    )  # fmt: skip
    x_BT = torch.tensor([[1.0, nan], [4.0, 4.0], [2.0, 3.0], [nan, nan]], requires_grad=True)
    is_action_BT = torch.tensor([[True, False], [True, True], [True, True], [False, False]])
    sum_S = trajectories.sum_tokens(x_BT, is_action_BT)
    assert sum_S.dtype == torch.float64 and sum_S.tolist() == [6, 0]
    sum_S.sum().backward()
    assert x_BT.grad is not None and x_BT.grad.tolist() == [[1, 0], [0, 0], [1, 1], [0, 0]]


def test_shape_errors_name_the_tensors():
    masked.check_shapes(a_BT=torch.zeros(2, 3), b_B=torch.zeros(2))
    with pytest.raises(ValueError, match="b_B has B=3, but a_BT has B=2"):
        masked.check_shapes(a_BT=torch.zeros(2, 3), b_B=torch.zeros(3))
    with pytest.raises(ValueError, match=r"a_BT has shape \(2,\), expected 2 axes"):
        masked.check_shapes(a_BT=torch.zeros(2))


class Named(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_sums_on_a_gpu_have_a_fixed_order():
    """``index_add`` and ``scatter_add`` on CUDA sum by atomic operations, in any order."""
    values, places = torch.ones(2, 3, device="meta"), torch.zeros(2, 3, dtype=torch.int64, device="meta")
    with Named() as named:
        assert masked.sum_columns(values, places, 4).shape == (2, 4)
        assert masked.segment_sum(values[0], places[0], 4).shape == (4,)
    assert not [name for name in named.names if "index_add" in name or "scatter_add" in name]
    assert sum("index_put" in name for name in named.names) == 2


def test_columns_are_summed_row_by_row_with_gradient():
    values = torch.tensor([[1.0, 2, 4], [8, 16, 32]], requires_grad=True)
    sums = masked.sum_columns(values, torch.tensor([[0, 2, 0], [1, 1, 2]]), 3)
    assert sums.tolist() == [[5, 0, 2], [0, 24, 32]]
    sums[1, 1].backward()
    assert values.grad.tolist() == [[0, 0, 0], [1, 1, 0]]


def test_columns_of_no_rows_or_no_tokens():
    for shape in ((0, 3), (2, 0), (0, 0)):
        nothing = torch.zeros(shape)
        assert masked.sum_columns(nothing, nothing.long(), shape[1]).shape == shape
