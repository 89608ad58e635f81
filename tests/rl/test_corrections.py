"""Corrections for samplers that differ from the trainer: numbers by hand, padding, gradients, exact expectations."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from lit_agentrl.certificates.estimator import Estimator
from lit_agentrl.certificates.exact import make_table
from lit_agentrl.certificates.objectives import list_gradients
from lit_agentrl.certificates.shipped import LAG_4
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.policy import correction
from tests.rl.ragged import fresh, ragged

NAN = float("nan")
OF_ROWS = [correction.sequence, correction.geometric, correction.geometric_masked]
ALL = [correction.truncated, correction.masked, *OF_ROWS]
# three trajectories: ratios 2, 1/2, 4; 1/2, 1/2; and one without a sampled token
RATIOS = [[2.0, 0.0, 0.5, 4.0], [0.5, 0.5, 0.0, 0.0], [0.0] * 4]


def worked() -> dict[str, Tensor]:
    """The three trajectories; NaN where no token was sampled."""
    ratio_BT = torch.tensor(RATIOS, dtype=torch.float64)
    is_action_BT = ratio_BT > 0
    return {
        "old_logp_BT": torch.where(is_action_BT, ratio_BT.log() - 1.5, NAN),
        "sampler_logp_BT": torch.where(is_action_BT, -1.5, NAN),
        "is_action_BT": is_action_BT,
        "trajectory_B": torch.tensor([4, 7, 7]),
    }


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (partial(correction.truncated, cap=3.0), [[2, 0, 0.5, 3], [0.5, 0.5, 0, 0]]),
        (partial(correction.masked, low=0.6, high=2.5), [[2, 0, 0, 0], [0, 0, 0, 0]]),
        (partial(correction.masked, low=0.4, high=5.0), RATIOS[:2]),
        # products 4 and 1/4
        (partial(correction.sequence, cap=10.0), [[4, 0, 4, 4], [0.25, 0.25, 0, 0]]),
        (partial(correction.sequence, cap=1.0), [[1, 0, 1, 1], [0.25, 0.25, 0, 0]]),
        # geometric means 4^(1/3) = 1.587401 and 1/2
        (partial(correction.geometric, cap=2.0), [[1.587401, 0, 1.587401, 1.587401], [0.5, 0.5, 0, 0]]),
        (partial(correction.geometric, cap=1.2), [[1.2, 0, 1.2, 1.2], [0.5, 0.5, 0, 0]]),
        (partial(correction.geometric_masked, low=0.9, high=1.6), [RATIOS[0], [0, 0, 0, 0]]),
        (partial(correction.geometric_masked, low=0.4, high=1.5), [[0, 0, 0, 0], RATIOS[1]]),
    ],
)
def test_worked_numbers(rule: partial[Tensor], expected: list[list[float]]) -> None:
    weight_BT = bind(rule, worked())
    torch.testing.assert_close(weight_BT, torch.tensor([*expected, [0] * 4]).double(), atol=1e-6, rtol=0)


def test_bounds_belong_to_the_band() -> None:
    tensors = worked()
    tensors["old_logp_BT"] = torch.where(tensors["is_action_BT"], -1.5, NAN)
    for rule in (correction.masked, correction.geometric_masked):
        assert bind(partial(rule, low=0.0, high=1.0), tensors).equal(tensors["is_action_BT"].double())


@pytest.mark.parametrize("rule", ALL)
def test_padding_changes_nothing(rule: partial[Tensor]) -> None:
    batch = ragged(3)
    wider = {
        name: torch.nn.functional.pad(tensor, (0, 5), value=False if tensor.dtype == torch.bool else NAN)
        for name, tensor in batch.items()
        if name in ("old_logp_BT", "sampler_logp_BT", "is_action_BT")
    }
    width = batch["is_action_BT"].shape[1]
    found, expected = bind(rule, wider | {"trajectory_B": batch["trajectory_B"]}), bind(rule, batch)
    torch.testing.assert_close(found[:, :width], expected, atol=1e-12, rtol=0)
    assert not found[:, width:].any() and expected.any()


@pytest.mark.parametrize("rule", ALL)
def test_weights_carry_no_gradient_and_large_ratios_are_limited(rule: partial[Tensor]) -> None:
    tensors = worked()
    for name in ("old_logp_BT", "sampler_logp_BT"):
        tensors[name] = tensors[name].requires_grad_()
    assert not bind(rule, tensors).requires_grad
    tensors["old_logp_BT"] = tensors["old_logp_BT"].detach() + 500
    widest = partial(rule, **{"high" if "masked" in rule.__name__ else "cap": 1e12})
    assert bind(widest, tensors).max() == pytest.approx(math.exp(20))


def test_tokens_of_weight_zero_get_no_gradient() -> None:
    """The mask of IcePop: exactly the tokens outside [0.5, 5] are without gradient."""
    batch = ragged(1)
    batch["sampler_logp_BT"] = batch["old_logp_BT"] + 3 * torch.randn_like(batch["old_logp_BT"])
    objective = fresh("grpo", "correction=icepop", "clip=none")
    tensors = batch | objective.prepare(batch)
    tensors["logp_BT"] = tensors["logp_BT"].detach().requires_grad_()
    loss, _ = objective.loss(tensors | objective.count(tensors))
    (gradient_BT,) = torch.autograd.grad(loss, tensors["logp_BT"])
    ratio_BT = (batch["old_logp_BT"] - batch["sampler_logp_BT"]).exp()
    is_kept_BT = batch["is_action_BT"] & (ratio_BT >= 0.5) & (ratio_BT <= 5.0)
    has_advantage_BT = tensors["advantage_BT"] != 0
    assert (gradient_BT != 0).equal(is_kept_BT & has_advantage_BT)
    assert (is_kept_BT & has_advantage_BT).any() and (batch["is_action_BT"] & ~is_kept_BT).any()


@pytest.mark.parametrize("rule", OF_ROWS)
def test_a_trajectory_of_several_rows_is_refused(rule: partial[Tensor]) -> None:
    tensors = worked() | {"trajectory_B": torch.tensor([4, 4, 7])}
    with pytest.raises(ValueError, match=r"context=full\); algo/correction=truncated or masked works"):
        bind(rule, tensors)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (partial(correction.sequence, cap=0.5), r"^cap=0\.5 must be finite and >= 1"),
        (partial(correction.geometric, cap=math.inf), r"^cap=inf must be finite and >= 1"),
        (partial(correction.geometric_masked, low=1.0), r"^low=1\.0 must be in \[0, 1\)"),
        (partial(correction.geometric_masked, high=0.9), r"^high=0\.9 must be finite and >= 1"),
    ],
)
def test_wrong_values(rule: partial[Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bind(rule, worked())


def test_whole_rows_are_asked_for_at_start() -> None:
    assert fresh("grpo", "correction=sequence").requirements.whole_trajectories == ("correction",)
    assert fresh("grpo", "correction=icepop").requirements.whole_trajectories == ()


def test_the_product_without_a_cap_makes_old_episodes_unbiased() -> None:
    """Weights of tokens correct the token and not the state that it was sampled in."""
    exact = list_gradients(make_table(LAG_4), 0.0)["return"]
    for name, is_exact in (("sequence", True), ("truncated", False)):
        objective = fresh("rloo", f"correction={name}", "correction.cap=1000000")
        update = Estimator(objective, LAG_4).compute_moments(2).mean
        assert torch.allclose(update, exact, atol=1e-10, rtol=0) == is_exact, name
