"""The critic beside the policy: what it learns, and what it leaves alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.models.logprobs import read_hidden_before, score_tokens
from lit_agentrl.models.policy import Policy
from lit_agentrl.rl.credit import value_loss
from lit_agentrl.rl.credit.critic_advantages import gae_token, gae_turn
from lit_agentrl.rl.policy import row_selection
from lit_agentrl.update.critic import Critic, from_reward_model, separate, shared
from lit_agentrl.update.settings import OptimSettings
from tests.conftest import nano_tokenizer, tiny_policy
from tests.update.conftest import algorithm, recorded, step

SGD = OptimSettings(optimizer=torch.optim.SGD, lr=1e-3)
SQUARED = partial(value_loss.squared)
OPTIONS = {"loss": SQUARED, "optim": SGD, "grad_clip": 1e9}
GAE = partial(gae_token, gae_lambda=1.0, whiten=False)


def trained(critic, advantage=GAE, **options):
    return step(alg=algorithm(advantage=advantage), critic=critic, **options)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_hidden_states_are_those_that_the_logits_are_read_from(family):
    network, batch = tiny_policy(family).network, recorded()[1]
    rows = {"tokens_BT": batch.tokens_BT, "is_action_BT": batch.is_action_BT}
    with torch.no_grad():
        scores = score_tokens(network, **rows, with_hidden=True)
        alone = read_hidden_before(network.base_model, **rows)
        torch.testing.assert_close(scores.hidden_AD, alone)
        log_probs = torch.log_softmax(network.lm_head(alone), -1)
    chosen = log_probs.gather(1, batch.tokens_BT[batch.is_action_BT][:, None]).squeeze(1)
    torch.testing.assert_close(chosen, scores.logp_BT[batch.is_action_BT])


def test_values_start_at_zero_so_that_the_first_advantage_is_the_return():
    """Zero values and lambda 1: the policy moves as under Monte-Carlo returns."""
    from lit_agentrl.rl.credit.advantages import mc_return

    _, with_critic = trained(partial(separate, **OPTIONS))
    _, without = step(alg=algorithm(advantage=partial(mc_return)))
    for name, change in without.items():
        torch.testing.assert_close(with_critic[name], change, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_separate_critic_learns_the_returns_and_leaves_the_policy_alone():
    optim = OptimSettings(optimizer=torch.optim.AdamW, lr=2e-2)
    critic = partial(separate, **{**OPTIONS, "optim": optim})
    slow = OptimSettings(optimizer=torch.optim.SGD, lr=1e-9)  # so that nothing but the critic moves
    first, _ = trained(critic, optim=slow)
    later, change = trained(critic, optim=slow, iterations=40)
    assert max(float(c.abs().max()) for c in change.values()) < 1e-6
    assert first.row["critic/explained_variance"] == 0 and later.row["critic/explained_variance"] > 0.5
    assert later.row["critic/loss"] < 0.5 * first.row["critic/loss"]
    names = {name.partition(".")[0] for name in first.state_dict()}
    assert {"network", "critic"} <= names


def test_the_shared_trunk_gets_the_value_gradient_weighted_by_coef():
    changes = {}
    for coef in (0.1, 0.2):
        # zero head: the first step moves the head alone, the second also the trunk
        critic = partial(shared, coef=coef, warmup_iterations=1, **OPTIONS)
        module, changes[coef] = step(
            alg=algorithm(advantage=partial(gae_token, whiten=True), clip=partial(_no_policy_loss)),
            critic=critic, iterations=2,
        )  # fmt: skip
        assert module.version == 1, "values alone in the first iteration"
    name = max(changes[0.1], key=lambda n: float(changes[0.1][n].abs().max()))
    assert float(changes[0.1][name].abs().max()) > 0
    # one step of the head is proportional to coef, and the trunk's to coef times the head's
    torch.testing.assert_close(changes[0.2][name], 4 * changes[0.1][name], atol=1e-6, rtol=0.1)


def _no_policy_loss(*, ratio_BT, advantage_BT):
    from lit_agentrl.rl.policy.clipping import none

    return none(ratio_BT=ratio_BT, advantage_BT=advantage_BT * 0)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("kind", [partial(separate), partial(shared, coef=0.5)])
def test_micro_batches_and_row_order_do_not_change_the_critic(kind):
    batch = recorded()[1]
    order = torch.randperm(batch.num_rows, generator=torch.Generator().manual_seed(1))
    changes = []
    for rows, budget in ((batch, 300), (batch, 100_000), (batch.select(order), 900)):
        module, policy = trained(
            partial(kind, **OPTIONS), partial(gae_turn, whiten=False), trajectories=rows,
            tokens_per_microbatch=budget, optim=None, iterations=2,
        )  # fmt: skip
        changes.append({**policy, **module.critic.state_dict()})
    for other in changes[1:]:
        for name, value in changes[0].items():
            torch.testing.assert_close(value, other[name], atol=1e-4, rtol=1e-3)


def test_rows_that_are_not_kept_carry_no_gradient():
    kept, dropped = algorithm(), algorithm(rows=row_selection.CPPO(prune=0.5))
    module, change = step(alg=dropped)
    assert module.row["train/kept_row_share"] == pytest.approx(0.5)
    _, full = step(alg=kept)
    assert any(not torch.allclose(change[name], full[name]) for name in full)


def test_an_iteration_without_rows_is_skipped_counted_and_in_the_end_stops_the_run():
    nothing = algorithm(rows=partial(row_selection.abs_advantage, threshold=1e6))
    module, change = step(alg=nothing)
    assert module.row["train/skipped_steps"] == 1 and module.version == 0
    assert all(float(c.abs().max()) == 0 for c in change.values())
    with pytest.raises(ValueError, match=r"algo\.rows kept no row in 2 consecutive steps"):
        step(alg=nothing, iterations=3, max_bad_steps=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grad_clip": 0}, r"grad_clip=0 must be a number > 0"),
        ({"warmup_iterations": -1}, r"warmup_iterations=-1 must be a whole number >= 0"),
        ({"loss": partial(value_loss.clipped, clip=0)}, r"clip=0 must be > 0"),
        ({"model": "/no/such"}, r"model=/no/such could not be loaded"),
    ],
)
def test_mistakes_name_the_option(options, message):
    with pytest.raises(ValueError, match=message):
        separate(tiny_policy(), **{**OPTIONS, **options})


def test_other_mistakes():
    with pytest.raises(ValueError, match=r"^lr=0 must be finite, > 0"):
        OptimSettings(optimizer=torch.optim.SGD, lr=0)
    with pytest.raises(ValueError, match=r"^coef=0 must be finite and > 0"):
        shared(tiny_policy(), coef=0, **OPTIONS)


def test_a_critic_of_another_size_reads_the_same_tokens(tiny_model_folder):
    critic = separate(tiny_policy("gpt2"), model=str(tiny_model_folder), **OPTIONS)
    assert isinstance(critic, Critic) and not critic.is_shared
    batch = recorded()[1]
    value_BT = critic(tiny_policy().network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT)
    assert value_BT.shape == batch.tokens_BT.shape and float(value_BT.abs().max()) == 0


def test_a_critic_that_starts_as_a_reward_model_has_its_values(tmp_path):
    """Against the head's own scores of each prefix, standardised as `reward=model` does."""
    from lit_agentrl.models.reward_model import load_model
    from tests.rewards.test_model import model, network, of_heads

    policy, path = Policy(network().network, nano_tokenizer(), "tiny"), model(tmp_path, mean=0.5, std=2.0)
    batch = recorded()[1]
    critic = from_reward_model(policy, path=path, **OPTIONS)
    value_BT = critic(policy.network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT)
    scorer = load_model(path, None)
    is_before_BT = torch.nn.functional.pad(batch.is_action_BT, (0, 1))[:, 1:]
    with torch.no_grad():
        score_BT = scorer.head(scorer.policy.network, tokens_BT=batch.tokens_BT, is_scored_BT=is_before_BT)
    expected_A = (score_BT[is_before_BT] - 0.5) / 2.0
    torch.testing.assert_close(value_BT[batch.is_action_BT], expected_A, atol=1e-5, rtol=1e-5)
    assert expected_A.abs().max() > 0.05 and all(each.requires_grad for each in critic.parameters())
    frozen = {id(each) for each in policy.network.parameters()}
    assert not frozen & {id(each) for each in critic.parameters()}
    for other, said in ((of_heads(tmp_path), "several heads"), (model(tmp_path, kind="logit"), "logits")):
        with pytest.raises(ValueError, match=f"has {said}.* set critic=separate"):
            from_reward_model(policy, path=other, **OPTIONS)
    with pytest.raises(ValueError, match="is not there"):
        from_reward_model(policy, path=str(tmp_path / "no"), **OPTIONS)


@pytest.mark.slow
def test_the_first_step_learns_from_what_the_model_expected(tmp_path):
    """The value loss of the first step is that of the distance from the model's values, not from 0."""
    from tests.rewards.test_model import model

    path = model(tmp_path)
    module, _ = trained(partial(from_reward_model, path=path, **OPTIONS), advantage=GAE)
    plain, _ = trained(partial(separate, **OPTIONS), advantage=GAE)
    assert module.row["critic/value"] != 0 == plain.row["critic/value"]
    assert module.row["critic/loss"] != plain.row["critic/loss"]
