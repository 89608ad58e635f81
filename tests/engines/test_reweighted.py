"""A policy reweighed by Q: what is recorded is the distribution that was sampled, and without Q it is the policy's."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_agentrl.engines.base import Capabilities, SamplingParams
from lit_agentrl.engines.native import engine as native
from lit_agentrl.engines.needs import describe_engine
from lit_agentrl.engines.reweighted import Reweighted
from lit_agentrl.experimental import q_losses
from lit_agentrl.experimental.q_losses import TokensAndState
from lit_agentrl.facts import RUNS_CRITIC
from lit_agentrl.requirements import describe_part, match
from lit_agentrl.rl.credit import value_loss
from lit_agentrl.update.critic import Critic, reweight_by_critic, separate
from lit_agentrl.update.settings import OptimSettings
from tests.conftest import tiny_network, tiny_policy
from tests.engines.test_native import PREFIXES, engine, padded, play

PARAMS = SamplingParams(temperature=0.7, max_reply_tokens=7, max_context_tokens=200)
OPTIONS: dict[str, Any] = {
    "loss": partial(q_losses.implicit), "optim": OptimSettings(optimizer=torch.optim.AdamW, lr=1e-2),
    "head": TokensAndState(),
}  # fmt: skip


def reweighted(
    network: Any, beta: float, *, seed: int = 1, family: str = "llama", layers: int = 2
) -> Reweighted:
    """By a critic of other weights, and perhaps fewer layers, than the policy."""
    trunk: Any = copy.deepcopy(tiny_network(family, seed).base_model)
    if layers == 1:
        trunk.layers = trunk.layers[:1]
    head = nn.Linear(trunk.config.hidden_size, network.config.vocab_size + 1)
    nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(seed))
    return Reweighted(network, trunk=trunk, head=head, select_q=TokensAndState().select_tokens, beta=beta)


@torch.no_grad()
def by_hand(made: Reweighted, tokens_BT: Tensor, temperature: float) -> Tensor:
    """Log-probs of all tokens but the first, from whole rows: ``log p + beta (Q - V)``, normalised."""
    logp_BTV = made.network(input_ids=tokens_BT).logits.log_softmax(-1)
    out_BTC = made.head(made.trunk(input_ids=tokens_BT).last_hidden_state)
    gap_BTV = out_BTC[..., :-1] - out_BTC[..., -1:]
    mixed_BTV = ((logp_BTV + made.beta * gap_BTV) / temperature).log_softmax(-1)
    return mixed_BTV[:, :-1].gather(-1, tokens_BT[:, 1:, None]).squeeze(-1)


@pytest.mark.parametrize(
    ("family", "slots", "layers"), [("llama", 8, 2), ("llama", 2, 1), ("gpt2", 3, 2), ("llama", 1, 2)]
)
def test_recorded_log_probs_are_those_of_the_distribution_that_was_sampled(
    family: str, slots: int, layers: int
) -> None:
    made = reweighted(tiny_network(family), 1.5, family=family, layers=layers)
    tokens_BT, is_action_BT, logp_BT = padded(play(engine(made, slots), PREFIXES, PARAMS)[0])
    expected_BT = nn.functional.pad(by_hand(made, tokens_BT, PARAMS.temperature), (1, 0))
    torch.testing.assert_close(logp_BT[is_action_BT], expected_BT[is_action_BT], atol=2e-4, rtol=0)
    plain = padded(play(engine(made.network, slots), PREFIXES, PARAMS)[0])[0]
    assert not torch.equal(plain, tokens_BT), "Q has a say"


def test_equal_beginnings_are_read_once_and_company_changes_nothing() -> None:
    prefixes = [[*range(10, 40), n] for n in (6, 7, 8)]
    made = reweighted(tiny_network(), 1.5)
    together = play(engine(made, 4), prefixes, PARAMS)[0]
    alone = play(engine(made, 1), prefixes, PARAMS)[0]
    assert [episode[0] for episode in together.values()] == [episode[0] for episode in alone.values()]


def test_a_large_beta_takes_the_token_of_the_highest_q() -> None:
    made = reweighted(tiny_network(), 1e4)
    tokens_BT, is_action_BT, _ = padded(play(engine(made), PREFIXES, PARAMS, turns=1)[0])
    with torch.no_grad():
        q_BTV = made.head(made.trunk(input_ids=tokens_BT).last_hidden_state)[..., :-1]
    best_BT = nn.functional.pad(q_BTV.argmax(-1)[:, :-1], (1, 0))
    assert torch.equal(best_BT[is_action_BT], tokens_BT[is_action_BT])


def critic_of(policy: Any, **options: Any) -> Critic:
    return separate(policy, **{**OPTIONS, **options})


def test_without_beta_the_network_is_the_policys_and_with_no_values_yet_its_bits() -> None:
    policy = tiny_policy()
    assert reweight_by_critic(policy.network, None) is policy.network
    assert reweight_by_critic(policy.network, critic_of(policy, beta=0.0)) is policy.network
    made = reweight_by_critic(policy.network, critic_of(policy, beta=2.0))
    assert isinstance(made, Reweighted)
    plain, untaught = (play(engine(each), PREFIXES, PARAMS)[0] for each in (policy.network, made))
    assert plain == untaught


def test_the_policy_trains_on_as_if_nobody_had_played() -> None:
    """Modes, attention and gradients of both networks are put back."""
    made = reweighted(tiny_network().train(), 1.0)
    made.trunk.train()
    before = [each.config._attn_implementation for each in (made.network, made.trunk)]
    play(engine(made), PREFIXES, PARAMS)
    assert all(module.training for module in made.modules())
    assert [each.config._attn_implementation for each in (made.network, made.trunk)] == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": -1.0}, "beta=-1.0 must be finite and >= 0"),
        ({"beta": float("inf")}, "beta=inf must be finite"),
        (
            {"beta": 1.0, "head": None, "loss": partial(value_loss.squared)},
            "beta=1 reweights the policy by Q of all tokens, .* set critic=implicit",
        ),
        ({"head": None}, r"loss reads implicit_q_BT, .* set critic=implicit"),
    ],
)
def test_a_critic_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        critic_of(tiny_policy(), **options)


def test_engines_that_do_not_run_the_critic_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    promised = Capabilities(exact_log_probs=True, fork=True, weights="given")
    asking = describe_part("critic.beta", name="2", requires=[RUNS_CRITIC])
    with pytest.raises(ValueError, match=r"beta=2 needs .* not given by engine=Other; set engine=native"):
        match([asking, describe_engine("Other", promised)])
    monkeypatch.setattr(native, "find_obstacle", lambda *_: "it is odd")
    assert engine(tiny_network()).num_pending == 0, "the policy alone has a slower way"
    with pytest.raises(
        ValueError, match=r"critic.beta=2 needs slots, and they cannot .* \(it is odd\); set critic.beta=0"
    ):
        engine(reweighted(tiny_network(), 2.0))
