"""A loss of whole groups in training steps, against autograd through the loss written out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rl.credit import advantages
from lit_agentrl.rl.objective import coefficients
from lit_agentrl.rl.policy import entropy, gvpo, kl
from lit_agentrl.rl.policy.group_loss import GroupLoss
from lit_agentrl.update.microbatches import split_micro_batches
from lit_agentrl.update.settings import OptimSettings
from lit_agentrl.update.step import Stepper
from tests.conftest import thinned, tiny_policy
from tests.update.conftest import recorded, step

BETA, LR = 0.5, 0.05
SGD = OptimSettings(optimizer=torch.optim.SGD, lr=LR)


def objective(**parts):
    loss = partial(gvpo.gvpo_loss, beta=BETA)
    return GroupLoss(name="test", loss_of_groups=loss, advantage=partial(advantages.group_mean), **parts)


def unequal() -> TrajectoryBatch:
    """Groups of 2, 4 and 3 episodes, of which one of the second has failed: its return is NaN."""
    batch = recorded()[1]
    member_B, group_B = batch.member_B, batch.group_B
    rows = ((group_B != 0) | (member_B < 2)) & ((group_B != 2) | (member_B < 3))
    batch = batch.select(rows)
    failed_B = (batch.group_B == 1) & (batch.member_B == 3)
    return replace(batch, return_B=torch.where(failed_B, torch.nan, batch.return_B))


def written_out(batch: TrajectoryBatch, network, groups: list[int]) -> torch.Tensor:
    """``1/G sum over groups of 1/(N_g - 1) sum_i ((S_i - mean S) - (R_i - mean R))^2 / 2``, by loops."""
    logp_BT = score_tokens(network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT).logp_BT
    loss = torch.zeros(())
    for group in groups:
        scored = [
            i
            for i in range(batch.num_rows)
            if batch.group_B[i] == group and batch.return_B[i] == batch.return_B[i]
        ]
        implied = [BETA * (logp_BT - batch.sampler_logp_BT)[i][batch.is_action_BT[i]].sum() for i in scored]
        gaps = [s - batch.return_B[i] for s, i in zip(implied, scored, strict=True)]
        mean = torch.stack(gaps).mean()
        loss = loss + sum((gap - mean) ** 2 for gap in gaps) / 2 / (len(scored) - 1) / len(groups)
    return loss


@pytest.mark.parametrize(
    ("packing", "budget"), thinned([(p, b) for p in ("shared", True, False) for b in (200, 100_000)])
)
def test_steps_are_those_of_the_loss_written_out(packing, budget, monkeypatch):
    """Two epochs of two minibatches, groups of 2, 3 (of 4) and 3: the first step too has its own minibatch's size."""
    batch, policy = unequal(), tiny_policy()
    before = {name: weight.clone() for name, weight in policy.network.state_dict().items()}
    taken: list[list[int]] = []
    original = Stepper.step

    def watched(self, tensors, rows, *args, **kwargs):
        taken.append(sorted(set(tensors["group_B"][rows].tolist())))
        return original(self, tensors, rows, *args, **kwargs)

    monkeypatch.setattr(Stepper, "step", watched)
    how = {"tokens_per_microbatch": budget, "packing": packing}
    module, change = step(batch, alg=objective(), epochs=2, minibatches=2, optim=SGD, **how)
    assert module.version == 4 and sorted(len(groups) for groups in taken[:2]) == [1, 2]
    optimizer = torch.optim.SGD(policy.network.parameters(), lr=LR)
    for groups in taken:
        optimizer.zero_grad()
        written_out(batch, policy.network, groups).backward()
        optimizer.step()
    expected = {name: weight - before[name] for name, weight in policy.network.state_dict().items()}
    assert max(float(c.abs().max()) for c in expected.values()) > 1e-2
    for name, wanted in expected.items():
        torch.testing.assert_close(change[name], wanted, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("form", ["padded", "packed", "shared"])
@pytest.mark.parametrize("budget", [1, 400, 900, 10**6])
def test_micro_batches_hold_whole_units(form, budget):
    batch = recorded()[1].select(torch.randperm(12, generator=torch.Generator().manual_seed(0)))
    tensors = batch.to_dict()
    parts = split_micro_batches(tensors, budget, form, "group_B")
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(12))
    groups = [set(batch.group_B[part.rows].tolist()) for part in parts]
    assert sum(map(len, groups)) == 3 and (len(parts) == 3 if budget == 1 else len(parts) <= 3)
    first = parts[0].keep_first()
    assert len(set(batch.group_B[first.rows].tolist())) == 1 and len(first.rows) == 4
    assert first.packing is None or len(first.packing.lengths) == 4


def test_minibatches_hold_whole_groups():
    module, _ = step(alg=objective(), minibatches=3)
    assert module.version == 3
    with pytest.raises(ValueError, match=r"update\.minibatches=4 exceeds the 3 groups"):
        step(alg=objective(), minibatches=4)


@pytest.mark.slow
@pytest.mark.sweep
def test_terms_and_row_selection_stand_beside_it():
    """KL, an entropy that moves and a choice of rows change the step; a KL in the reward shapes the returns."""
    plain = step(alg=objective(), epochs=2, optim=SGD)[1]
    bonus = entropy.AdaptiveBonus(target=99.0, delta=0.01, max_coef=0.05)
    for parts in (
        {"kl": kl.KLInLoss(estimator=kl.k3, coef=1.0)},
        {"kl": kl.KLInReward(estimator=kl.k1, coef=1.0)},
        {"entropy": bonus},
        {"rows": _without_the_first},
    ):
        module, change = step(
            alg=objective(**parts), epochs=2, optim=SGD, iterations=2 if "kl" in parts else 1
        )
        assert any((change[name] - plain[name]).abs().max() > 1e-6 for name in plain), parts
    assert module.row["train/kept_row_share"] == pytest.approx(11 / 12)
    assert coefficients(objective(entropy=bonus)) == {"entropy": 0.01}


def _without_the_first(*, trajectory_B):
    return trajectory_B != trajectory_B[0]
