"""Where one rule is a special case of another, it gives the same numbers: on random ragged batches, float64.

``docs/findings/proofs.md`` lists these and the identities that stand in the files of single rules.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import advantages, critic_advantages
from lit_agentrl.rl.credit import structured_advantages as structured
from lit_agentrl.rl.policy import entropy, filters, row_selection
from tests.rl.ragged import advantages_of, loss_of, mix, ragged

ONE_TOKEN = {"turns": (1, 1), "reply": (1, 1)}  # trajectories of one sampled token
ONE_TURN = {"turns": (1, 1), "reply": (1, 5)}
TOKEN_TURNS = {"turns": (1, 4), "reply": (1, 1)}  # turns of one sampled token
EQUAL = {"turns": (2, 2), "reply": (3, 3)}  # equal lengths
PPO_LIKE = ("grpo", "clip=none")

# an identity of formulas holds or fails on any batch: further draws are for the slow tests
RARE = (pytest.mark.slow, pytest.mark.sweep)
pytestmark = pytest.mark.parametrize("seed", [0, pytest.param(1, marks=RARE)])


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def assert_same_loss(first, second, batch, *, value=True):
    """Equal gradients (and losses), which are not zero."""
    (loss, grad), (other, expected) = loss_of(first, batch), loss_of(second, batch)
    same(grad, expected)
    assert grad.abs().sum() > 0
    if value:
        same(loss, other)


def run(fn, batch, **constants):
    return bind(partial(fn, **constants), batch)


def advantage(fn, batch, **constants):
    return run(fn, batch, **constants).advantage_BT


# ---------------------------------------------------------------------- clip rules
def test_asymmetric_clip_with_equal_bounds_is_symmetric(seed):
    higher = mix(*PPO_LIKE, "clip=clip_higher", "clip.low=0.2", "clip.high=0.2")
    assert_same_loss(higher, mix(*PPO_LIKE, "clip=symmetric"), ragged(seed))


def test_reciprocal_bounds_are_asymmetric_ones(seed):
    low = 0.1 / 1.1  # 1 - 1 / (1 + 0.1)
    higher = mix(*PPO_LIKE, "clip=clip_higher", f"clip.low={low}", "clip.high=0.1")
    assert_same_loss(
        mix(*PPO_LIKE, "clip=symmetric", "clip.epsilon=0.1", "clip.lower=reciprocal"), higher, ragged(seed)
    )


def test_dual_clip_with_infinite_cap_is_symmetric(seed):
    dual = mix(*PPO_LIKE, "clip=dual", "clip.cap=.inf")
    assert_same_loss(dual, mix(*PPO_LIKE, "clip=symmetric"), ragged(seed))


def test_wide_bounds_are_no_clip(seed):
    wide = mix(*PPO_LIKE, "clip=clip_higher", "clip.low=0.9999999", "clip.high=1e6")
    assert_same_loss(wide, mix(*PPO_LIKE), ragged(seed))


def test_gmpo_on_one_token_is_grpo_with_log_bounds(seed):
    low, high = 1 - math.exp(-0.4), math.exp(0.4) - 1
    grpo = mix(*PPO_LIKE, "clip=clip_higher", f"clip.low={low}", f"clip.high={high}")
    assert_same_loss(mix("gmpo"), grpo, ragged(seed, **ONE_TOKEN))


def test_cispo_on_policy_has_the_gradient_of_reinforce(seed):
    reinforce = mix("cispo", "ratio=none", "clip=none")
    assert_same_loss(mix("cispo"), reinforce, ragged(seed, is_on_policy=True), value=False)


@pytest.mark.parametrize("clip", ["symmetric", "clip_higher", "dual"])
def test_on_policy_no_clip_acts(seed, clip):
    clipped = mix(*PPO_LIKE, f"clip={clip}")
    assert_same_loss(clipped, mix(*PPO_LIKE, "ratio=none"), ragged(seed, is_on_policy=True))


# ---------------------------------------------------------------------- ratios
def test_gspo_on_one_token_is_grpo(seed):
    grpo = mix("gspo", "ratio=token")
    assert_same_loss(mix("gspo"), grpo, ragged(seed, **ONE_TOKEN))


def test_gspo_token_with_one_advantage_per_trajectory_is_gspo(seed):
    assert_same_loss(mix("gspo_token"), mix("gspo"), ragged(seed))


def test_trajectory_ratio_on_one_token_is_token_ratio(seed):
    assert_same_loss(mix("grpo", "ratio=trajectory"), mix("grpo"), ragged(seed, **ONE_TOKEN))


def test_turn_ratio_with_one_turn_is_trajectory_ratio(seed):
    turn = mix("grpo", "ratio=turn")
    assert_same_loss(turn, mix("grpo", "ratio=trajectory"), ragged(seed, **ONE_TURN))


def test_turn_ratio_on_one_token_turns_is_token_ratio(seed):
    assert_same_loss(mix("grpo", "ratio=turn"), mix("grpo"), ragged(seed, **TOKEN_TURNS))


# ---------------------------------------------------------------------- aggregation
def test_token_mean_is_sequence_mean_for_equal_lengths(seed):
    assert_same_loss(mix("grpo", "aggregate=token_mean"), mix("grpo"), ragged(seed, **EQUAL))


def test_turn_mean_with_one_turn_is_sequence_mean(seed):
    for name in ("turn_mean", "seq_mean_turn_mean"):
        assert_same_loss(mix("grpo", f"aggregate={name}"), mix("grpo"), ragged(seed, **ONE_TURN))


def test_turn_mean_is_its_sequence_form_for_equal_numbers_of_turns(seed):
    batch = ragged(seed, turns=(3, 3), reply=(1, 4))
    turn = mix("grpo", "aggregate=turn_mean")
    assert_same_loss(turn, mix("grpo", "aggregate=seq_mean_turn_mean"), batch)


def test_constant_norm_of_the_common_length_is_sequence_mean(seed):
    norm = mix("grpo", "aggregate=seq_mean_token_sum_norm", "aggregate.max_tokens=6")
    assert_same_loss(norm, mix("grpo"), ragged(seed, **EQUAL))


# ---------------------------------------------------------------------- advantages without a critic
def test_leave_one_out_is_scaled_group_mean(seed):
    batch = ragged(seed)
    size_B = torch.bincount(batch["group_B"])[batch["group_B"]].double()
    scaled = advantage(advantages.group_mean, batch) * (size_B / (size_B - 1))[:, None]
    same(advantage(advantages.loo, batch), scaled)


def test_length_weighted_baseline_is_group_mean_for_equal_lengths(seed):
    batch = ragged(seed, **EQUAL)
    same(advantage(advantages.opo, batch), advantage(advantages.group_mean, batch))


def test_batch_std_of_one_group_is_group_std(seed):
    batch = ragged(seed, sizes=(7,))
    same(advantage(advantages.group_mean_batch_std, batch), advantage(advantages.group_mean_std, batch))


def test_process_supervision_of_one_turn_is_outcome_supervision(seed):
    batch = ragged(seed, **ONE_TURN)
    same(advantage(advantages.process_group, batch), advantage(advantages.group_mean_std, batch))


def test_undiscounted_return_to_go_of_a_last_reward_is_the_return(seed):
    batch = ragged(seed)
    last_BT = batch["is_action_BT"].flip(1).cumsum(1).flip(1).eq(1) & batch["is_action_BT"]
    batch["reward_BT"] = torch.where(last_BT, batch["return_B"][:, None], 0.0)
    expected = torch.where(batch["is_action_BT"], batch["return_B"][:, None], 0.0)
    same(advantage(advantages.mc_return, batch), expected)


@pytest.mark.parametrize(("norm", "fn"), [("mean", "group_mean"), ("mean_std", "group_mean_std")])
def test_gigpo_without_the_turn_term_is_the_group_estimator(seed, norm, fn):
    batch = ragged(seed)
    expected = advantage(getattr(advantages, fn), batch)
    same(advantage(structured.gigpo, batch, omega=0.0, norm=norm), expected)


# ---------------------------------------------------------------------- advantages with a critic
def test_gae_lambda_one_is_monte_carlo_minus_value(seed):
    batch = ragged(seed)
    result = run(critic_advantages.gae_token, batch, gae_lambda=1.0, discount=0.9, whiten=False)
    monte_carlo_BT = advantage(advantages.mc_return, batch, discount=0.9)
    same(result.advantage_BT, torch.where(batch["is_action_BT"], monte_carlo_BT - batch["value_BT"], 0))
    same(result.return_BT, monte_carlo_BT)


def test_gae_lambda_zero_is_the_temporal_difference_error(seed):
    batch = ragged(seed)
    ours = advantage(critic_advantages.gae_token, batch, gae_lambda=0.0, discount=0.9, whiten=False)
    for b, is_action_T in enumerate(batch["is_action_BT"]):
        value, reward = batch["value_BT"][b, is_action_T], batch["reward_BT"][b, is_action_T]
        following = torch.cat([value[1:], value.new_zeros(1)])
        same(ours[b, is_action_T], reward + 0.9 * following - value)


@pytest.mark.parametrize("whiten", [False, True])
def test_bilevel_gae_with_one_turn_is_token_gae(seed, whiten):
    batch, constants = ragged(seed, **ONE_TURN), {"discount": 0.9, "gae_lambda": 0.8, "whiten": whiten}
    bilevel = run(critic_advantages.gae_bilevel, batch, turn_discount=0.3, **constants)
    token = run(critic_advantages.gae_token, batch, **constants)
    same(bilevel.advantage_BT, token.advantage_BT)
    same(bilevel.return_BT, token.return_BT)


@pytest.mark.parametrize("whiten", [False, True])
def test_turn_gae_on_one_token_turns_is_token_gae(seed, whiten):
    batch, constants = ragged(seed, **TOKEN_TURNS), {"gae_lambda": 0.8, "whiten": whiten}
    turn = run(critic_advantages.gae_turn, batch, turn_discount=0.9, **constants)
    token = run(critic_advantages.gae_token, batch, discount=0.9, **constants)
    same(turn.advantage_BT, token.advantage_BT)
    same(turn.return_BT, token.return_BT)


# ---------------------------------------------------------------------- selection
def test_top_std_of_all_groups_keeps_all(seed):
    batch = ragged(seed)
    kept = run(filters.top_std, batch, ratio=1.0).keep_groups
    assert kept.equal(run(filters.keep_all, batch).keep_groups) and len(kept) == 3


def test_nucleus_of_all_spread_keeps_every_group_with_spread(seed):
    batch = ragged(seed)
    batch["return_B"][batch["group_B"] == 1] = 0.25
    kept = run(filters.std_nucleus, batch, p=1.0, slack=0.0).keep_groups
    assert kept.tolist() == run(filters.min_p, batch, p=1e-9).keep_groups.tolist() == [0, 2]


def test_dynamic_sampling_without_target_is_reject_uniform(seed):
    batch = ragged(seed, sizes=(2, 2, 2, 2, 2, 2))
    kept = run(filters.dynamic_sampling, batch, target=None)
    assert kept.keep_groups.equal(run(filters.reject_uniform, batch).keep_groups) and not kept.want_more


def test_cppo_that_prunes_nothing_is_grpo(seed):
    cppo = mix("cppo", "rows.prune=1e-12")
    assert bind(cppo.rows, advantages_of(cppo, ragged(seed))).all()
    assert_same_loss(cppo, mix("grpo"), ragged(seed))


def test_a_threshold_below_every_advantage_keeps_all_rows(seed):
    tensors = advantages_of(mix("loop"), ragged(seed))
    assert run(row_selection.abs_advantage, tensors, threshold=1e-12).all()


# ---------------------------------------------------------------------- named algorithms
def test_loop_on_policy_is_rloo(seed):
    """One epoch on fresh data; LOOP averages over the tokens of a trajectory where RLOO sums."""
    loop = mix("loop", "rows.threshold=1e-12", "aggregate=seq_mean_token_sum")
    assert_same_loss(loop, mix("rloo"), ragged(seed, is_on_policy=True))


def test_dapo_with_grpos_bounds_and_mean_is_grpo(seed):
    dapo = mix("dapo", "clip.high=0.2", "aggregate=seq_mean_token_mean")
    assert_same_loss(dapo, mix("grpo"), ragged(seed))


def test_dr_grpo_is_grpo_where_every_std_is_one(seed):
    batch = ragged(seed, sizes=(4, 4), **EQUAL)
    batch["return_B"] = torch.tensor([0.0, 1, 2, 1, 5, 7, 6, 6]) / math.sqrt(2 / 3)
    dr_grpo = mix("dr_grpo", "aggregate.max_tokens=6")
    assert_same_loss(dr_grpo, mix("grpo", "advantage.eps=0"), batch)


def test_ppo_without_values_is_reinforce_pp(seed):
    batch = ragged(seed)
    batch["value_BT"] = torch.zeros_like(batch["value_BT"])
    assert_same_loss(mix("ppo", "advantage.gae_lambda=1.0"), mix("reinforce_pp"), batch)


def test_a2c_without_values_and_bonus_is_reinforce(seed):
    batch = ragged(seed)
    batch["value_BT"] = torch.zeros_like(batch["value_BT"])
    a2c = mix("a2c", "entropy=none")
    assert_same_loss(a2c, mix("reinforce", "aggregate=token_mean"), batch)


def test_ppo_turn_with_one_turn_of_one_token_is_ppo(seed):
    batch = ragged(seed, **ONE_TOKEN)
    assert_same_loss(mix("ppo_turn"), mix("ppo"), batch)
    assert_same_loss(mix("bilevel_ppo"), mix("ppo"), batch)


def test_starpo_s_with_starpos_constants_is_starpo(seed):
    """Then the groups are all that is left of the S, and those are the filter's."""
    ours = mix("starpo_s", "clip.high=0.2", "advantage.gae_lambda=1.0")
    assert_same_loss(ours, mix("starpo", "kl=none"), ragged(seed))


def test_starpo_s_without_critic_and_bonus_is_grpo(seed):
    ours = mix("starpo_s", "advantage=group_mean_std", "entropy=none", "clip.high=0.2")
    assert_same_loss(ours, mix("grpo"), ragged(seed))


def test_reinforce_rej_of_plain_returns_is_reinforce_where_all_groups_are_mixed(seed):
    batch = ragged(seed, is_on_policy=True, **ONE_TURN)
    batch["success_B"] = batch["member_B"] == 0
    reinforce = mix("reinforce", "aggregate=token_mean")
    assert_same_loss(mix("reinforce_rej"), reinforce, batch)


def test_raft_on_all_rows_is_raft_pp_on_policy(seed):
    raft = mix("raft", "rows=none")
    assert_same_loss(raft, mix("raft_pp"), ragged(seed, is_on_policy=True))


def test_raft_imitates_the_best_rows_alone(seed):
    """Dropping the rows of advantage 0 changes what the mean is over, nothing else."""
    batch = ragged(seed, is_on_policy=True)
    some, all_rows = loss_of(mix("raft"), batch), loss_of(mix("raft", "rows=none"), batch)
    is_best_B = advantages_of(mix("raft"), batch)["advantage_BT"].sum(1) > 0
    share = batch["is_action_BT"][is_best_B].sum() / batch["is_action_BT"].sum()
    same(share * some[1], all_rows[1])


def test_remax_with_greedy_returns_of_zero_is_reinforce_on_one_turn(seed):
    batch = ragged(seed, **ONE_TURN)
    batch["baseline_B"] = torch.zeros_like(batch["baseline_B"])
    assert_same_loss(mix("remax"), mix("reinforce"), batch)


def test_ppo_penalty_on_policy_is_ppo(seed):
    assert_same_loss(mix("ppo_penalty"), mix("ppo"), ragged(seed, is_on_policy=True))


def test_gvpo_on_policy_is_rloo_scaled_by_beta(seed):
    batch = ragged(seed, sizes=(4, 4, 4), is_on_policy=True)
    same(loss_of(mix("gvpo"), batch)[1], 0.1 * loss_of(mix("rloo"), batch)[1])


# ---------------------------------------------------------------------- terms
def test_all_tokens_of_highest_entropy_are_all_tokens(seed):
    batch = ragged(seed)
    assert run(entropy.top_entropy_quantile, batch, share=1.0).equal(batch["is_action_BT"])


@pytest.mark.parametrize(
    "name", ["truncated", "masked", "icepop", "sequence", "geometric", "geometric_masked"]
)
def test_a_sampler_that_agrees_needs_no_correction(seed, name):
    assert_same_loss(mix("grpo", f"correction={name}"), mix("grpo"), ragged(seed))


@pytest.mark.parametrize("name", ["fixed", "ziegler", "doubling", "threshold"])
def test_a_controller_does_not_change_the_first_loss(seed, name):
    controlled = mix("grpo", "kl=loss_k3", f"kl_controller={name}")
    assert_same_loss(controlled, mix("grpo", "kl=loss_k3"), ragged(seed))


def test_a_reference_that_sampled_costs_no_reward(seed):
    batch = ragged(seed)
    batch["ref_logp_BT"] = batch["old_logp_BT"].clone()
    assert_same_loss(mix("rloo", "kl=reward_k1"), mix("rloo"), batch)


@pytest.mark.parametrize("kl", ["loss_k2", "loss_k3", "loss_k1_plus", "loss_k3_plus", "loss_jsd"])
def test_a_reference_equal_to_the_policy_has_no_loss_and_no_pull(seed, kl):
    batch = ragged(seed)
    batch["ref_logp_BT"] = batch["logp_BT"].clone()
    assert_same_loss(mix("grpo", f"kl={kl}"), mix("grpo"), batch)


@pytest.mark.parametrize(("plus", "value"), [("loss_k1_plus", "loss_k1"), ("loss_k3_plus", "loss_k3")])
def test_straight_through_kl_has_the_value_of_one_and_the_gradient_of_k2(seed, plus, value):
    ours, batch = mix("grpo", f"kl={plus}"), ragged(seed)
    same(loss_of(ours, batch)[0], loss_of(mix("grpo", f"kl={value}"), batch)[0])
    assert_same_loss(ours, mix("grpo", "kl=loss_k2"), batch, value=False)
