"""Advantage estimators: hand-worked numbers, identities, edge cases."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import advantages
from lit_agentrl.rl.credit.turn_baseline import process_group_baseline

SCALAR = [
    (advantages.group_mean, {}, [0.5, -0.5, 0, 0.366667, 0.366667, -0.733333]),
    (advantages.group_mean_std, {}, [0.999998, -0.999998, 0, 0.577349, 0.577349, -1.154699]),
    (advantages.group_mean_std, {"eps": 1e-4}, [0.9998, -0.9998, 0, 0.577259, 0.577259, -1.154519]),
    (advantages.group_mean_std, {"ddof": 0}, [1.224742, -1.224742, 0, 0.707105, 0.707105, -1.414211]),
    (advantages.loo, {}, [0.75, -0.75, 0, 0.55, 0.55, -1.1]),
    (advantages.group_mean_batch_std, {"eps": 1e-4}, [0.968058, -0.968058, 0, 0.709909, 0.709909, -1.419819]),
    (advantages.group_mean_whiten, {}, [1.209762, -0.889102, 0.16033, 0.929914, 0.929914, -1.378837]),
    (advantages.opo, {}, [0.5, -0.5, 0, 0.55, 0.55, -0.55]),
]
REINFORCE_PP = [
    [1.183623] * 4,
    [-0.889877] * 4,
    [0.146873] * 3 + [-0.889877] * 3,
    [1.183623] * 2,
    [1.183623] * 3,
    [-1.097227] * 2 + [-0.889877] * 3,
]
PROCESS_GROUP = [
    [1.195226, 1.195226, 1.792839, 1.792839],
    [-1.195226] + [-0.597613] * 3,
    [0, 0, 0] + [-0.597613] * 3,
    [0.422944, 1.092605],
    [1.092605] * 3,
    [-1.515548] * 2 + [-0.669661] * 3,
]
GROUP_FNS = [
    advantages.group_mean,
    advantages.group_mean_std,
    advantages.loo,
    advantages.group_mean_batch_std,
    advantages.group_mean_whiten,
    advantages.opo,
    advantages.process_group,
]
ALL_FNS = [*GROUP_FNS, advantages.mc_return, advantages.mc_return_whiten, process_group_baseline]


def run(fn, tensors, **constants):
    return bind(partial(fn, **constants), tensors).advantage_BT


def rows(values, batch):
    """Ragged per-row lists -> the sampled positions, 0 elsewhere."""
    expected = torch.zeros_like(batch["reward_BT"])
    expected[batch["is_action_BT"]] = torch.tensor([v for row in values for v in row], dtype=torch.float64)
    return expected


def split_by_turn(batch):
    """The same trajectories with one row per turn, as a context rebuilt each turn gives."""
    parts = []
    for row, turn in [(r, t) for t in (1, 0) for r in range(6)]:  # later turns first: order must not matter
        here = batch["turn_BT"][row] == turn
        if here.any():
            part = {n: v[row].clone() for n, v in batch.items()}
            part["is_action_BT"] = part["is_action_BT"] & here
            part["first_turn_B"] = torch.tensor(turn)
            parts.append((row, part))
    stacked = {n: torch.stack([p[n] for _, p in parts]) for n in batch}
    return torch.tensor([row for row, _ in parts]), stacked


@pytest.mark.parametrize(("fn", "constants", "values"), SCALAR)
def test_scalar_estimators(batch, fn, constants, values):
    expected = rows([[v] * int(n) for v, n in zip(values, batch["is_action_BT"].sum(1), strict=True)], batch)
    torch.testing.assert_close(run(fn, batch, **constants), expected, atol=1e-6, rtol=0)


def test_token_estimators(batch):
    returns = [[1] * 4, [0] * 4, [0.5] * 3 + [0] * 3, [1, 1], [1] * 3, [-0.1] * 2 + [0] * 3]
    for fn, values in [
        (advantages.mc_return, returns),
        (advantages.mc_return_whiten, REINFORCE_PP),
        (advantages.process_group, PROCESS_GROUP),
    ]:
        torch.testing.assert_close(run(fn, batch), rows(values, batch), atol=1e-6, rtol=0)


def test_discount_is_charged_per_sampled_token(batch):
    advantage = run(advantages.mc_return, batch, discount=0.5)
    torch.testing.assert_close(advantage[0], torch.tensor([0.125, 0.25, 0, 0.5, 1, 0, 0]))
    torch.testing.assert_close(advantage[2], torch.tensor([0.125, 0.25, 0.5, 0, 0, 0, 0]))


def test_loo_is_scaled_group_mean(batch):
    torch.testing.assert_close(run(advantages.loo, batch), 1.5 * run(advantages.group_mean, batch))


@pytest.mark.parametrize("fn", ALL_FNS)
def test_rows_of_one_trajectory_count_once(batch, fn):
    row_of_part, by_turn = split_by_turn(batch)
    whole = run(fn, batch)[row_of_part]
    expected = torch.where(by_turn["is_action_BT"], whole, 0)
    torch.testing.assert_close(run(fn, by_turn), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("fn", ALL_FNS)
def test_row_order_group_ids_and_padding_do_not_matter(batch, fn):
    whole = run(fn, batch)
    order = torch.tensor([4, 0, 5, 2, 3, 1])
    shuffled = {n: v[order] for n, v in batch.items()}
    shuffled["group_B"] = 90 - 7 * shuffled["group_B"]
    torch.testing.assert_close(run(fn, shuffled), whole[order], atol=1e-9, rtol=0)
    padding = {torch.bool: False, torch.int32: -1}
    padded = {
        n: torch.cat([v, torch.full((6, 3), padding.get(v.dtype, torch.nan)).to(v.dtype)], 1)
        if n.endswith("_BT")
        else v
        for n, v in batch.items()
    }
    torch.testing.assert_close(run(fn, padded)[:, :7], whole, atol=1e-9, rtol=0)


@pytest.mark.parametrize("fn", ALL_FNS)
def test_unscorable_trajectories_are_left_out(batch, fn):
    batch["return_B"][1] = torch.nan
    advantage = run(fn, batch)
    assert advantage[1].eq(0).all()
    others = torch.tensor([0, 2, 3, 4, 5])
    alone = run(fn, {n: v[others] for n, v in batch.items()})
    torch.testing.assert_close(advantage[others], alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("fn", [f for f in GROUP_FNS if f is not advantages.process_group])
@pytest.mark.parametrize("value", [0.1, -2.7])
def test_equal_returns_give_exactly_zero(batch, fn, value):
    batch["return_B"][:] = value
    assert run(fn, batch).eq(0).all()


def test_a_singleton_gets_zero_or_its_raw_return(batch):
    batch["group_B"] = torch.tensor([0, 1, 1, 1, 1, 1])
    for fn in (advantages.group_mean_std, advantages.group_mean, advantages.loo, advantages.opo):
        assert run(fn, batch)[0].eq(0).all()
    raw = run(advantages.group_mean_std, batch, singleton="raw")
    assert raw[0, batch["is_action_BT"][0]].eq(1.0).all()
    assert raw[1:].equal(run(advantages.group_mean_std, batch)[1:])


def test_all_unscorable(batch):
    batch["return_B"][:] = torch.nan
    for fn in ALL_FNS:
        assert run(fn, batch).eq(0).all()


def test_single_precision_returns_give_single_precision(batch):
    batch["return_B"] = batch["return_B"].float()
    assert run(advantages.group_mean_std, batch).dtype == torch.float32


@pytest.mark.parametrize(
    ("fn", "constants", "message"),
    [
        (advantages.group_mean_std, {"ddof": 2}, r"ddof=2 must be 0 or 1"),
        (advantages.group_mean_std, {"singleton": "one"}, r"singleton=one must be"),
        (
            advantages.group_mean_batch_std,
            {"eps": 2},
            r"eps=2 must be in \[0, 1\]: it is added to a standard",
        ),
        (advantages.group_mean_std, {"eps": -1}, r"eps=-1 must be in \[0, 1\]"),
        (advantages.mc_return, {"discount": 1.5}, r"discount=1\.5 must be in \[0, 1\]"),
    ],
)
def test_wrong_constants(batch, fn, constants, message):
    with pytest.raises(ValueError, match=message):
        run(fn, batch, **constants)


def test_wrong_tensors(batch):
    with pytest.raises(ValueError, match="is_action_BT has B=5"):
        run(advantages.loo, batch | {"is_action_BT": batch["is_action_BT"][:5]})
    with pytest.raises(ValueError, match="expected torch.bool"):
        run(advantages.loo, batch | {"is_action_BT": batch["is_action_BT"].long()})
    with pytest.raises(ValueError, match="differs between rows of one trajectory"):
        run(advantages.loo, batch | {"trajectory_B": torch.tensor([0, 0, 2, 3, 4, 5])})
    batch["is_turn_end_BT"][0, 4] = False
    with pytest.raises(ValueError, match="is_turn_end_BT marks no end"):
        run(advantages.process_group, batch)
