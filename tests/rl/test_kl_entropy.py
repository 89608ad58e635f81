"""KL estimators and places, entropy bonus."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.policy import entropy, kl


def test_kl_estimators(batch):
    for fn, expected in [(kl.k1, 0.129167), (kl.k2, 0.027204), (kl.k3, 0.024929)]:
        term = kl.KLInLoss(estimator=fn, coef=2.0)
        loss_BT = bind(term, batch)
        assert loss_BT[~batch["is_action_BT"]].eq(0).all()
        assert float(loss_BT.sum() / 24) == pytest.approx(2 * expected, abs=2e-6)


def test_kl_gradients_and_limits():
    logp_BT = torch.tensor([[-1.0, -30.0, -0.5]], requires_grad=True)
    ref_BT = torch.tensor([[-1.2, -1.0, -0.5]], requires_grad=True)
    for fn, slope in [(kl.k1, 1.0), (kl.k2, 0.2), (kl.k3, 1 - torch.tensor(-0.2).exp().item())]:
        value_BT = fn(logp_BT=logp_BT, ref_logp_BT=ref_BT)
        (grad,) = torch.autograd.grad(value_BT.sum(), logp_BT)
        assert grad[0, 0] == pytest.approx(slope)
    assert value_BT[0, 1] == 10 and grad[0, 1] == 0 and value_BT[0, 2] == 0
    assert ref_BT.grad is None


def test_kl_in_reward_carries_no_gradient(batch):
    batch["old_logp_BT"].requires_grad_()
    term_BT = bind(kl.KLInReward(estimator=kl.k1, coef=0.05), batch)
    assert not term_BT.requires_grad
    torch.testing.assert_close(term_BT, torch.where(batch["is_action_BT"], -0.005, 0.0))


def test_entropy_bonus(batch):
    entropy_BT = batch["logp_BT"].abs().requires_grad_()
    loss_BT = bind(partial(entropy.bonus, coef=0.1), batch | {"entropy_BT": entropy_BT})
    loss_BT.sum().backward()
    torch.testing.assert_close(entropy_BT.grad, torch.where(batch["is_action_BT"], -0.1, 0.0))


@pytest.mark.parametrize("coef", [0, -0.1])
def test_coefficients_must_be_positive(batch, coef):
    for cls in (kl.KLInLoss, kl.KLInReward):
        with pytest.raises(ValueError, match=rf"coef={coef} must be finite and > 0; algo/kl=none"):
            cls(estimator=kl.k1, coef=coef)
    with pytest.raises(ValueError, match=rf"coef={coef} must be finite and > 0; algo/entropy=none"):
        bind(partial(entropy.bonus, coef=coef), batch | {"entropy_BT": batch["logp_BT"]})
