"""Slow weights of a critic: how they follow, that they are used and put back, and what they are refused for."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from lit_agentrl.experimental import q_losses
from lit_agentrl.experimental.q_losses import TokenValues
from lit_agentrl.experimental.turn_values import archer, cql
from lit_agentrl.rl.credit import value_loss
from lit_agentrl.update.critic import Critic, separate
from lit_agentrl.update.settings import OptimSettings
from lit_agentrl.update.slow import SlowWeights
from tests.build.test_structure import built
from tests.conftest import tiny_policy
from tests.update.conftest import algorithm, recorded, step

OPTIONS = {
    "loss": partial(value_loss.squared), "grad_clip": 1e9,
    "optim": OptimSettings(optimizer=torch.optim.AdamW, lr=1e-2),
}  # fmt: skip
ARCHER = partial(archer, whiten=False)


def test_they_follow_by_a_share() -> None:
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    slow, at_once = SlowWeights(network, 0.25), SlowWeights(network, 1.0)
    nn.init.constant_(network.weight, 8.0)
    for expected in (2.0, 3.5):
        slow.follow(network)
        at_once.follow(network)
        assert [float(x) for x in (*slow.buffers(), *at_once.buffers())] == [expected, 8.0]
    x = torch.ones(1, 1)
    with torch.no_grad(), slow.use(network):
        assert float(network(x)) == 3.5
    assert float(network(x)) == 8.0 and float(next(slow.buffers())) == 3.5
    assert not list(slow.parameters()), "no optimizer moves them"


def trained(rate: float | None, iterations: int = 2) -> dict[str, torch.Tensor]:
    """All weights after some iterations; None: the critic's own values, as if there were no option."""
    given = {} if rate is None else {"target_rate": min(rate, 0.5)}

    def make(policy: object) -> Critic:
        critic = separate(policy, **OPTIONS, **given)  # type: ignore[arg-type]
        if rate == 1:
            critic.slow = SlowWeights(critic, 1.0)
        return critic

    module, _ = step(alg=algorithm(advantage=ARCHER), critic=make, iterations=iterations)
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.slow
@pytest.mark.sweep
def test_weights_that_follow_at_once_change_nothing() -> None:
    """Bit for bit: a copy with rate 1 is the critic of before the iteration, as without a copy."""
    plain, at_once, slow = trained(None), trained(1.0), trained(0.5)
    assert not any(name.startswith("critic.slow") for name in plain)
    for name, value in plain.items():
        assert torch.equal(at_once[name], value), name
    assert any(not torch.equal(slow[name], value) for name, value in plain.items()), "half as quick is not"
    assert {name for name in slow if name not in plain} == {n for n in slow if n.startswith("critic.slow.")}


def test_values_of_tokens() -> None:
    """They start at 0, so every token is as likely: the regulariser is log V, and Q learns what is taken."""
    critic = partial(
        separate, **{**OPTIONS, "loss": partial(q_losses.conservative, coef=1.0)}, head=TokenValues()
    )
    module, _ = step(alg=algorithm(advantage=partial(cql)), critic=critic)
    vocabulary = tiny_policy().network.config.vocab_size
    assert module.critic.head.weight.shape[0] == vocabulary
    returns = module.row["critic/loss"] - float(torch.log(torch.tensor(float(vocabulary))))
    assert returns >= -1e-5 and module.row["critic/value"] == 0.0
    batch = recorded()[1]
    rows = {"tokens_BT": batch.tokens_BT, "is_action_BT": batch.is_action_BT}
    with torch.no_grad():
        found = module.critic.name_columns(module.critic(module.network, **rows))
    is_action_BT = batch.is_action_BT
    assert (found["spread_BT"][is_action_BT] > 0).all() and (found["value_BT"] >= found["q_BT"]).all()
    assert not found["q_BT"][~is_action_BT].any() and found["q_BT"][is_action_BT].any()


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("algo=archer", "critic.target_rate=0"), "target_rate=0"),
        (("algo=archer", "critic.target_rate=1.5"), "target_rate=1.5"),
        (("algo=ppo", "critic.target_rate=0.5"), r"critic.target_rate=0.5 needs .* or critic.target_rate=1"),
        (("algo=cql", "critic=separate"), "needs Q of every token, .* set critic=conservative"),
        (("algo=ppo", "critic=conservative"), "needs an algorithm that reads Q of every token, .* or critic=separate"),
        (("algo=safe_rlhf", "critic=separate"), "needs values of costs, .* set critic=costs"),
        (("algo=ppo", "critic=costs"), "needs an algorithm that reads .* values of costs, .* or critic=separate"),
        (("algo=iql", "algo/advantage=iql_executor"), "needs turns of a planner"),
    ],
)  # fmt: skip
def test_what_does_not_fit(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(Exception, match=message):
        parts = built(*options)
        assert parts.critic is not None
        parts.critic(tiny_policy())


def test_a_loss_asks_for_what_the_head_has() -> None:
    with pytest.raises(ValueError, match=r"loss reads q_BT, .* set critic=conservative"):
        separate(tiny_policy(), **{**OPTIONS, "loss": partial(q_losses.conservative)})
