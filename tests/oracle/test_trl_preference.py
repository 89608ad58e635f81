"""Losses of pairs against those of trl's trainers, on recorded pairs of one reply behind a prompt.

trl counts everything behind the prompt, so these pairs hold no observations.  The last test has pairs of several turns,
and shows the deliberate difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_agentrl.rl.preference import links, margins, pairing, scores, unpaired
from lit_agentrl.rl.preference.objective import NLL, PreferenceLoss
from lit_agentrl.rl.preference.unpaired import PointwiseLoss
from tests.oracle.batches import NUM_BATCHES
from tests.oracle.losses import with_gradient
from tests.oracle.oracles import Accelerator, load

pytestmark = pytest.mark.oracle

BETA, TOLERANCE = 0.1, 1e-9
AVERAGED = {"score": scores.length_averaged, "reference": scores.without}


def pairs(seed: int) -> dict[str, Tensor]:
    """1 to 5 pairs; the prompt of a row is two tokens, its reply 1 to 7."""
    draw = torch.Generator().manual_seed(seed)
    B = 2 * int(torch.randint(1, 6, (1,), generator=draw))
    length_B = torch.randint(1, 8, (B,), generator=draw)
    place_T = torch.arange(2 + int(length_B.max()))
    is_action_BT = (place_T >= 2) & (place_T < 2 + length_B[:, None])
    shape = is_action_BT.shape

    def logps() -> Tensor:
        return torch.where(is_action_BT, -0.05 - 2 * torch.rand(shape, generator=draw), -1.0)

    return {
        "logp_BT": logps(),
        "ref_logp_BT": logps(),
        "is_action_BT": is_action_BT,
        "turn_BT": torch.where(is_action_BT, 0, -1),
        "tokens_BT": torch.arange(B * shape[1]).reshape(shape),
        "return_B": (torch.arange(B) % 2 == 0).double(),
        "group_B": torch.arange(B) // 2,
        "trajectory_B": torch.arange(B),
        "first_turn_B": torch.zeros(B, dtype=torch.int64),
    }


def ours(batch: dict[str, Tensor], link: Callable[..., Tensor] = links.logistic, **parts: Any) -> Any:
    """Loss and its gradient in the log-probs of all tokens."""
    defaults = {
        "name": "test",
        "pairing": pairing.all_pairs,
        "score": scores.summed,
        "reference": scores.frozen,
        "beta": BETA,
    }
    made = PreferenceLoss(link=link, **(defaults | parts))
    if made.needs("old_logp_BT"):  # it sorts: the first step of an iteration
        before = made.prepare(batch | {"old_logp_BT": batch["logp_BT"]})
        batch = batch | {"reordered_BK": before["reordered_BK"]}
    counted = batch | made.count(batch)
    return with_gradient(lambda logp_BT: made.loss(counted | {"logp_BT": logp_BT})[0], batch["logp_BT"])


class Gathering(Accelerator):
    """One process, by trl's name for metrics too."""

    device = torch.device("cpu")

    def gather_for_metrics(self, x: Any) -> Any:
        return x


def dpo_trainer(kinds: list[str], **settings: Any) -> SimpleNamespace:
    """What ``DPOTrainer._compute_loss`` reads of its trainer."""
    given = {
        "label_smoothing": 0.0,
        "loss_weights": [1.0] * len(kinds),
        "f_divergence_type": "reverse_kl",
        "ld_alpha": None,
    }
    return SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=Gathering(), aux_loss_enabled=False,
        precompute_ref_logps=True, f_alpha_divergence_coef=0.5, loss_types=kinds, beta=BETA, use_weighting=False,
        args=SimpleNamespace(discopop_tau=0.05), _metrics={"train": defaultdict(list)}, _total_train_tokens=0,
        **(given | settings),
    )  # fmt: skip


def theirs(batch: dict[str, Tensor], kinds: list[str], **settings: Any) -> Any:
    """Loss and gradient of trl; its rows are all chosen ones, then all rejected ones."""
    compute = load("trl.trainer.dpo_trainer").DPOTrainer._compute_loss
    order = torch.cat(
        [torch.arange(0, len(batch["return_B"]), 2), torch.arange(1, len(batch["return_B"]), 2)]
    )
    is_action_BT = batch["is_action_BT"][order]
    length_B = batch["is_action_BT"].sum(1)
    common_B = torch.minimum(length_B[0::2], length_B[1::2]).repeat_interleave(2)
    is_beyond_BT = batch["is_action_BT"].cumsum(1) > common_B[:, None]
    # the sums of the reference are given, so tokens beyond the shorter side are weighed here
    ref_BT = batch["ref_logp_BT"] * torch.where(is_beyond_BT, settings.get("ld_alpha", 1.0), 1.0)
    ref = torch.where(batch["is_action_BT"], ref_BT, 0.0)[order].sum(1)
    half = len(order) // 2
    inputs = {
        "input_ids": torch.zeros_like(is_action_BT, dtype=torch.int64),
        "attention_mask": torch.ones_like(is_action_BT, dtype=torch.int64),
        "completion_mask": is_action_BT.long(),
        "ref_chosen_logps": ref[:half],
        "ref_rejected_logps": ref[half:],
    }

    def loss_of(logp_BT: Tensor) -> Tensor:
        # two tokens of vocabulary; logits at t score token t + 1
        next_BT = logp_BT[order][:, 1:]
        logits = torch.stack([next_BT, torch.log(-torch.expm1(next_BT))], -1)
        logits = torch.cat([logits, logits[:, :1]], 1)
        model = lambda **_: SimpleNamespace(logits=logits)  # noqa: E731
        loss: Tensor = compute(dpo_trainer(kinds, **settings), model, dict(inputs), False)
        return loss

    return with_gradient(loss_of, batch["logp_BT"])


CASES: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    # our function: trl's loss types and settings, our parts
    "links.logistic": (["sigmoid"], {}, {}),
    "links.robust": (["robust"], {"label_smoothing": 0.1}, {"smoothing": links.robust}),
    "links.hinge": (["hinge"], {}, {"link": links.hinge}),
    "links.exo": (["exo_pair"], {"label_smoothing": 1e-3}, {"link": links.exo}),
    "links.discopop": (["discopop"], {}, {"link": links.discopop}),
    "links.ipo": (["ipo"], {}, {"link": links.ipo, "beta": 1.0, "score": scores.length_averaged}),
    "scores.length_averaged": (["sigmoid_norm"], {}, {"score": scores.length_averaged}),
    "links.nca": (["nca_pair"], {}, {"link": links.nca}),
    "links.bco": (["bco_pair"], {}, {"link": links.bco}),
    "links.sppo_hard": (["sppo_hard"], {}, {"link": links.sppo_hard, "beta": 1.0}),
    "links.apo": (["apo_zero"], {}, {"link": links.apo}),
    "scores.forward_kl": (["sigmoid"], {"f_divergence_type": "forward_kl"}, {"divergence": scores.forward_kl}),
    "scores.jensen_shannon": (
        ["sigmoid"], {"f_divergence_type": "js_divergence"}, {"divergence": scores.jensen_shannon}
    ),
    "scores.length_desensitised": (
        ["sigmoid"], {"ld_alpha": 0.5}, {"score": partial(scores.length_desensitised, alpha=0.5)}
    ),
    "preference.NLL": (
        ["sigmoid", "sft"], {"loss_weights": [1.0, 0.2]}, {"nll": NLL(coef=0.2, per="token")}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_dpo_family(agree, name):
    kinds, settings, parts = CASES[name]
    for seed in range(NUM_BATCHES):
        batch = pairs(seed)
        expected, gradient = theirs(batch, kinds, **settings)
        value, slope = ours(batch, **parts)
        agree(value, expected, seed=seed, pair=(name, "DPOTrainer"), tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=(name, "DPOTrainer"), tolerance=TOLERANCE)


def test_conservative(agree):
    """trl has no loss of this name; its sorted one is the same where there is one pair."""
    for seed in range(NUM_BATCHES):
        batch = {name: value[:2] for name, value in pairs(seed).items()}
        expected, gradient = theirs(batch, ["aot"], label_smoothing=0.1)
        value, slope = ours(batch, smoothing=links.conservative)
        agree(value, expected, seed=seed, pair=("links.conservative", "DPOTrainer"), tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=("links.conservative", "DPOTrainer"), tolerance=TOLERANCE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sorted(agree, smoothing):
    parts = {"smoothing": links.conservative} if smoothing else {}
    for seed in range(NUM_BATCHES):
        batch = pairs(seed)
        expected, gradient = theirs(batch, ["aot"], label_smoothing=smoothing)
        value, slope = ours(batch, margin=margins.sorted_reference, **parts)
        pair = ("margins.sorted_reference", "DPOTrainer")
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def test_sorted_unpaired(agree):
    """The mean over n pairs in trl, over 2n replies here, each of which is compared with a number that stays."""
    made = PointwiseLoss(
        name="test", label=unpaired.above, score=scores.summed, reference=scores.frozen, value=unpaired.binary,
        baseline=unpaired.same_rank, beta=BETA,
    )  # fmt: skip
    for seed in range(NUM_BATCHES):
        batch = pairs(seed)
        rows = made.prepare(batch | {"old_logp_BT": batch["logp_BT"]})
        counted = batch | {name: t for name, t in rows.items() if t.dim()} | made.count(batch)
        value, slope = with_gradient(
            lambda logp_BT, counted=counted: made.loss(counted | {"logp_BT": logp_BT})[0], batch["logp_BT"]
        )
        expected, gradient = theirs(batch, ["aot_unpaired"])
        pair = ("unpaired.same_rank", "DPOTrainer")
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(2 * slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


@pytest.mark.parametrize("name", ["margins.constant", "scores.alpha_power"])
def test_simpo(agree, name):
    alpha = 0.25 if name == "scores.alpha_power" else 0.0
    compute = load("trl.experimental.cpo.cpo_trainer").CPOTrainer.cpo_loss
    made = SimpleNamespace(
        alpha=alpha,
        accelerator=Gathering(),
        loss_type="simpo",
        simpo_gamma=1.375,
        beta=2.5,
        label_smoothing=0.0,
    )
    parts = {"divergence": partial(scores.alpha_power, alpha=0.25)} if alpha else {}
    for seed in range(NUM_BATCHES):
        batch = pairs(seed)

        def loss_of(logp_BT: Tensor, batch: dict[str, Tensor] = batch) -> Tensor:
            mask_BT = batch["is_action_BT"]
            average_B = torch.where(mask_BT, logp_BT, 0.0).sum(1) / mask_BT.sum(1)
            return compute(made, average_B[::2], average_B[1::2])[0].mean()

        expected, gradient = with_gradient(loss_of, batch["logp_BT"])
        margin = partial(margins.constant, gamma=1.375)
        value, slope = ours(batch, margin=margin, beta=2.5, **AVERAGED, **parts)
        agree(value, expected, seed=seed, pair=(name, "CPOTrainer"), tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=(name, "CPOTrainer"), tolerance=TOLERANCE)


def of_sides(batch: dict[str, Tensor], loss_of: Callable[[Tensor, Tensor], Tensor], *, averaged: bool) -> Any:
    """A loss of the log-probs of both sides, and its gradient in those of all tokens."""
    mask_BT = batch["is_action_BT"]
    length_B = mask_BT.sum(1) if averaged else 1

    def of(logp_BT: Tensor) -> Tensor:
        logp_B = torch.where(mask_BT, logp_BT, 0.0).sum(1) / length_B
        return loss_of(logp_B[::2], logp_B[1::2])

    return with_gradient(of, batch["logp_BT"])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cpo(agree, smoothing):
    """CPO is DPO without a reference; its label smoothing is cDPO's."""
    compute = load("trl.experimental.cpo.cpo_trainer").CPOTrainer.cpo_loss
    made = SimpleNamespace(
        alpha=0.0, accelerator=Gathering(), loss_type="sigmoid", beta=BETA, label_smoothing=smoothing
    )
    parts = {"smoothing": links.conservative} if smoothing else {}
    for seed in range(NUM_BATCHES):
        batch = pairs(seed)
        expected, gradient = of_sides(
            batch, lambda one, other: compute(made, one, other)[0].mean(), averaged=False
        )
        value, slope = ours(batch, reference=scores.without, **parts)
        agree(value, expected, seed=seed, pair=("scores.without", "CPOTrainer"), tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=("scores.without", "CPOTrainer"), tolerance=TOLERANCE)


def test_orpo(agree):
    """The term of the odds; the NLL beside it is `preference.NLL`.  trl computes it in single precision."""
    compute = load("trl.experimental.orpo.orpo_trainer").ORPOTrainer.odds_ratio_loss
    made = SimpleNamespace(beta=1.0, accelerator=Gathering())
    for seed in range(NUM_BATCHES):
        batch = pairs(seed)
        expected, gradient = of_sides(
            batch, lambda one, other: -compute(made, one, other)[0].mean().double(), averaged=True
        )
        value, slope = ours(batch, divergence=scores.log_odds, beta=1.0, **AVERAGED)
        agree(value, expected, seed=seed, pair=("scores.log_odds", "ORPOTrainer"), tolerance=1e-5)
        agree(slope, gradient, seed=seed, pair=("scores.log_odds", "ORPOTrainer"), tolerance=1e-5)


def test_trl_trains_on_what_the_environment_says_and_we_do_not():
    """Every third token behind the prompt is the game's: with our mask both agree, with that of trl's collator not."""
    batch = pairs(0)
    behind_BT = batch["is_action_BT"]
    said_BT = behind_BT & (torch.arange(behind_BT.shape[1]) % 3 == 0)
    sampled = batch | {"is_action_BT": behind_BT & ~said_BT}
    value, slope = ours(sampled)
    same, _ = theirs(sampled, ["sigmoid"])
    assert torch.isclose(value, same, atol=TOLERANCE)
    loss, gradient = theirs(batch, ["sigmoid"])
    assert said_BT.any() and abs(loss - value) > 1e-3
    assert (gradient[said_BT] != 0).all() and (slope[said_BT] == 0).all()
