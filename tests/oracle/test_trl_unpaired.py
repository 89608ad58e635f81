"""Losses of single trajectories against those of trl's KTO trainer."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_agentrl.rl.preference import scores, unpaired
from tests.oracle.batches import NUM_BATCHES
from tests.oracle.losses import with_gradient
from tests.oracle.oracles import load
from tests.oracle.test_trl_preference import BETA, TOLERANCE, Gathering, pairs

pytestmark = pytest.mark.oracle

KINDS = {"kto": unpaired.kl, "apo_zero_unpaired": unpaired.zero}


def sums(batch: dict[str, Tensor], column: str) -> Tensor:
    """Log-prob of each reply."""
    return torch.where(batch["is_action_BT"], batch[column], 0.0).sum(1)


def logits_of(logp_BT: Tensor) -> SimpleNamespace:
    """Two tokens of vocabulary, of which the first was drawn; logits at t score token t + 1."""
    logits = torch.stack([logp_BT, torch.log(-torch.expm1(logp_BT))], -1)
    return SimpleNamespace(logits=torch.cat([logits, logits[:, :1]], 1))


def theirs(batch: dict[str, Tensor], kind: str, weight: float) -> Any:
    """Loss and gradient of trl, which is told what the policy before the step gave in place of mismatched replies."""
    trainer = load("trl.trainer.kto_trainer").KTOTrainer
    before_B, reference_B = sums(batch, "old_logp_BT"), sums(batch, "ref_logp_BT")
    moved_B = before_B - reference_B
    shift = moved_B.max().clamp(min=0) + 1  # so that it is the log-prob of a token
    count, width = len(before_B), batch["is_action_BT"].shape[1]
    made = SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=Gathering(), aux_loss_enabled=False,
        precompute_ref_logps=True, calculate_KL=kind == "kto", use_liger_kernel=False, loss_type=kind, beta=BETA,
        desirable_weight=weight, undesirable_weight=1.0, _metrics={"train": defaultdict(list)},
        _total_train_tokens=0, args=SimpleNamespace(), is_vision_dataset=False,
    )  # fmt: skip
    made._compute_kl_logps = partial(trainer._compute_kl_logps, made)
    inputs = {
        "input_ids": torch.zeros(count, width + 1, dtype=torch.int64),
        "attention_mask": torch.ones(count, width + 1, dtype=torch.int64),
        "completion_mask": torch.cat([torch.zeros(count, 1), batch["is_action_BT"]], 1).long(),
        "KL_input_ids": torch.zeros(count, 2, dtype=torch.int64),
        "KL_attention_mask": torch.ones(count, 2, dtype=torch.int64),
        "KL_completion_mask": torch.tensor([[0, 1]]).repeat(count, 1),
        "label": batch["return_B"] > 0,
        "ref_logps": reference_B,
        "ref_KL_logps": (-shift).expand(count),
    }

    def loss_of(logp_BT: Tensor) -> Tensor:
        def model(**given: Tensor) -> SimpleNamespace:
            is_baseline = given["input_ids"].shape[1] == 2 != width + 1
            return logits_of((moved_B - shift)[:, None] if is_baseline else logp_BT)

        found = trainer._compute_loss(made, model, dict(inputs), False)
        loss: Tensor = found[0] if isinstance(found, tuple) else found
        return loss

    return with_gradient(loss_of, batch["logp_BT"])


@pytest.mark.parametrize("weight", [1.0, 1.33])
@pytest.mark.parametrize("kind", KINDS)
def test_kto(agree, kind, weight):
    name = f"unpaired.{KINDS[kind].__name__}"
    for seed in range(NUM_BATCHES):
        batch = pairs(seed)
        draw = torch.Generator().manual_seed(seed)
        batch["old_logp_BT"] = batch["ref_logp_BT"] - 0.04 * torch.rand(
            batch["logp_BT"].shape, generator=draw
        ) * ((-1.0) ** seed)
        made = unpaired.PointwiseLoss(
            name="test", label=unpaired.above, score=scores.summed, reference=scores.frozen, value=unpaired.prospect,
            baseline=KINDS[kind], beta=BETA, desirable_weight=weight,
        )  # fmt: skip
        rows = {name: value for name, value in made.prepare(batch).items() if value.dim()}
        counted = batch | rows | made.count(batch)
        value, slope = with_gradient(
            lambda logp_BT, made=made, counted=counted: made.loss(counted | {"logp_BT": logp_BT})[0],
            batch["logp_BT"],
        )
        expected, gradient = theirs(batch, kind, weight)
        agree(value, expected, seed=seed, pair=(name, "KTOTrainer"), tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=(name, "KTOTrainer"), tolerance=TOLERANCE)
