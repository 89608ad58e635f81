"""Advantage estimators with a critic: hand-worked numbers, identities, edge cases."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.paths import find_config
from lit_agentrl.rl.binding import bind, tensor_names, try_out
from lit_agentrl.rl.credit import critic_advantages
from lit_agentrl.rl.credit.advantages import Advantage, mc_return
from lit_agentrl.rl.credit.critic_advantages import gae_bilevel, gae_token, gae_turn, n_step
from lit_agentrl.rl.returns import next_sampled, return_to_go, sum_over_turn, turn_index

NAN = float("nan")
FNS = [gae_token, gae_turn, gae_bilevel, n_step]
TURN_FNS = [gae_turn, gae_bilevel]
TURN_SIZES = [[2, 2], [1, 3], [3, 3], [1, 1], [3], [2, 3]]
TOKEN_RAW = [
    [0.808937, 0.74625, 0.575, 0.5],
    [-0.043437, -0.25625, -0.375, -0.5],
    [0.452291, 0.370833, 0.285087, -0.43675, -0.565, -0.7],
    [0.865, 0.7],
    [0.82675, 0.765, 0.7],
    [-0.104167, -0.214912, -0.43675, -0.565, -0.7],
]
TOKEN_WHITE = [
    [1.225967, 1.11563, 0.81421, 0.682201],
    [-0.274313, -0.648888, -0.857902, -1.077917],
    [0.598228, 0.454852, 0.30393, -0.966589, -1.192324, -1.42994],
    [1.324644, 1.034224],
    [1.257319, 1.148632, 1.034224],
    [-0.381204, -0.576129, -0.966589, -1.192324, -1.42994],
]
TURN_RAW = [[0.72625, 0.5], [-0.07625, -0.5], [0.23325, -0.7], [0.81675, 0.7], [0.7], [-0.26675, -0.7]]
TURN_WHITE = [
    [0.993375, 0.616247],
    [-0.344283, -1.050617],
    [0.171611, -1.383989],
    [1.144226, 0.94962],
    [0.94962],
    [-0.661821, -1.383989],
]
BILEVEL_RAW = [
    [0.789937, 0.72625, 0.575, 0.5],
    [-0.07625, -0.25625, -0.375, -0.5],
    [0.405508, 0.321587, 0.23325, -0.43675, -0.565, -0.7],
    [0.81675, 0.7],
    [0.82675, 0.765, 0.7],
    [-0.153412, -0.26675, -0.43675, -0.565, -0.7],
]
BILEVEL_WHITE = [
    [1.229835, 1.116796, 0.848341, 0.715223],
    [-0.307567, -0.62705, -0.83782, -1.059684],
    [0.547509, 0.398557, 0.241767, -0.947421, -1.175053, -1.414665],
    [1.277425, 1.070204],
    [1.295174, 1.185573, 1.070204],
    [-0.444523, -0.645687, -0.947421, -1.175053, -1.414665],
]


def per_token(turns):
    """One value per turn -> one per sampled token."""
    return [
        [v for v, n in zip(values, sizes, strict=True) for _ in range(n)]
        for values, sizes in zip(turns, TURN_SIZES, strict=True)
    ]


GOLDEN = [
    (gae_token, {"discount": 1.0, "gae_lambda": 0.95}, TOKEN_RAW, TOKEN_WHITE),
    (gae_turn, {"turn_discount": 0.95, "gae_lambda": 0.95}, per_token(TURN_RAW), per_token(TURN_WHITE)),
    (
        gae_bilevel,
        {"turn_discount": 0.95, "discount": 1.0, "gae_lambda": 0.95},
        BILEVEL_RAW,
        BILEVEL_WHITE,
    ),
]


@pytest.fixture
def valued(batch) -> dict[str, Tensor]:
    """The example with ``V_t = 0.1 (t + 1)`` at sampled tokens and NaN elsewhere."""
    value_BT = (0.1 * torch.arange(1, 8)).repeat(6, 1)
    return batch | {"value_BT": torch.where(batch["is_action_BT"], value_BT, NAN)}


def run(fn, tensors, **constants) -> Advantage:
    return bind(partial(fn, **constants), tensors)


def raw(fn, tensors, **constants) -> Tensor:
    return run(fn, tensors, whiten=False, **constants).advantage_BT


def rows(values, tensors) -> Tensor:
    expected = torch.zeros_like(tensors["reward_BT"])
    expected[tensors["is_action_BT"]] = torch.tensor([v for row in values for v in row])
    return expected


def permuted(tensors, order):
    return {n: v[order] for n, v in tensors.items()}


def split_by_turn(tensors):
    """The same trajectories with one row per turn, later turns first, and a row without a sampled token."""
    parts = []
    for row, turn in [(r, t) for t in (1, 0) for r in range(6)]:
        here = tensors["turn_BT"][row] == turn
        if here.any() or row == 4:
            part = {n: v[row].clone() for n, v in tensors.items()}
            part["is_action_BT"] = part["is_action_BT"] & here
            part["first_turn_B"] = torch.tensor(turn)
            parts.append((row, part))
    stacked = {n: torch.stack([p[n] for _, p in parts]) for n in tensors}
    return torch.tensor([row for row, _ in parts]), stacked


@pytest.mark.parametrize(("fn", "constants", "raw_rows", "white_rows"), GOLDEN)
def test_golden_numbers(valued, fn, constants, raw_rows, white_rows):
    for whiten, expected in [(False, raw_rows), (True, white_rows)]:
        advantage_BT = run(fn, valued, whiten=whiten, **constants).advantage_BT
        torch.testing.assert_close(advantage_BT, rows(expected, valued), atol=1e-6, rtol=0)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("fn", FNS)
def test_critic_targets_are_unwhitened_advantage_plus_value(valued, fn, whiten):
    result = run(fn, valued, whiten=whiten)
    is_target_BT = valued["is_action_BT"] & (fn is not gae_turn or valued["is_turn_end_BT"])
    assert result.is_value_target_BT.equal(is_target_BT)
    expected_BT = torch.where(is_target_BT, raw(fn, valued) + valued["value_BT"], 0)
    torch.testing.assert_close(result.return_BT, expected_BT)


def test_lambda_one_is_monte_carlo_minus_value(valued):
    monte_carlo_BT = run(mc_return, valued).advantage_BT
    expected_BT = torch.where(valued["is_action_BT"], monte_carlo_BT - valued["value_BT"], 0)
    torch.testing.assert_close(raw(gae_token, valued, discount=1.0, gae_lambda=1.0), expected_BT)


def test_lambda_zero_is_the_temporal_difference(valued):
    advantage_BT = raw(gae_token, valued, discount=0.5, gae_lambda=0.0)
    torch.testing.assert_close(advantage_BT[3], torch.tensor([0.05, 0, 0.7, 0, 0, 0, 0]))
    turn_BT = raw(gae_turn, valued, turn_discount=0.5, gae_lambda=0.0)
    torch.testing.assert_close(turn_BT[0], torch.tensor([0.05, 0.05, 0, 0.5, 0.5, 0, 0]))


def test_n_step_by_hand(valued):
    """Row 2: r = .5 at token 2, sampled at 0, 1, 2, 4, 5, 6 with V = .1 (t + 1); segments of two tokens."""
    advantage_BT = raw(n_step, valued, steps=2, discount=0.5)
    # 0: .5 (0 + .5 V_2) - V_0; 1: .5 V_2 - V_1; 2: .5 + .5 (0 + .5 V_5) - V_2; 4: .5 V_5 - V_4; 5: -V_5; 6: -V_6
    expected = [0.25 * 0.3 - 0.1, 0.5 * 0.3 - 0.2, 0.5 + 0.25 * 0.6 - 0.3, 0, 0.5 * 0.6 - 0.5, -0.6, -0.7]
    torch.testing.assert_close(advantage_BT[2], torch.tensor(expected))


def test_n_step_lies_between_the_temporal_difference_and_monte_carlo(valued):
    for steps, gae_lambda in ((1, 0.0), (6, 1.0)):  # 6 tokens has the longest
        expected = run(gae_token, valued, discount=0.9, gae_lambda=gae_lambda, whiten=False)
        result = run(n_step, valued, steps=steps, discount=0.9)
        torch.testing.assert_close(result.advantage_BT, expected.advantage_BT)
        torch.testing.assert_close(result.return_BT, expected.return_BT)


@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_without_a_critic_lambda_one_is_the_return(valued, discount):
    valued["value_BT"] = torch.zeros_like(valued["value_BT"])
    expected_BT = run(mc_return, valued, discount=discount).advantage_BT
    result = run(gae_token, valued, discount=discount, gae_lambda=1.0, whiten=False)
    torch.testing.assert_close(result.advantage_BT, expected_BT)
    torch.testing.assert_close(result.return_BT, expected_BT)
    undiscounted_BT = run(mc_return, valued).advantage_BT
    for fn in TURN_FNS:
        torch.testing.assert_close(raw(fn, valued, turn_discount=1.0, gae_lambda=1.0), undiscounted_BT)


@pytest.mark.parametrize("turn_discount", [1.0, 0.3])
def test_bilevel_with_one_turn_is_token_gae(valued, turn_discount):
    """From the turn's own end value; what lies between turns does not matter then."""
    last_BT = valued["is_action_BT"].flip(1).cumsum(1).flip(1).eq(1) & valued["is_action_BT"]
    valued["is_turn_end_BT"] = last_BT
    for whiten in (False, True):
        constants = {"discount": 0.9, "gae_lambda": 0.8, "whiten": whiten}
        bilevel = run(gae_bilevel, valued, turn_discount=turn_discount, **constants)
        token = run(gae_token, valued, **constants)
        torch.testing.assert_close(bilevel.advantage_BT, token.advantage_BT)
        torch.testing.assert_close(bilevel.return_BT, token.return_BT)


def test_turns_of_one_token_are_token_gae(valued):
    valued["is_turn_end_BT"] = valued["is_action_BT"]
    for whiten in (False, True):
        token = run(gae_token, valued, discount=0.9, gae_lambda=0.8, whiten=whiten)
        for fn in TURN_FNS:
            turn = run(fn, valued, turn_discount=0.9, gae_lambda=0.8, whiten=whiten)
            torch.testing.assert_close(turn.advantage_BT, token.advantage_BT)
            torch.testing.assert_close(turn.return_BT, token.return_BT)


def test_bilevel_turn_ends_are_those_of_turn_gae(valued):
    constants = {"turn_discount": 0.7, "gae_lambda": 0.6}
    is_end_BT = valued["is_turn_end_BT"]
    turn_BT, bilevel_BT = raw(gae_turn, valued, **constants), raw(gae_bilevel, valued, **constants)
    torch.testing.assert_close(bilevel_BT[is_end_BT], turn_BT[is_end_BT])
    assert not torch.allclose(bilevel_BT, turn_BT)


def test_rewards_inside_a_turn(valued):
    """An in-reward KL: turn GAE sums it up, bi-level GAE credits the earlier tokens of the turn alone."""
    before_turn, before_bilevel = raw(gae_turn, valued), raw(gae_bilevel, valued)  # lambda 0.95 and 1
    valued["reward_BT"][0, 3] -= 0.25  # first token of the second turn of row 0
    change = raw(gae_turn, valued) - before_turn
    earlier = -0.25 * 0.95 * 0.95
    torch.testing.assert_close(change[0], torch.tensor([earlier, earlier, 0, -0.25, -0.25, 0, 0]))
    assert change[1:].eq(0).all()
    change = raw(gae_bilevel, valued) - before_bilevel
    torch.testing.assert_close(change[0], torch.tensor([0, 0, 0, -0.25, 0, 0, 0]))


@pytest.mark.parametrize("fn", FNS)
def test_turns_without_reward_count(valued, fn):
    valued["reward_BT"] = torch.where(valued["is_action_BT"], 0.0, NAN)
    advantage_BT = raw(fn, valued)
    assert advantage_BT.isfinite().all() and advantage_BT[valued["is_action_BT"]].ne(0).all()


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("fn", FNS)
def test_rows_of_one_trajectory_are_chained(valued, fn, whiten):
    row_of_part, by_turn = split_by_turn(valued)
    whole, split = run(fn, valued, whiten=whiten), run(fn, by_turn, whiten=whiten)
    for name in ("advantage_BT", "return_BT"):
        expected_BT = torch.where(by_turn["is_action_BT"], getattr(whole, name)[row_of_part], 0)
        torch.testing.assert_close(getattr(split, name), expected_BT, atol=1e-9, rtol=0)


def test_a_row_without_sampled_tokens_does_not_break_the_chain(valued):
    _, by_turn = split_by_turn(permuted(valued, torch.tensor([0] * 6)))
    here = permuted(by_turn, torch.tensor([6, 4, 0]))  # turns 0, 1 (emptied below), 1
    here["first_turn_B"] = torch.tensor([0, 1, 2])
    here["is_action_BT"][1] = False
    for fn in FNS:
        advantage_BT = raw(fn, here)
        assert advantage_BT[1].eq(0).all()
        torch.testing.assert_close(advantage_BT[0] + advantage_BT[2], raw(fn, valued)[0])


@pytest.mark.parametrize("fn", FNS)
def test_row_order_ids_and_padding_do_not_matter(valued, fn):
    whole = run(fn, valued)
    order = torch.tensor([4, 0, 5, 2, 3, 1])
    shuffled = permuted(valued, order) | {"trajectory_B": 90 - 7 * order}
    padding = {torch.bool: False, torch.int32: -1}
    padded = {
        n: torch.cat([torch.full((6, 2), padding.get(v.dtype, NAN)).to(v.dtype), v], 1)
        if n.endswith("_BT")
        else v
        for n, v in valued.items()
    }
    for name in ("advantage_BT", "return_BT"):
        expected_BT = getattr(whole, name)
        torch.testing.assert_close(getattr(run(fn, shuffled), name), expected_BT[order], atol=1e-9, rtol=0)
        result_BT = getattr(run(fn, padded), name)
        torch.testing.assert_close(result_BT[:, 2:], expected_BT, atol=1e-9, rtol=0)
        assert result_BT[:, :2].eq(0).all()


@pytest.mark.parametrize("fn", FNS)
def test_unscorable_trajectories_are_left_out(valued, fn):
    valued["return_B"][1] = NAN
    valued["reward_BT"][1] = NAN
    result = run(fn, valued)
    assert not result.is_value_target_BT[1].any()
    assert result.advantage_BT[1].eq(0).all() and result.return_BT[1].eq(0).all()
    others = torch.tensor([0, 2, 3, 4, 5])
    alone = run(fn, permuted(valued, others))
    torch.testing.assert_close(result.advantage_BT[others], alone.advantage_BT, atol=1e-12, rtol=0)
    valued["return_B"][:] = NAN
    assert run(fn, valued).advantage_BT.eq(0).all()


@pytest.mark.parametrize("fn", FNS)
def test_empty_and_singleton_batches(valued, fn):
    no_rows = permuted(valued, slice(0, 0))
    no_tokens = {n: v[:, :0] if n.endswith("_BT") else v for n, v in valued.items()}
    for tensors in (no_rows, no_tokens):
        result = run(fn, tensors)
        assert result.advantage_BT.shape == result.return_BT.shape == tensors["value_BT"].shape
    one = permuted(valued, slice(4, 5))
    one["is_action_BT"] = one["is_turn_end_BT"]
    result = run(fn, one, whiten=True)  # one sample is centred, not divided
    assert result.advantage_BT.eq(0).all()
    torch.testing.assert_close(result.return_BT[0], torch.tensor([0, 0, 1.0, 0, 0, 0, 0]))


@pytest.mark.parametrize("fn", FNS)
def test_nothing_carries_gradient_and_the_dtype_is_that_of_the_reward(valued, fn):
    for name in ("value_BT", "reward_BT"):
        valued[name].requires_grad_()
    result = run(fn, valued)
    assert not result.advantage_BT.requires_grad and not result.return_BT.requires_grad
    single = run(fn, valued | {"reward_BT": valued["reward_BT"].float()})
    assert single.advantage_BT.dtype == single.return_BT.dtype == torch.float32


@pytest.mark.parametrize("fn", FNS)
def test_the_yaml_says_what_the_function_defaults_to(fn):
    name = fn.__name__
    text = find_config(f"algo/advantage/{name}.yaml").read_text()
    part = instantiate(OmegaConf.create(text))
    assert part.func is getattr(critic_advantages, name)
    assert part.keywords == {
        n: v for n, v in fn.__kwdefaults__.items() if n not in tensor_names(fn)
    } and text.startswith("#")
    assert tensor_names(part)["value_BT"]  # a run without a critic is refused at start
    try_out("algo.advantage", part, Advantage, TrajectoryBatch.make_toy().to_dict())


@pytest.mark.parametrize(
    ("fn", "constants", "message"),
    [
        (gae_token, {"discount": 1.5}, r"discount=1\.5 must be in \[0, 1\]"),
        (gae_token, {"gae_lambda": -0.1}, r"gae_lambda=-0\.1 must be in \[0, 1\]"),
        (gae_turn, {"turn_discount": NAN}, r"turn_discount=nan must be in \[0, 1\]"),
        (gae_turn, {"gae_lambda": 2}, r"gae_lambda=2 must be in \[0, 1\]"),
        (gae_bilevel, {"discount": -1}, r"discount=-1 must be in \[0, 1\]"),
        (gae_bilevel, {"turn_discount": 1.1}, r"turn_discount=1\.1 must be in \[0, 1\]"),
        (gae_bilevel, {"whiten": "no"}, r"whiten=no must be true or false"),
        (n_step, {"steps": 0}, "steps=0 must be a whole number >= 1"),
        (n_step, {"steps": 2.5}, r"steps=2\.5 must be a whole number >= 1"),
    ],
)
def test_wrong_constants(valued, fn, constants, message):
    with pytest.raises(ValueError, match=message):
        run(fn, valued, **constants)


def test_wrong_tensors(valued):
    for fn in FNS:
        with pytest.raises(ValueError, match="value_BT"):
            run(fn, {n: v for n, v in valued.items() if n != "value_BT"})
        with pytest.raises(ValueError, match="B=5"):
            run(fn, valued | {"value_BT": valued["value_BT"][:5]})
        with pytest.raises(ValueError, match="expected torch.bool"):
            run(fn, valued | {"is_action_BT": valued["is_action_BT"].long()})
    valued["is_turn_end_BT"][0, 4] = False
    for fn in TURN_FNS:
        with pytest.raises(ValueError, match="is_turn_end_BT marks no end"):
            run(fn, valued)
        with pytest.raises(ValueError, match="is_turn_end_BT has T=6"):
            run(fn, valued | {"is_turn_end_BT": valued["is_turn_end_BT"][:, :6]})


def by_hand(value, reward, is_end, discount, turn_discount, gae_lambda):
    """Bi-level GAE of one trajectory, given as lists over its sampled tokens."""
    out, following, running, turn_value, turn_running = [], 0.0, 0.0, 0.0, 0.0
    for v, r, end in reversed(list(zip(value, reward, is_end, strict=True))):
        if end:
            running = r + turn_discount * turn_value - v + turn_discount * gae_lambda * turn_running
            turn_value, turn_running = v, running
        else:
            running = r + discount * following - v + discount * gae_lambda * running
        following = v
        out.append(running)
    return out[::-1]


@pytest.mark.parametrize("seed", range(5))
def test_random_ragged_trajectories_of_several_rows(seed):
    draw = torch.Generator().manual_seed(seed)
    is_action_BT = torch.rand(20, 9, generator=draw) < 0.6
    is_last_BT = is_action_BT.flip(1).cumsum(1).flip(1).eq(1) & is_action_BT
    tensors = {
        "value_BT": torch.randn(20, 9, generator=draw),
        "reward_BT": torch.randn(20, 9, generator=draw),
        "is_action_BT": is_action_BT,
        "is_turn_end_BT": is_last_BT | (torch.rand(20, 9, generator=draw) < 0.3),
        "return_B": torch.zeros(20),
        "trajectory_B": torch.randint(0, 7, (20,), generator=draw),
        "first_turn_B": torch.randperm(20, generator=draw).int(),
    }
    discounts = {"discount": 0.9, "turn_discount": 0.8, "gae_lambda": 0.7}
    bilevel_BT = raw(gae_bilevel, tensors, **discounts)
    token_BT = raw(gae_token, tensors, discount=0.9, gae_lambda=0.7)
    for trajectory in range(7):
        mine = (tensors["trajectory_B"] == trajectory).nonzero().squeeze(1)
        mine = mine[tensors["first_turn_B"][mine].argsort()]
        picked = {n: v[mine][is_action_BT[mine]] for n, v in tensors.items() if n.endswith("_BT")}
        lists = [picked[n].tolist() for n in ("value_BT", "reward_BT", "is_turn_end_BT")]
        expected = torch.tensor(by_hand(*lists, 0.9, 0.8, 0.7))
        torch.testing.assert_close(bilevel_BT[mine][is_action_BT[mine]], expected)
        no_ends = [*lists[:2], [False] * len(lists[0])]
        expected = torch.tensor(by_hand(*no_ends, 0.9, 0.8, 0.7))
        torch.testing.assert_close(token_BT[mine][is_action_BT[mine]], expected)


def test_building_blocks():
    is_action_BT = torch.tensor([[True, False, True, True], [True, True, False, False]])
    x_BT = torch.tensor([[1.0, NAN, 2.0, 3.0], [4.0, 5.0, NAN, NAN]])
    chain = {"trajectory_B": torch.tensor([7, 7]), "first_turn_B": torch.tensor([1, 0])}
    following = next_sampled(x_BT=x_BT, is_action_BT=is_action_BT, **chain)
    assert following.tolist() == [[2, 0, 3, 0], [5, 1, 0, 0]]
    discount_BT = torch.tensor([[0.5, NAN, 0.0, 1.0], [1.0, 2.0, NAN, NAN]])
    sums = return_to_go(reward_BT=x_BT, is_action_BT=is_action_BT, discount=discount_BT, **chain)
    assert sums.tolist() == [[2, 0, 2, 3], [13, 9, 0, 0]]
    is_end_BT = torch.tensor([[True, True, False, True], [False, True, True, False]])
    turn_BT = turn_index(is_action_BT=is_action_BT, is_turn_end_BT=is_end_BT)
    assert turn_BT[is_action_BT].tolist() == [0, 1, 1, 0, 0]
    total = sum_over_turn(x_BT=x_BT, is_action_BT=is_action_BT, turn_BT=turn_BT)
    assert total.tolist() == [[1, 0, 5, 5], [9, 9, 0, 0]]
