"""Advantages from turns, trees, shared tokens and outcomes: hand-worked numbers, identities, edge cases."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.binding import bind, try_out, with_computed
from lit_agentrl.rl.credit import advantages, structured_advantages
from lit_agentrl.rl.credit.structured_advantages import branch_hard, gigpo, indicator, raw_filtered, tree

ALL_FNS = [gigpo, tree, branch_hard, indicator, raw_filtered]
GIGPO_MEAN = [[0.966667, 1], [-0.983333, -1], [0.016667, 0], [0.7, 0.866667], [0.75], [-1.45, -1.233333]]
GIGPO_MEAN_STD = [
    [1.981999, 1.707104],
    [-2.01707, -1.707104],
    [0.035071, 0],
    [1.113983, 1.284455],
    [1.194478],
    [-2.308462, -1.861805],
]
PADDING = {torch.bool: False, torch.int32: -1, torch.int64: -5}


@pytest.fixture
def batch(batch):
    """The example with trees, shared nodes and states; both groups start in state 5, which must not matter."""
    node_BT = torch.arange(42).reshape(6, 7)
    node_BT[1, 0] = node_BT[0, 0]  # the rollouts A1 and A2 share their first token
    return {
        **batch,
        "tree_B": torch.tensor([3, 3, 8, 4, 4, 4]),
        "node_BT": node_BT,
        "state_key_BK": torch.tensor([[5, 1], [5, 1], [5, 2], [5, 7], [5, 0], [5, 7]]),
    }


def run(fn, tensors, **constants):
    return bind(partial(fn, **constants), tensors).advantage_BT


def per_turn(values, batch):
    """Ragged lists, one number per turn -> every sampled token of the turn, 0 elsewhere."""
    padded = torch.tensor([[*row, 0.0][:2] for row in values], dtype=torch.float64)
    spread = padded.gather(1, batch["turn_BT"].clamp(min=0).long())
    return torch.where(batch["is_action_BT"], spread, 0)


def per_row(values, batch):
    return per_turn([[v, v] for v in values], batch)


def same(actual, expected, atol=1e-9):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


def pick(batch, rows):
    return {n: v[rows] for n, v in batch.items()}


def test_gigpo_numbers(batch):
    same(run(gigpo, batch, norm="mean"), per_turn(GIGPO_MEAN, batch), 1e-6)
    same(run(gigpo, batch, norm="mean_std"), per_turn(GIGPO_MEAN_STD, batch), 1e-6)
    same(run(gigpo, batch), per_turn(GIGPO_MEAN_STD, batch), 1e-6)


def test_scalar_numbers(batch):
    values = [1.707104, -1.707104, 0, 1.154699, 1.154699, -2.309397]
    same(run(tree, batch), per_row(values, batch), 1e-6)
    same(run(indicator, batch), per_row([1, 0, 0, 1, 1, 0], batch))
    accuracy = batch | {"return_B": batch["success_B"].double()}
    same(run(raw_filtered, accuracy), per_row([1, 0, 0, 1, 1, 0], batch))
    same(run(raw_filtered, batch), per_row([1, 0, 0.5, 1, 1, -0.1], batch))


def test_branch_hard_numbers(batch):
    expected = run(advantages.group_mean_std, batch)
    expected[:2, 0] = 0.0
    same(run(branch_hard, batch), expected)
    batch["node_BT"][2, :2] = batch["node_BT"][0, :2]  # three share the first token, A1 and A3 the second
    advantage = run(branch_hard, batch)
    same(advantage[:3, 0], torch.zeros(3))
    same(advantage[[0, 2], 1], torch.tensor([0.499999, 0.499999]), 1e-6)
    assert advantage[2, 2:].equal(expected[2, 2:])


@pytest.mark.parametrize("episode_stats", ["trajectory", "row"])
def test_gigpo_without_turn_term(batch, episode_stats):
    batch = pick(batch, torch.tensor([0, 1, 2, 3, 5]))  # all have two turns: rows weigh alike
    constants = {"omega": 0.0, "episode_stats": episode_stats}
    same(run(gigpo, batch, norm="mean", **constants), run(advantages.group_mean, batch))
    if episode_stats == "trajectory":
        same(run(gigpo, batch, **constants), run(advantages.group_mean_std, batch))
        same(run(gigpo, batch, eps=0.3, **constants), run(advantages.group_mean_std, batch, eps=0.3))


def test_gigpo_row_statistics_weigh_long_trajectories(batch):
    advantage = run(gigpo, batch, omega=0.0, norm="mean", episode_stats="row")
    mean = (2 * 1 + 1 - 2 * 0.1) / 5  # B1 and B3 have two turns, B2 one
    same(advantage[3:], per_row([0.5, -0.5, 0, 1 - mean, 1 - mean, -0.1 - mean], batch)[3:])


def test_gigpo_is_linear_in_omega(batch):
    zero, one, three = (run(gigpo, batch, omega=float(omega)) for omega in (0, 1, 3))
    same(three - zero, 3 * (one - zero))


def test_gigpo_discounts_per_turn(batch):
    step = run(gigpo, batch, norm="mean", discount=0.5) - run(advantages.group_mean, batch)
    same(step[:3, 0], torch.tensor([0.5, 0.0, 0.5]) - 1 / 3)
    undiscounted = run(gigpo, batch, norm="mean", discount=1.0) - run(advantages.group_mean, batch)
    same(undiscounted[3:, 0], run(advantages.group_mean, batch)[3:, 0])  # all begin in one state


def test_gigpo_lone_states_leave_the_trajectory_term(batch):
    batch["state_key_BK"] = torch.arange(12).reshape(6, 2)
    same(run(gigpo, batch), run(advantages.group_mean_std, batch))


def test_gigpo_counts_two_visits_of_one_trajectory(batch):
    batch["state_key_BK"] = torch.tensor([[5, 5], [1, 2], [3, 4], [5, 5], [1, 2], [3, 4]])
    step = run(gigpo, batch, norm="mean") - run(advantages.group_mean, batch)
    same(step, per_turn([[-0.025, 0.025], [0, 0], [0, 0], [-0.025, 0.025], [0], [0, 0]], batch))


def test_gigpo_sums_the_rewards_of_a_turn(batch):
    whole = run(gigpo, batch)
    batch["reward_BT"][0, 3] += 0.25  # a KL in the reward stands at every sampled token
    batch["reward_BT"][0, 4] -= 0.25
    same(run(gigpo, batch), whole)
    batch["reward_BT"][0, 4] -= 0.25
    assert not torch.allclose(run(gigpo, batch)[0], whole[0])


def test_gigpo_columns_are_turns_of_the_row(batch):
    whole = run(gigpo, batch)
    offset = batch | {"turn_BT": torch.where(batch["turn_BT"] >= 0, batch["turn_BT"] + 4, -1)}
    assert run(gigpo, offset).equal(whole)
    by_turn, row_of_part = [], []
    for row, turn in [(r, t) for t in (1, 0) for r in range(6)]:  # one row per turn, later turns first
        here = batch["turn_BT"][row] == turn
        if here.any():
            part = {n: v[row].clone() for n, v in batch.items()}
            part["is_action_BT"] = part["is_action_BT"] & here
            part["turn_BT"] = torch.where(here, turn, -1).int()
            part["first_turn_B"] = torch.tensor(turn)
            part["state_key_BK"] = part["state_key_BK"][turn : turn + 1]
            by_turn.append(part)
            row_of_part.append(row)
    stacked = {n: torch.stack([part[n] for part in by_turn]) for n in batch}
    same(run(gigpo, stacked), torch.where(stacked["is_action_BT"], whole[torch.tensor(row_of_part)], 0))


def test_gigpo_skips_turns_without_sampled_tokens(batch):
    batch["is_action_BT"][4, 0] = False
    batch["turn_BT"][4] = torch.tensor([0, 1, 1, -1, -1, -1, -1])  # B2 said nothing in turn 0
    batch["state_key_BK"][4] = torch.tensor([5, 7])
    advantage = run(gigpo, batch, norm="mean")
    mean = 1.9 / 3  # state 7 sees returns 1, 1, 0 and state 5, without B2, .95 and -.1
    expected = [[1 - mean + 0.95 - 0.425, 1 - mean + 1 / 3], [0, 1 - mean + 1 / 3]]
    same(advantage[3:5], per_turn([[0, 0]] * 3 + [*expected, [0, 0]], batch)[3:5])


def test_tree_of_the_whole_group_is_twice_group_mean_std(batch):
    batch["tree_B"] = torch.tensor([4, 4, 4, 4, 4, 4])  # a tree lies within its group, whatever its id
    same(run(tree, batch), 2 * run(advantages.group_mean_std, batch))


def test_trees_of_one_leaf_are_group_mean_std(batch):
    batch["tree_B"] = torch.arange(6)
    same(run(tree, batch, eps=0.2), run(advantages.group_mean_std, batch, eps=0.2))


def test_branches_without_shared_tokens_are_group_mean_std(batch):
    batch["node_BT"] = torch.arange(42).reshape(6, 7)
    assert run(branch_hard, batch, eps=0.2).equal(run(advantages.group_mean_std, batch, eps=0.2))


def test_nodes_shared_outside_sampled_tokens_do_not_matter(batch):
    whole = run(branch_hard, batch)
    batch["node_BT"][~batch["is_action_BT"]] = int(batch["node_BT"][3, 0])
    assert run(branch_hard, batch).equal(whole)


def test_indicator_needs_more_than_the_least_return(batch):
    batch["return_B"] = torch.tensor([0, 0, -1, 0.5, 0.5, 0.2])
    assert run(indicator, batch).equal(per_row([0, 0, 0, 1, 1, 0], batch))
    assert run(indicator, batch, min_return=0.5).eq(0).all()
    assert run(indicator, batch, min_return=-1.0).equal(per_row([1, 1, 0, 1, 1, 0], batch))


def test_raw_filtered_drops_groups_of_one_outcome(batch):
    batch["success_B"] = torch.tensor([True, True, True, False, False, False])
    assert run(raw_filtered, batch).eq(0).all()
    batch["success_B"][4] = True
    assert run(raw_filtered, batch).equal(per_row([0, 0, 0, 1, 1, -0.1], batch))
    batch["return_B"][4] = torch.nan  # the only success does not count
    assert run(raw_filtered, batch).eq(0).all()


@pytest.mark.parametrize("fn", ALL_FNS)
def test_row_order_ids_and_padding_do_not_matter(batch, fn):
    whole = run(fn, batch)
    order = torch.tensor([4, 0, 5, 2, 3, 1])
    shuffled = pick(batch, order)
    for name in ("group_B", "tree_B", "node_BT", "state_key_BK"):
        shuffled[name] = 90 - 7 * shuffled[name]
    same(run(fn, shuffled), whole[order])
    padded = {
        n: torch.cat([v, torch.full((6, 3), PADDING.get(v.dtype, torch.nan)).to(v.dtype)], 1)
        if n.endswith(("_BT", "_BK"))
        else v
        for n, v in batch.items()
    }
    same(run(fn, padded), torch.cat([whole, torch.zeros(6, 3)], 1))


@pytest.mark.parametrize("fn", ALL_FNS)
def test_unscorable_trajectories_are_left_out(batch, fn):
    batch["return_B"][1] = torch.nan
    batch["reward_BT"][1] = torch.nan
    advantage = run(fn, batch)
    assert advantage[1].eq(0).all()
    others = torch.tensor([0, 2, 3, 4, 5])
    same(advantage[others], run(fn, pick(batch, others)))
    batch["return_B"][:] = torch.nan
    assert run(fn, batch).eq(0).all()


@pytest.mark.parametrize("fn", ALL_FNS)
def test_a_singleton_gets_zero(batch, fn):
    for row in range(6):
        assert run(fn, pick(batch, torch.tensor([row]))).eq(0).all()


def test_a_singleton_that_revisits_a_state_keeps_its_turn_term(batch):
    batch["state_key_BK"][0] = 5
    alone = run(gigpo, pick(batch, torch.tensor([0])), norm="mean")
    same(alone, torch.tensor([[-0.025, -0.025, 0, 0.025, 0.025, 0, 0]]))


@pytest.mark.parametrize("fn", ALL_FNS)
@pytest.mark.parametrize("keep", ["rows", "tokens"])
def test_nothing_at_all(batch, fn, keep):
    shape = (0, 7) if keep == "rows" else (6, 0)
    batch = {n: v[: shape[0], : shape[1]] if v.dim() == 2 else v[: shape[0]] for n, v in batch.items()}
    assert run(fn, batch).shape == shape


@pytest.mark.parametrize("fn", ALL_FNS)
def test_dtype_follows_the_returns(batch, fn):
    batch["return_B"] = batch["return_B"].float()
    assert run(fn, batch).dtype == torch.float32


@pytest.mark.parametrize("fn", ALL_FNS)
def test_runs_on_the_toy_batch(fn):
    try_out("algo.advantage", fn, advantages.Advantage, TrajectoryBatch.make_toy().to_dict())
    assert bind(fn, with_computed(TrajectoryBatch.make_toy().to_dict())).return_BT is None


@pytest.mark.parametrize(
    ("fn", "constants", "message"),
    [
        (gigpo, {"discount": 1.5}, r"discount=1\.5 must be in \[0, 1\]"),
        (gigpo, {"omega": -1.0}, r"omega=-1\.0 must be >= 0"),
        (gigpo, {"omega": float("inf")}, r"omega=inf must be >= 0 and finite"),
        (gigpo, {"norm": "std"}, r"norm=std must be mean or mean_std"),
        (gigpo, {"norm": "mean", "eps": 1e-6}, r"eps=1e-06 has no effect with .*norm=mean"),
        (gigpo, {"eps": -1.0}, r"eps=-1\.0 must be in \[0, 1\]"),
        (gigpo, {"episode_stats": "turn"}, r"episode_stats=turn must be trajectory or row"),
        (tree, {"eps": -1.0}, r"eps=-1\.0 must be in \[0, 1\]"),
        (branch_hard, {"eps": -1.0}, r"eps=-1\.0 must be in \[0, 1\]"),
        (indicator, {"min_return": float("inf")}, r"min_return=inf must be a number that returns can exceed"),
        (indicator, {"min_return": float("nan")}, r"min_return=nan must be a number"),
    ],
)
def test_wrong_constants(batch, fn, constants, message):
    with pytest.raises(ValueError, match=message):
        run(fn, batch, **constants)


@pytest.mark.parametrize("fn", ALL_FNS)
def test_wrong_shapes(batch, fn):
    with pytest.raises(ValueError, match="is_action_BT has B=5"):
        run(fn, batch | {"is_action_BT": batch["is_action_BT"][:5]})


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (gigpo, "turn_BT"),
        (gigpo, "reward_BT"),
        (gigpo, "state_key_BK"),
        (tree, "tree_B"),
        (branch_hard, "node_BT"),
        (raw_filtered, "success_B"),
    ],
)
def test_wrong_shapes_of_special_tensors(batch, fn, name):
    with pytest.raises(ValueError, match="but .* has B="):
        run(fn, batch | {name: batch[name][:5]})


@pytest.mark.parametrize("fn", [gigpo, tree, branch_hard, indicator])
def test_returns_must_agree_within_a_trajectory(batch, fn):
    with pytest.raises(ValueError, match="return_B differs between rows of one trajectory"):
        run(fn, batch | {"trajectory_B": torch.tensor([0, 0, 2, 3, 4, 5])})


def test_turns_without_states(batch):
    with pytest.raises(ValueError, match="state_key_BK has K=1, but a row has 2 turns"):
        run(gigpo, batch | {"state_key_BK": batch["state_key_BK"][:, :1]})
    batch["turn_BT"][2, 1] = -1
    with pytest.raises(ValueError, match="turn_BT is negative at a sampled token"):
        run(gigpo, batch)


def test_public_names_are_the_options():
    public = {
        n
        for n, f in vars(structured_advantages).items()
        if getattr(f, "__module__", "") == structured_advantages.__name__ and not n.startswith("_")
    }
    assert public == {fn.__name__ for fn in ALL_FNS}
