"""Advantage estimators against verl's."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import advantages, critic_advantages
from lit_agentrl.rl.policy import kl
from lit_agentrl.rl.policy.aggregation import token_mean
from lit_agentrl.rl.policy.algorithm import Algorithm
from lit_agentrl.rl.policy.clipping import none as no_clip
from lit_agentrl.rl.policy.penalties import shape_rewards
from lit_agentrl.rl.policy.ratios import token
from tests.oracle.batches import alone, batches, filled, mask, random_batch

pytestmark = pytest.mark.oracle

EXACT = 1e-9
WHITENED = 1e-6  # verl adds 1e-8 to the number of tokens, which moves the mean that it subtracts
GRPO = "compute_grpo_outcome_advantage"
PLUS_PLUS = "compute_reinforce_plus_plus_outcome_advantage"
BASELINE = "compute_reinforce_plus_plus_baseline_outcome_advantage"

# ours, verl's function, its options, whether some rows have no sampled token, tolerance
SCALAR = [
    (advantages.group_mean_std, GRPO, {"epsilon": 1e-6}, True, EXACT),
    (partial(advantages.group_mean_std, eps=1e-4), GRPO, {"epsilon": 1e-4}, True, EXACT),
    (advantages.group_mean, GRPO, {"norm_adv_by_std_in_grpo": False}, True, EXACT),
    (advantages.loo, "compute_rloo_outcome_advantage", {}, True, EXACT),
    (advantages.opo, "compute_opo_outcome_advantage", {}, False, EXACT),
    (advantages.group_mean_whiten, BASELINE, {}, False, WHITENED),
]


def name(fn):
    fn = getattr(fn, "func", fn)
    return f"{fn.__module__.rsplit('.', 1)[1]}.{fn.__qualname__}"


def outcome(batch, return_B):
    """Returns as verl wants them: rewards per token that sum to the return."""
    reward_BT = torch.zeros(batch["is_action_BT"].shape)
    reward_BT[:, 0] = return_B
    return {
        "token_level_rewards": reward_BT,
        "response_mask": mask(batch),
        "index": batch["group_B"].numpy(),
    }


@pytest.mark.parametrize(("ours", "oracle", "options", "empty_rows", "tolerance"), SCALAR)
def test_group_estimators(verl, agree, ours, oracle, options, empty_rows, tolerance):
    """A group of one: 0 with us, the raw return with verl, so verl gets the return 0 there."""
    for seed, batch in batches(empty_rows=empty_rows):
        return_B = torch.where(alone(batch), 0.0, batch["return_B"])
        theirs, _ = getattr(verl, oracle)(**outcome(batch, return_B), **options)
        mine = bind(ours, batch).advantage_BT
        agree(mine, theirs, seed=seed, pair=(name(ours), oracle), tolerance=tolerance)


def test_a_group_of_one_keeps_its_return_in_verl(verl, agree):
    num_alone = 0
    for seed, batch in batches():
        theirs, _ = verl.compute_grpo_outcome_advantage(**outcome(batch, batch["return_B"]))
        raw = bind(partial(advantages.group_mean_std, singleton="raw"), batch).advantage_BT
        theirs = torch.where(alone(batch)[:, None], theirs * (1 + 1e-6), theirs)  # its std is 1, plus eps
        agree(raw, theirs, seed=seed, pair=("advantages.group_mean_std", GRPO), tolerance=EXACT)
        zero = bind(advantages.group_mean_std, batch).advantage_BT
        assert zero[alone(batch)].eq(0).all()
        num_alone += int(alone(batch).sum())
    assert num_alone > 100


def test_greedy_baseline(verl, agree):
    """verl reads the outcome at the last sampled token and subtracts the baseline at sampled tokens."""
    oracle = "compute_remax_outcome_advantage"
    for seed, batch in batches(empty_rows=False):
        is_action_BT = batch["is_action_BT"]
        last_B = is_action_BT.shape[1] - 1 - is_action_BT.flip(1).int().argmax(1)
        reward_BT = torch.zeros(is_action_BT.shape)
        reward_BT[torch.arange(len(last_B)), last_B] = batch["return_B"]
        baseline_B = torch.randn(len(last_B), generator=torch.Generator().manual_seed(seed))
        theirs, _ = verl.compute_remax_outcome_advantage(reward_BT, baseline_B, mask(batch))
        mine = bind(advantages.greedy, {**batch, "baseline_B": baseline_B}).advantage_BT
        expected = torch.where(is_action_BT, theirs, 0.0)
        agree(mine, expected, seed=seed, pair=("advantages.greedy", oracle), tolerance=EXACT)


def test_loo_with_groups_of_one(verl, agree):
    """The vectorised form of verl agrees with ours there too."""
    oracle = "compute_rloo_vectorized_outcome_advantage"
    for seed, batch in batches():
        theirs, _ = getattr(verl, oracle)(**outcome(batch, batch["return_B"]))
        mine = bind(advantages.loo, batch).advantage_BT
        agree(mine, theirs, seed=seed, pair=("advantages.loo", oracle), tolerance=EXACT)


def test_gpg_is_a_scaled_group_mean(verl, agree):
    """GPG multiplies with rows / rows whose return is not 0, a factor we leave to the learning rate."""
    oracle = "compute_gpg_outcome_advantage"
    for seed, batch in batches():
        return_B = torch.where(alone(batch), 0.0, batch["return_B"])
        theirs, _ = getattr(verl, oracle)(**outcome(batch, return_B))
        scale = len(return_B) / max(int(return_B.count_nonzero()), 1)
        mine = bind(advantages.group_mean, batch).advantage_BT * scale
        agree(mine, theirs, seed=seed, pair=("advantages.group_mean", oracle), tolerance=EXACT)


@pytest.mark.parametrize("discount", [1.0, 0.97, 0.5])
def test_reinforce_plus_plus(verl, agree, discount):
    for seed, batch in batches():
        plain = bind(partial(advantages.mc_return, discount=discount), batch).advantage_BT
        if float(plain[batch["is_action_BT"]].std()) < 1e-3:  # equal values have a test of their own
            batch["reward_BT"] = batch["value_BT"]
            plain = bind(partial(advantages.mc_return, discount=discount), batch).advantage_BT
        theirs, returns = verl.compute_reinforce_plus_plus_outcome_advantage(
            filled(batch, "reward_BT"), mask(batch), config=SimpleNamespace(gamma=discount)
        )
        agree(plain, returns, seed=seed, pair=("advantages.mc_return", PLUS_PLUS), tolerance=EXACT)
        white = bind(partial(advantages.mc_return_whiten, discount=discount), batch).advantage_BT
        agree(white, theirs, seed=seed, pair=("advantages.mc_return_whiten", PLUS_PLUS), tolerance=WHITENED)


@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 1.0), (1.0, 0.95), (0.97, 0.9), (0.9, 0.0)])
def test_gae(verl, agree, discount, gae_lambda):
    oracle = "compute_gae_advantage_return"
    constants = {"discount": discount, "gae_lambda": gae_lambda}
    for seed, batch in batches():
        is_action_BT, values_BT = batch["is_action_BT"], filled(batch, "value_BT")
        white, returns = verl.compute_gae_advantage_return(
            filled(batch, "reward_BT"), values_BT, mask(batch), discount, gae_lambda
        )
        raw = torch.where(is_action_BT, returns - values_BT, 0.0)
        mine = bind(partial(critic_advantages.gae_token, whiten=False, **constants), batch)
        pair = ("critic_advantages.gae_token", oracle)
        agree(mine.advantage_BT, raw, seed=seed, pair=pair, tolerance=EXACT)
        target_BT = torch.where(is_action_BT, returns, 0.0)
        agree(mine.return_BT, target_BT, seed=seed, pair=pair, tolerance=EXACT)
        mine = bind(partial(critic_advantages.gae_token, **constants), batch)
        expected = torch.where(is_action_BT, white, 0.0)
        agree(mine.advantage_BT, expected, seed=seed, pair=pair, tolerance=WHITENED)


def test_whitening_of_equal_values(verl):
    """Ours is exactly 0; verl's mean is n / (n + 1e-8) of ours, and 1e-4 is the root of the eps both add."""
    batch = random_batch(0, empty_rows=False)
    last_B = mask(batch).cumsum(1).argmax(1)
    batch["reward_BT"] *= 0
    batch["reward_BT"][torch.arange(len(last_B)), last_B] = 3.0
    assert bind(advantages.mc_return_whiten, batch).advantage_BT.eq(0).all()
    theirs, _ = verl.compute_reinforce_plus_plus_outcome_advantage(
        filled(batch, "reward_BT"), mask(batch), config=SimpleNamespace(gamma=1.0)
    )
    count = int(mask(batch).sum())
    assert float(theirs.max()) == pytest.approx(3e-8 / count / 1e-4, rel=1e-3)


def test_whitening_of_one_token(verl):
    """Ours only centres; verl refuses."""
    one = torch.zeros(1, 3, dtype=torch.int64)
    one[0, 1] = 1
    with pytest.raises(ValueError, match="division by zero"):
        verl.verl_F.masked_whiten(torch.ones(1, 3), one)
    advantage_BT = advantages.mc_return_whiten(
        return_B=torch.ones(1),
        trajectory_B=torch.zeros(1),
        first_turn_B=torch.zeros(1),
        is_action_BT=one.bool(),
        reward_BT=torch.ones(1, 3),
    ).advantage_BT
    assert advantage_BT.tolist() == [[0, 0, 0]]


def test_a_group_without_tokens(verl):
    """OPO weighs returns by length: 0 / 0 in verl, a baseline of nothing with us."""
    batch = random_batch(3, empty_rows=False)
    first = batch["group_B"] == batch["group_B"][~alone(batch)][0]
    batch["is_action_BT"] = batch["is_action_BT"] & ~first[:, None]
    theirs, _ = verl.compute_opo_outcome_advantage(**outcome(batch, batch["return_B"]))
    assert theirs[first].isnan().all()
    assert bind(advantages.opo, batch).advantage_BT[first].eq(0).all()


def test_kl_in_the_reward(verl, agree):
    mix = Algorithm(
        name="test", advantage=advantages.loo, ratio=token, clip=no_clip, aggregate=token_mean,
        kl=kl.KLInReward(estimator=kl.k1, coef=0.05),
    )  # fmt: skip
    for seed, batch in batches():
        given = [filled(batch, f"{which}_BT", 0.0) for which in ("reward", "old_logp", "ref_logp")]
        theirs = verl.compute_rewards(*given, 0.05)
        shaped = shape_rewards(mix.kl, tensors=batch)
        mine = torch.where(batch["is_action_BT"], shaped["reward_BT"], 0.0)
        pair = ("algorithm.shape_rewards", "compute_rewards")
        agree(mine, theirs, seed=seed, pair=pair, tolerance=EXACT)
        agree(shaped["return_B"], theirs.sum(1), seed=seed, pair=pair, tolerance=EXACT)
