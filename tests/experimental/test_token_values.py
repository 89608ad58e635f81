"""ILQL: numbers worked by hand, the parts of IQL and CQL that it is made of, and what is refused."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from lit_agentrl.experimental.q_losses import (
    TokensAndState,
    TokenValues,
    conservative,
    expectile,
    ilql,
    implicit,
)
from lit_agentrl.experimental.turn_values import cql
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit.comparison_advantages import demonstration
from lit_agentrl.rl.credit.value_loss import squared

pytestmark = pytest.mark.usefixtures("in_float64")

NAN = float("nan")


def rows() -> dict[str, Tensor]:
    """Two turns of 2 and 1 tokens; and the same row without a score."""
    row = {
        "value_BT": [3.0, NAN, 4.0, 6.0],
        "implicit_q_BT": [3.5, NAN, 2.0, 5.0],
        "reward_BT": [0.0, NAN, 1.0, 2.0],
        "is_action_BT": [True, False, True, True],
        "is_turn_end_BT": [False, False, True, True],
    }
    return {name: torch.tensor([values] * 2) for name, values in row.items()} | {
        "return_B": torch.tensor([3.0, NAN]), "trajectory_B": torch.arange(2), "first_turn_B": torch.zeros(2).int(),
    }  # fmt: skip


def loss_rows() -> dict[str, Tensor]:
    """Three tokens that count, V too low, too high and right, and one that holds nothing."""
    return {
        "value_BT": torch.tensor([[0.0, 2.0, 1.0, NAN]], requires_grad=True),
        "implicit_q_BT": torch.tensor([[1.0, 0.0, 3.0, NAN]], requires_grad=True),
        "spread_BT": torch.tensor([[0.5, 1.0, 0.0, NAN]], requires_grad=True),
        "old_implicit_q_BT": torch.tensor([[9.0, 9.0, 9.0, NAN]]),
        "target_implicit_q_BT": torch.tensor([[2.0, 1.0, 1.0, NAN]]),
        "return_BT": torch.tensor([[1.5, 2.0, 3.0, NAN]]),
        "is_action_BT": torch.tensor([[True, True, True, False]]),
        "is_turn_end_BT": torch.zeros(1, 4, dtype=torch.bool),
    }


def test_targets_worked_by_hand() -> None:
    """The discount stands at the end of a turn; behind the last token nothing follows; V of now, never Q, follows."""
    found = bind(partial(ilql, turn_discount=0.5), rows())
    assert found.return_BT.tolist() == [[4, 0, 1 + 0.5 * 6, 2], [0] * 4]
    assert found.is_value_target_BT.tolist() == [[True, False, True, True], [False] * 4]
    slow = {"target_implicit_q_BT": torch.full((2, 4), 50.0)}
    assert torch.equal(bind(partial(ilql, turn_discount=0.5), rows() | slow).return_BT, found.return_BT)


def test_the_policy_imitates_unless_weights_are_asked_for() -> None:
    assert torch.equal(bind(ilql, rows()).advantage_BT, bind(demonstration, rows()).advantage_BT)
    weights = bind(partial(ilql, sharpness=2.0), rows()).advantage_BT
    torch.testing.assert_close(weights[0], torch.tensor([math.e, 0, math.exp(-4), math.exp(-2)]))
    assert not weights[1].any()
    slow = {"target_implicit_q_BT": torch.tensor([[5.0, NAN, 4.0, 5.0]] * 2)}
    weights = bind(partial(ilql, sharpness=3.0), rows() | slow).advantage_BT
    torch.testing.assert_close(weights[0], torch.tensor([100.0, 0, 1, math.exp(-3)]))  # e^6 is held at 100


def test_targets_are_those_of_cql_where_v_is_the_largest_q() -> None:
    batch = rows() | {"q_BT": rows()["implicit_q_BT"]}
    one, other = (bind(partial(rule, turn_discount=0.7), batch) for rule in (ilql, cql))
    assert torch.equal(one.return_BT, other.return_BT)
    assert torch.equal(one.is_value_target_BT, other.is_value_target_BT)


def test_the_loss_worked_by_hand() -> None:
    given = loss_rows()
    loss_BT = bind(partial(implicit, share=0.8, coef=2.0), given).loss_BT
    expected = [[0.25 + 0.8 * 4 + 1, 4 + 0.2 * 1 + 2, 0.0, 0.0]]  # u = 2, -1, 0
    torch.testing.assert_close(loss_BT, torch.tensor(expected))
    names = ("value_BT", "implicit_q_BT", "spread_BT")
    grads = torch.autograd.grad(loss_BT.sum(), [given[name] for name in names])
    torch.testing.assert_close(grads[0], torch.tensor([[-2 * 0.8 * 2, 2 * 0.2, 0, 0]]))
    torch.testing.assert_close(grads[1], torch.tensor([[-1.0, -4, 0, 0]]))
    torch.testing.assert_close(grads[2], torch.tensor([[2.0, 2, 2, 0]]))
    del given["target_implicit_q_BT"]
    assert float(bind(implicit, given).loss_BT[0, 2].detach()) == pytest.approx(
        0.7 * 64
    )  # V to Q of before, 9


def test_the_loss_is_the_sum_of_its_parts() -> None:
    """Twice CQL's, whose squares have a half, at half its coefficient, and IQL's of V."""
    given = loss_rows()
    whole = bind(partial(implicit, share=0.9, coef=0.6), given).loss_BT
    of_q = bind(partial(conservative, coef=0.3), given | {"q_BT": given["implicit_q_BT"]}).loss_BT
    of_v = bind(partial(expectile, share=0.9), given | {"return_BT": given["target_implicit_q_BT"]}).loss_BT
    torch.testing.assert_close(whole, 2 * of_q + of_v)
    plain = bind(partial(implicit, share=0.5, coef=0.0), given).loss_BT
    q = bind(squared, given | {"value_BT": given["implicit_q_BT"]}).loss_BT
    v = bind(squared, given | {"return_BT": given["target_implicit_q_BT"]}).loss_BT
    assert torch.equal(plain, 2 * q + v)


def test_the_head_has_q_of_all_tokens_and_behind_them_v() -> None:
    out_AC, token_A = torch.randn(5, 8), torch.tensor([0, 3, 6, 2, 2])
    value, q, spread = TokensAndState().read(out_AC, token_A).unbind(-1)
    assert torch.equal(value, out_AC[:, -1]) and TokensAndState().get_width(7) == 8
    _, plain_q, plain_spread = TokenValues().read(out_AC[:, :-1], token_A).unbind(-1)
    assert torch.equal(q, plain_q) and torch.equal(spread, plain_spread)
    assert torch.equal(TokensAndState().select_tokens(out_AC).gather(1, token_A[:, None])[:, 0], q)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (partial(ilql, turn_discount=2), "turn_discount=2"),
        (partial(ilql, sharpness=-1), "sharpness=-1 must be a finite number >= 0"),
        (partial(implicit, share=1.0), "share=1"),
        (partial(implicit, coef=-1), "coef=-1 must be finite and >= 0"),
        (partial(implicit, coef=math.inf), "coef=inf"),
    ],
)
def test_constants_out_of_range(rule: partial[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bind(rule, rows() | loss_rows() if rule.func is implicit else rows())
