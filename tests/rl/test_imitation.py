"""Recorded rows beside played ones: to the objective of the played rows they are not there, and they are imitated."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lit_agentrl.episode import Source
from lit_agentrl.rl.imitation import Imitating
from lit_agentrl.rl.objective import metric_values
from tests.conftest import thinned
from tests.rl.ragged import fresh, loss_of, mix, ragged

COEF = 0.7
ALGORITHMS = [
    "ppo", "grpo", "dapo", "gspo", "rloo", "loop", "starpo_s", "gigpo", "reinforce_pp", "cispo", "raft", "ppo_turn",
    "gvpo", "online_dpo", "kto", "grpo_lambda", "dr_grpo",
]  # fmt: skip


def both() -> tuple[dict[str, Tensor], Tensor]:
    """Three groups, and one of three recorded rows among them; which rows are played."""
    batch = ragged(5, sizes=(4, 3, 3, 5))
    is_recorded_B = batch["group_B"] == 2
    batch["source_B"] = torch.where(is_recorded_B, int(Source.RECORDED), batch["source_B"]).to(torch.int8)
    return batch, ~is_recorded_B


@pytest.mark.parametrize("name", thinned(ALGORITHMS))
def test_played_rows_learn_as_if_alone_and_recorded_ones_are_imitated(name: str) -> None:
    batch, played_B = both()
    alone, alone_grad = loss_of(mix(name), {key: t[played_B] for key, t in batch.items()})
    loss, grad = loss_of(Imitating(played_objective=mix(name), coef=COEF), batch)
    is_imitated_BT = batch["is_action_BT"] & ~played_B[:, None]
    nll = -batch["logp_BT"][is_imitated_BT].mean()
    torch.testing.assert_close(loss, alone + COEF * nll, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(grad[played_B], alone_grad, atol=1e-12, rtol=1e-12)
    expected = torch.where(is_imitated_BT, -COEF / is_imitated_BT.sum(), 0.0)
    torch.testing.assert_close(grad[~played_B], expected[~played_B], atol=1e-12, rtol=1e-12)


def test_micro_batches_add_up_also_those_without_either_kind() -> None:
    batch, played_B = both()
    objective = Imitating(played_objective=mix("ppo"), coef=COEF)
    ready = batch | {name: t for name, t in objective.prepare(batch).items() if t.dim()}
    counted = objective.count(ready)
    whole, metrics = objective.loss(ready | counted)
    shares = []
    for rows in (played_B, ~played_B):
        part = {name: t[rows] if t.dim() else t for name, t in (ready | counted).items()}
        shares.append(objective.loss(part)[0])
    assert float(sum(shares)) == pytest.approx(float(whole), abs=1e-12)
    is_imitated_BT = batch["is_action_BT"] & ~played_B[:, None]
    nll = -float(batch["logp_BT"][is_imitated_BT].mean())
    assert metric_values(metrics)["imitation_nll"] == pytest.approx(nll)


def test_what_a_term_measures_has_no_recorded_token() -> None:
    batch, played_B = both()
    seen = Imitating(played_objective=mix("grpo"), coef=COEF).measured(batch)
    assert bool((seen["is_action_BT"].any(1) == played_B).all())
    assert bool((seen["return_B"].isnan() == ~played_B).all())


def test_a_critic_has_no_target_in_a_recorded_row() -> None:
    batch, played_B = both()
    found = Imitating(played_objective=mix("ppo"), coef=COEF).prepare(batch)
    assert bool((found["is_value_target_BT"].any(1) == played_B).all())


@pytest.mark.parametrize("coef", [0, -1.0, math.inf, math.nan, "1", True])
def test_a_coefficient_that_makes_no_sense(coef: object) -> None:
    with pytest.raises(ValueError, match="coef="):
        Imitating(played_objective=fresh("grpo"), coef=coef)  # type: ignore[arg-type]
