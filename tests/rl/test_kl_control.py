"""Controllers of the KL coefficient, and straight-through KL estimators."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.policy import kl
from lit_agentrl.rl.policy.kl_control import COEF_MAX, COEF_MIN, Fixed, PPOPenalty, SeedThreshold, Ziegler

ALL = [Fixed(), Ziegler(target=6.0, horizon=1e4), PPOPenalty(), SeedThreshold()]


@pytest.mark.parametrize("value", [-1.0, 0.0, 0.3, 100.0])
def test_fixed(value):
    assert Fixed().update(0.02, value, 1000) == 0.02


@pytest.mark.parametrize(
    ("value", "num_tokens", "expected"),
    [
        (6.0, 1000, 0.1),  # on target
        (6.6, 1000, 0.1 * (1 + 0.1 * 0.1)),
        (5.4, 2000, 0.1 * (1 - 0.1 * 0.2)),
        (60.0, 1000, 0.1 * (1 + 0.2 * 0.1)),  # error held at +-0.2
        (-3.0, 1000, 0.1 * (1 - 0.2 * 0.1)),
        (60.0, 10_000, 0.12),
        (0.0, 90_000, 0.08),  # more tokens than the horizon count as the horizon
    ],
)
def test_ziegler(value, num_tokens, expected):
    controller = Ziegler(target=6.0, horizon=1e4)
    assert controller.update(0.1, value, num_tokens) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, 0.5), (0.0066, 0.5), (0.0067, 1.0), (0.01, 1.0), (0.015, 1.0), (0.0151, 2.0)],
)
def test_ppo_penalty(value, expected):
    assert PPOPenalty(target=0.01).update(1.0, value, 1) == expected
    assert PPOPenalty(target=0.02).update(1.0, 2 * value, 1) == expected


def test_seed_thresholds_keep_their_last_coefficient_in_between():
    controller, coef, seen = SeedThreshold(), 0.02, []
    for value in (0.3, 0.5, 0.6, 0.3, 0.1, 0.05, 0.3):
        coef = controller.update(coef, value, 1)
        seen.append(coef)
    assert seen == [0.02, 0.02, 0.05, 0.05, 0.05, 0.01, 0.01]


@pytest.mark.parametrize("controller", [PPOPenalty(), Ziegler(target=1.0, horizon=1)])
def test_a_coefficient_never_becomes_useless(controller):
    coef = 1.0
    for _ in range(2000):
        coef = controller.update(coef, 0.0, 1)
    assert coef == COEF_MIN and controller.update(coef, 10.0, 1) > coef
    for _ in range(2000):
        coef = controller.update(coef, 10.0, 1)
    assert coef == COEF_MAX


@pytest.mark.parametrize("controller", ALL)
def test_nothing_measured_changes_nothing(controller):
    for value in (math.nan, math.inf, -math.inf):
        assert controller.update(0.3, value, 100) == 0.3
    assert controller.update(0.3, 0.0, 0) == 0.3


@pytest.mark.parametrize("controller", ALL)
def test_wrong_arguments(controller):
    for coef in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"cannot start from coef={coef}; it must be > 0"):
            controller.update(coef, 0.1, 1)
    with pytest.raises(ValueError, match="num_tokens=-1 must be >= 0"):
        controller.update(0.1, 0.1, -1)


@pytest.mark.parametrize(
    ("cls", "constants", "message"),
    [
        (Ziegler, {"target": 0.0, "horizon": 1}, r"target=0\.0 must be finite and > 0"),
        (Ziegler, {"target": 6.0, "horizon": -1}, r"horizon=-1 must be finite and > 0"),
        (Ziegler, {"target": 6.0, "horizon": math.inf}, r"horizon=inf must be finite"),
        (PPOPenalty, {"target": -0.01}, r"target=-0\.01 must be finite and > 0"),
        (SeedThreshold, {"low_kl": 0.0}, r"low_kl=0\.0 must be finite and > 0"),
        (SeedThreshold, {"low_coef": -1.0}, r"low_coef=-1\.0 must be finite and > 0"),
        (SeedThreshold, {"high_kl": 0.1}, r"high_kl=0\.1 must be .* > .*low_kl=0\.1"),
        (SeedThreshold, {"high_coef": 0.001}, r"high_coef=0\.001 must be .* > .*low_coef=0\.01"),
    ],
)
def test_wrong_constants(cls, constants, message):
    with pytest.raises(ValueError, match=message):
        cls(**constants)


@pytest.mark.parametrize(("plus", "plain"), [(kl.k1_plus, kl.k1), (kl.k3_plus, kl.k3)])
def test_straight_through_estimators(plus, plain):
    logp_BT = torch.tensor([[-1.0, -30.0, -0.5, 25.0]], requires_grad=True)
    ref_BT = torch.tensor([[-1.2, -1.0, -0.5, -1.0]], requires_grad=True)
    value_BT = plus(logp_BT=logp_BT, ref_logp_BT=ref_BT)
    assert value_BT.equal(plain(logp_BT=logp_BT, ref_logp_BT=ref_BT))
    (grad,) = torch.autograd.grad(value_BT.sum(), logp_BT)
    torch.testing.assert_close(grad, (logp_BT - ref_BT).detach())
    assert ref_BT.grad is None
    with pytest.raises(ValueError, match="ref_logp_BT has"):
        plus(logp_BT=logp_BT, ref_logp_BT=ref_BT[:, :2])


def test_straight_through_terms_on_the_example(batch):
    for fn, expected in [(kl.k1_plus, 0.129167), (kl.k3_plus, 0.024929)]:
        logp_BT = batch["logp_BT"].clone().requires_grad_()
        loss_BT = bind(kl.KLInLoss(estimator=fn, coef=2.0), batch | {"logp_BT": logp_BT})
        assert float(loss_BT.detach().sum() / 24) == pytest.approx(2 * expected, abs=2e-6)
        loss_BT.sum().backward()
        difference_BT = torch.where(batch["is_action_BT"], batch["logp_BT"] - batch["ref_logp_BT"], 0)
        torch.testing.assert_close(logp_BT.grad, 2 * difference_BT)


@pytest.mark.parametrize("mix", [0.1, 0.5, 0.9])
def test_the_mixture_of_gkd_has_the_value_and_gradient_of_the_sum_over_the_vocabulary(mix):
    """Over all actions of a categorical; at the ends of the mix it is each of both KLs."""
    logits = torch.tensor([0.3, -0.7, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    ref_N = torch.tensor([-0.2, 0.5, 0.1, 0.9], dtype=torch.float64).log_softmax(0)
    logp_N = logits.log_softmax(0)

    def gradient(value):
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    def estimated(fn):
        return (logp_N.detach().exp() * fn(logp_BT=logp_N[None], ref_logp_BT=ref_N[None])[0]).sum()

    def kl_to(one_N, other_N):
        return (one_N.exp() * (one_N - other_N)).sum()

    mixed_N = (mix * ref_N.exp() + (1 - mix) * logp_N.exp()).log()
    exact = mix * kl_to(ref_N, mixed_N) + (1 - mix) * kl_to(logp_N, mixed_N)
    found = estimated(partial(kl.jsd, mix=mix))
    torch.testing.assert_close(found, exact, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient(found), gradient(exact), atol=1e-12, rtol=0)
    assert bool((kl.jsd(logp_BT=logp_N[None], ref_logp_BT=ref_N[None], mix=mix) >= 0).all())
    forward, near = gradient(kl_to(ref_N, logp_N)), 1e-7
    torch.testing.assert_close(gradient(estimated(kl.k3)), forward, atol=1e-12, rtol=0)
    torch.testing.assert_close(
        gradient(estimated(partial(kl.jsd, mix=near))) / near, forward, atol=1e-6, rtol=0
    )
    close = gradient(estimated(partial(kl.jsd, mix=1 - near))) / near
    torch.testing.assert_close(close, gradient(kl_to(logp_N, ref_N)), atol=1e-6, rtol=0)


def test_the_mixture_of_gkd_by_hand():
    """r = 2: u = 1.5, 0.5 * 2 * log(2 / 1.5) - 0.5 * log(1.5) = 0.084950, gradient -0.5 * log(1.5)."""
    logp_BT = torch.tensor([[-2.0, -1.0, -30.0]], dtype=torch.float64, requires_grad=True)
    ref_BT = torch.tensor([[-2.0 + math.log(2.0), -1.0, -0.5]], dtype=torch.float64)
    value_BT = kl.jsd(logp_BT=logp_BT, ref_logp_BT=ref_BT)
    torch.testing.assert_close(value_BT[0, :2], torch.tensor([0.084950, 0.0]).double(), atol=1e-6, rtol=0)
    assert float(value_BT[0, 2].detach()) == 10.0
    value_BT.sum().backward()
    assert logp_BT.grad[0].tolist() == pytest.approx([-0.5 * math.log(1.5), 0.0, -0.5 * (20 - math.log(2))])
    for mix in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"mix=.* must be > 0 and < 1; .*loss_k3"):
            kl.jsd(logp_BT=logp_BT, ref_logp_BT=ref_BT, mix=mix)


def test_k2_like_gradients_have_the_expectation_of_the_reverse_kl():
    """Over all actions of a categorical, E[grad k1+] = E[grad k3+] = grad KL(pi, ref); that of k1 is 0."""
    logits = torch.tensor([0.3, -0.7, 1.1, 0.0], requires_grad=True)
    ref_N = torch.tensor([-0.2, 0.5, 0.1, 0.9]).log_softmax(0)
    logp_N = logits.log_softmax(0)
    divergence = (logp_N.exp() * (logp_N - ref_N)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    for fn, target in [(kl.k1_plus, expected), (kl.k3_plus, expected), (kl.k1, torch.zeros(4))]:
        value_N = fn(logp_BT=logp_N[None], ref_logp_BT=ref_N[None])[0]
        (grad,) = torch.autograd.grad((logp_N.detach().exp() * value_N).sum(), logits, retain_graph=True)
        torch.testing.assert_close(grad, target, atol=1e-12, rtol=0)
