"""Values of turns and tokens: numbers worked by hand, identities, and what rows of an earlier policy teach."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from lit_agentrl.episode import Source
from lit_agentrl.experimental.q_losses import TokenValues, conservative, expectile
from lit_agentrl.experimental.turn_values import archer, cql, iql, iql_executor
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit.comparison_advantages import demonstration
from lit_agentrl.rl.credit.value_loss import squared

pytestmark = pytest.mark.usefixtures("in_float64")

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
    of_q = [0, 0, 0.5 + 0.5 * 2, 0, 0, 4 + 0.5 * 7, 0, 0]  # V learns nothing of replies of an earlier policy
    assert found.return_BT.tolist() == [targets, of_q, nothing]
    at, at_q = ([bool(target) for target in each] for each in (targets, of_q))
    assert found.is_value_target_BT.tolist() == [at, at_q, [False] * 8]


def test_v_learns_the_mean_of_q_over_replies_of_the_policy_alone() -> None:
    """One state, replies with a Q of 1, 1 and 4 of this iteration, and 10 of an earlier one; Q learns of all."""
    replies = [(1.0, 0), (1.0, 0), (4.0, 0), (10.0, Source.REPLAY)]
    batch = {
        "value_BT": torch.tensor([[0.0, q] for q, _ in replies]),
        "reward_BT": torch.tensor([[0.0, 2.0 * q] for q, _ in replies]),
        "is_action_BT": torch.ones(4, 2, dtype=torch.bool),
        "is_turn_end_BT": torch.tensor([[False, True]] * 4), "return_B": torch.ones(4),
        "trajectory_B": torch.arange(4), "first_turn_B": torch.zeros(4).int(),
        "source_B": torch.tensor([source for _, source in replies], dtype=torch.int8),
    }  # fmt: skip
    found = bind(partial(archer, whiten=False), batch)
    assert found.return_BT is not None and found.is_value_target_BT is not None
    is_v_B, is_q_B = found.is_value_target_BT.unbind(1)
    assert is_v_B.tolist() == [True, True, True, False] and is_q_B.all()
    assert float(found.return_BT[is_v_B, 0].mean()) == 2.0
    assert found.return_BT[:, 1].tolist() == [2.0, 2.0, 8.0, 20.0]
    assert found.advantage_BT[:, 0].tolist() == [1.0, 1.0, 4.0, 0.0]
    alone = {**batch, "is_turn_end_BT": torch.ones(4, 2, dtype=torch.bool)}  # turns of one token have V alone
    assert bind(archer, alone).is_value_target_BT.tolist() == [[True, True]] * 3 + [[False, False]]


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


def test_targets_are_of_slow_values_and_advantages_of_those_of_now() -> None:
    batch, rule = rows(), partial(archer, turn_discount=0.5, whiten=False)
    slow = torch.tensor([[10.0, 0, 30.0, NAN, 20.0, 50.0, NAN, 70.0]] * 3)
    found, plain = bind(rule, {**batch, "target_value_BT": slow}), bind(rule, batch)
    assert torch.equal(found.advantage_BT, plain.advantage_BT)
    assert found.return_BT[0].tolist() == [30, 0, 0.5 + 0.5 * 20, 0, 50, 4 + 0.5 * 70, 0, 1]
    again = bind(rule, {**batch, "target_value_BT": batch["value_BT"]})
    assert torch.equal(again.return_BT, plain.return_BT)


def test_implicit_q_learning_by_hand() -> None:
    """Q is of the slow weights, V and what Q learns of those of now; rows of any policy have a weight."""
    batch = rows()
    batch["target_value_BT"] = torch.tensor([[NAN, NAN, 2.0, NAN, NAN, 1.0, NAN, NAN]] * 3)
    found = bind(partial(iql, turn_discount=0.5, sharpness=1.0, cap=2.0), batch)
    weights = [2.0, 2, 2, 0, math.exp(1 - 2), math.exp(1 - 2), 0, math.exp(1 - 7)]  # e^(2 - 1) is held at 2
    torch.testing.assert_close(found.advantage_BT, torch.tensor([weights, weights, [0.0] * 8]))
    targets = [2, 0, 0.5 + 0.5 * 2, 0, 1, 4 + 0.5 * 7, 0, 1]
    assert found.return_BT.tolist() == [targets, targets, [0.0] * 8]


def test_a_weight_without_sharpness_is_the_likelihood() -> None:
    batch, plain = rows(), bind(demonstration, rows()).advantage_BT
    batch |= {"q_BT": batch["value_BT"] - 1, "is_plan_BT": torch.zeros_like(batch["is_action_BT"])}
    for rule in (iql, iql_executor, cql):
        assert torch.equal(bind(partial(rule, sharpness=0.0), batch).advantage_BT, plain), rule.__name__


def test_a_sub_task_of_the_executor_ends_with_the_next_plan() -> None:
    """Turns: a plan of 2 tokens, two that act, a plan of 1, one that acts."""
    batch = {
        "value_BT": torch.tensor([[9.0, 9, 1, 2, 3, 4, 9, 5, 6]]),
        "reward_BT": torch.tensor([[0.0, 0, 0, 1, 0, 2, 0, 0, 3]]),
        "is_action_BT": torch.ones(1, 9, dtype=torch.bool),
        "is_turn_end_BT": torch.tensor([[0, 1, 0, 1, 0, 1, 1, 0, 1]]).bool(),
        "is_plan_BT": torch.tensor([[1, 1, 0, 0, 0, 0, 1, 0, 0]]).bool(), "return_B": torch.tensor([6.0]),
        "trajectory_B": torch.zeros(1).long(), "first_turn_B": torch.zeros(1).int(),
    }  # fmt: skip
    found = bind(partial(iql_executor, turn_discount=0.5, sharpness=1.0), batch)
    e = math.e
    torch.testing.assert_close(found.advantage_BT, torch.tensor([[0, 0, e, e, e, e, 0, e, e]]))
    assert found.return_BT.tolist() == [[0, 0, 2, 1 + 0.5 * 3, 4, 2, 0, 6, 3]]
    whole = bind(partial(iql, turn_discount=0.5, sharpness=1.0), batch)
    assert whole.return_BT.tolist() == [[9, 0.5 * 1, 2, 1 + 0.5 * 3, 4, 2 + 0.5 * 9, 0.5 * 5, 6, 3]]
    assert found.is_value_target_BT is not None and not found.is_value_target_BT[0, [0, 1, 6]].any()
    without = {**batch, "is_plan_BT": torch.zeros(1, 9, dtype=torch.bool)}
    for name, column in vars(bind(iql_executor, without)).items():
        assert torch.equal(column, vars(bind(iql, without))[name]), "without plans it is iql"


def test_conservative_q_learning_by_hand() -> None:
    """Two turns of 2 and 1 tokens: the discount is at the end of a turn, and behind the last token nothing follows."""
    batch = {
        "value_BT": torch.tensor([[3.0, NAN, 4.0, 6.0]]), "q_BT": torch.tensor([[3.0, NAN, 2.0, 5.0]]),
        "reward_BT": torch.tensor([[0.0, NAN, 1.0, 2.0]]), "is_action_BT": torch.tensor([[True, False, True, True]]),
        "is_turn_end_BT": torch.tensor([[False, False, True, True]]), "return_B": torch.tensor([3.0]),
        "trajectory_B": torch.zeros(1).long(), "first_turn_B": torch.zeros(1).int(),
    }  # fmt: skip
    rule = partial(cql, turn_discount=0.5, sharpness=0.5)
    found = bind(rule, batch)
    torch.testing.assert_close(found.advantage_BT, torch.tensor([[1.0, 0, math.exp(-1.0), math.exp(-0.5)]]))
    assert found.return_BT.tolist() == [[4, 0, 1 + 0.5 * 6, 2]]
    slow = bind(rule, {**batch, "target_value_BT": torch.tensor([[0.0, NAN, 8.0, 10.0]])})
    assert slow.return_BT.tolist() == [[8, 0, 1 + 0.5 * 10, 2]] and torch.equal(
        slow.advantage_BT, found.advantage_BT
    )


def test_the_regulariser_holds_down_what_the_data_does_not_have() -> None:
    """Q = (1, 0) of two tokens, the second of which was taken, and should be 2."""
    all_AV = torch.tensor([[1.0, 0.0]], requires_grad=True)
    value, q, spread = TokenValues().read(all_AV, torch.tensor([1])).unbind(-1)
    assert float(value.detach()) == 1 and float(q.detach()) == 0
    given = {
        "q_BT": q[None], "spread_BT": spread[None], "return_BT": torch.tensor([[2.0]]),
        "is_action_BT": torch.ones(1, 1, dtype=torch.bool),
    }  # fmt: skip
    loss = bind(partial(conservative, coef=0.5), given).loss_BT
    gap = math.log(math.e + 1)
    torch.testing.assert_close(loss, torch.tensor([[2 + 0.5 * gap]]))
    (gradient_AV,) = torch.autograd.grad(loss.sum(), all_AV, retain_graph=True)
    share = math.e / (math.e + 1)
    torch.testing.assert_close(gradient_AV, torch.tensor([[0.5 * share, -2 + 0.5 * (1 - share) - 0.5]]))
    plain = bind(squared, {**given, "value_BT": given["q_BT"]}).loss_BT
    assert torch.equal(bind(partial(conservative, coef=0.0), given).loss_BT, plain)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (partial(iql, sharpness=-1), "sharpness=-1 must be a finite number >= 0"),
        (partial(iql, cap=0), "cap=0 must be above 0"),
        (partial(iql_executor, turn_discount=2), "turn_discount=2"),
        (partial(cql, turn_discount=-1), "turn_discount=-1"),
        (partial(conservative, coef=-1), "coef=-1 must be finite and >= 0"),
    ],
)
def test_constants_out_of_range(rule: partial[object], message: str) -> None:
    batch = rows()
    more = {"is_plan_BT": torch.zeros_like(batch["is_action_BT"])} | dict.fromkeys(
        ("q_BT", "spread_BT", "return_BT"), batch["value_BT"]
    )
    with pytest.raises(ValueError, match=message):
        bind(rule, batch | more)
