"""XPO and Nash-MD against trl's trainers: loss and gradient of pairs of the policy with an opponent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from lit_agentrl.experimental.exploring import Exploring, opposed
from lit_agentrl.rl.preference import links, scores
from tests.oracle.batches import NUM_BATCHES
from tests.oracle.losses import with_gradient
from tests.oracle.oracles import load
from tests.rl.ragged import fresh, loss_of, ragged

pytestmark = pytest.mark.oracle

BETA, ALPHA, TOLERANCE = 0.1, 0.02, 1e-9


def pairs(seed: int) -> dict[str, Tensor]:
    """Groups of two rows of several turns, one of which, the first or the second, an opponent has played."""
    batch = ragged(seed, sizes=(2,) * 5)
    first = torch.rand(5, generator=torch.Generator().manual_seed(seed)) < 0.5
    batch["is_opponent_B"] = torch.stack([first, ~first], 1).flatten()
    return batch


def apart(batch: dict[str, Tensor], column_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The policy's rows and the opponents', group by group; 0 where nothing was sampled, as trl has them."""
    column_BT = torch.where(batch["is_action_BT"], column_BT, 0.0)
    return column_BT[~batch["is_opponent_B"]], column_BT[batch["is_opponent_B"]]


def test_xpo(agree) -> None:
    theirs = load("trl.experimental.xpo").XPOTrainer._compute_losses
    trainer = SimpleNamespace(args=SimpleNamespace(loss_type="sigmoid"), beta=BETA, alpha=ALPHA)
    ours = Exploring(
        name="xpo", pairing=opposed, score=scores.summed, reference=scores.frozen, link=links.logistic,
        beta=BETA, alpha=ALPHA,
    )  # fmt: skip
    for seed in range(NUM_BATCHES):
        batch = pairs(seed)
        is_own_B = ~batch["is_opponent_B"]
        chosen = batch["return_B"][is_own_B] > batch["return_B"][~is_own_B]
        ref, ref_other = apart(batch, batch["ref_logp_BT"])

        def loss(logp_BT: Tensor, batch=batch, ref=ref, ref_other=ref_other, chosen=chosen) -> Tensor:
            policy, other = apart(batch, logp_BT)
            found: Tensor = theirs(trainer, policy, other, ref_other, ref, chosen)[0]
            return found

        expected, gradient = with_gradient(loss, torch.where(batch["is_action_BT"], batch["logp_BT"], 0.0))
        value, slope = loss_of(ours, batch)
        pair = ("exploring.Exploring", "XPOTrainer")
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def test_nash_md(agree) -> None:
    """Values differ by what carries no gradient: trl adds the log-ratio times the log-prob to its loss."""
    theirs = load("trl.experimental.nash_md").NashMDTrainer._compute_losses
    trainer = SimpleNamespace(beta=BETA)
    for seed in range(NUM_BATCHES):
        batch = pairs(seed)
        is_own_B = ~batch["is_opponent_B"]
        own, other = batch["return_B"][is_own_B], batch["return_B"][~is_own_B]
        probability = (own > other).double() + 0.5 * (own == other).double()
        ref, _ = apart(batch, batch["ref_logp_BT"])

        def loss(logp_BT: Tensor, batch=batch, ref=ref, probability=probability) -> Tensor:
            found: Tensor = theirs(trainer, apart(batch, logp_BT)[0], ref, probability)[0]
            return found

        _, gradient = with_gradient(loss, torch.where(batch["is_action_BT"], batch["logp_BT"], 0.0))
        _, slope = loss_of(fresh("nash_md", f"kl.coef={BETA}"), batch)
        agree(
            slope,
            gradient,
            seed=seed,
            pair=("exploring.against_opponent", "NashMDTrainer"),
            tolerance=TOLERANCE,
        )
