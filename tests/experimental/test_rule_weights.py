"""Weights of rules: the worked number, what a fit finds by hand, and what scale it stops at."""

from __future__ import annotations

import pytest
import torch

from lit_agentrl.experimental.weighing import compute_hinge_loss, fit_weights

pytestmark = pytest.mark.usefixtures("in_float64")


def test_the_worked_number() -> None:
    """Better 1.0 + 0.9, worse 1.4 + 0.1: the gap of the base is -0.4, that of the rule 0.8."""
    found = compute_hinge_loss(torch.tensor([1.0]), gap_PF=torch.tensor([[0.8]]), base_P=torch.tensor([-0.4]))
    assert float(found) == pytest.approx(0.6)
    parted = compute_hinge_loss(
        torch.tensor([2.0]), gap_PF=torch.tensor([[0.8]]), base_P=torch.tensor([-0.4])
    )
    assert float(parted) == pytest.approx(0.0, abs=1e-6), "what is parted by more than 1 counts no more"


@pytest.mark.slow
def test_a_fit_by_hand() -> None:
    """Of three pairs one speaks against the rule: the mean hinge is least where the two are just parted by 1."""
    gap_PF = torch.tensor([[1.0], [1.0], [-1.0]])
    weight = fit_weights(gap_PF=gap_PF, base_P=torch.zeros(3))
    assert float(weight) == pytest.approx(1.0, abs=0.02) and weight.dtype == torch.float64
    assert float(fit_weights(gap_PF=-gap_PF, base_P=torch.zeros(3))) == pytest.approx(-1.0, abs=0.02)
    idle = fit_weights(gap_PF=torch.tensor([[1.0, 0.0]] * 3), base_P=torch.zeros(3))
    assert float(idle[1]) == 0.0, "a rule that tells no pair from another"
    done = fit_weights(gap_PF=gap_PF[:2], base_P=torch.full((2,), 3.0))
    assert float(done) == 0.0, "the base parts them already"


def test_the_scale_ends_with_the_steps() -> None:
    far = fit_weights(gap_PF=torch.tensor([[0.01]]), base_P=torch.zeros(1), steps=50)
    assert float(far) == pytest.approx(0.5, abs=0.01), "lr * steps"
    for wrong, said in (({"lr": 0.0}, "lr=0"), ({"steps": 0}, "steps=0")):
        with pytest.raises(ValueError, match=said):
            fit_weights(gap_PF=torch.ones(1, 1), base_P=torch.zeros(1), **wrong)
    with pytest.raises(ValueError, match="pairs=0"):
        fit_weights(gap_PF=torch.ones(0, 1), base_P=torch.zeros(0))
