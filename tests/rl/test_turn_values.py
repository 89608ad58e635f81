"""Values of turns: numbers worked by hand, and what rows of an earlier policy teach."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from lit_agentrl.episode import Source
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.turn_values import archer
from lit_agentrl.rl.value_loss import expectile, squared

NAN = float("nan")


def rows() -> dict[str, Tensor]:
    """Turns of 3, 2 and 1 tokens in one row; the same once more as an old one; and one without a score."""
    row = {
        "value_BT": [1.0, 9.0, 3.0, NAN, 2.0, 5.0, NAN, 7.0],
        "reward_BT": [0.0, 0.0, 0.5, NAN, 0.0, 4.0, NAN, 1.0],
        "is_action_BT": [True, True, True, False, True, True, False, True],
        "is_turn_end_BT": [False, False, True, False, False, True, False, True],
    }
    found = {name: torch.tensor([values] * 3) for name, values in row.items()}
    return {
        **found, "return_B": torch.tensor([5.5, 5.5, NAN]), "trajectory_B": torch.arange(3),
        "first_turn_B": torch.zeros(3).int(), "source_B": torch.tensor([0, Source.REPLAY, 0], dtype=torch.int8),
    }  # fmt: skip


def test_numbers_worked_by_hand() -> None:
    found = bind(partial(archer, turn_discount=0.5, whiten=False), rows())
    nothing = [0.0] * 8
    assert found.advantage_BT.tolist() == [[2, 2, 2, 0, 3, 3, 0, -6], nothing, nothing]  # 3 - 1, 5 - 2, 1 - 7
    targets = [3, 0, 0.5 + 0.5 * 2, 0, 5, 4 + 0.5 * 7, 0, 1]
    assert found.return_BT.tolist() == [targets, targets, nothing]
    at = [bool(target) for target in targets]
    assert found.is_value_target_BT.tolist() == [at, at, [False] * 8]


def test_whitening_counts_each_new_turn_once() -> None:
    found = bind(partial(archer, turn_discount=0.5), rows()).advantage_BT
    values = torch.tensor([2.0, 3.0, -6.0])
    expected = (values - values.mean()) / values.std()
    torch.testing.assert_close(found[0, [1, 4, 7]], expected, atol=1e-6, rtol=0)
    assert not found[1:].any()


def test_right_values_are_a_fixed_point() -> None:
    batch = rows()
    batch["value_BT"] = torch.tensor(
        [[2.75, 0, 2.75, NAN, 4.5, 4.5, NAN, 1.0]] * 3
    )  # 0.5 + 4.5 / 2, 4 + 1 / 2, 1
    found = bind(partial(archer, turn_discount=0.5, whiten=False), batch)
    assert not found.advantage_BT.any()
    is_target_BT = found.is_value_target_BT
    assert torch.equal(found.return_BT[is_target_BT], batch["value_BT"][is_target_BT])


def test_expectile_loss() -> None:
    given = {
        "value_BT": torch.tensor([[0.0, 2.0, 0.0, 2.0, NAN]], requires_grad=True),
        "return_BT": torch.tensor([[1.0, 1.0, 1.0, 1.0, NAN]]),
        "is_action_BT": torch.tensor([[True, True, True, True, False]]),
        "is_turn_end_BT": torch.tensor([[False, False, True, True, False]]),
    }
    loss_BT = bind(expectile, given).loss_BT
    torch.testing.assert_close(loss_BT, torch.tensor([[0.7, 0.3, 0.5, 0.5, 0.0]]))
    (gradient_BT,) = torch.autograd.grad(loss_BT.sum(), given["value_BT"])
    torch.testing.assert_close(gradient_BT, torch.tensor([[-1.4, 0.6, -1.0, 1.0, 0.0]]))
    half = bind(partial(expectile, share=0.5), given).loss_BT
    assert torch.equal(half, bind(squared, given).loss_BT)
    with pytest.raises(ValueError, match="share=1"):
        bind(partial(expectile, share=1.0), given)
    with pytest.raises(ValueError, match="turn_discount=2"):
        bind(partial(archer, turn_discount=2), rows())
