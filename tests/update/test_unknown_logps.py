"""Tokens whose log-probs nobody knows: a pass before the first step, where something asks what they were there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from tests.rl.ragged import fresh
from tests.update.bare import build, float64, gradient, off_policy, step


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    with float64():
        yield


def texts() -> TrajectoryBatch:
    batch = off_policy()
    nan_BT = torch.where(batch.is_action_BT, torch.nan, 0.0)
    return replace(batch, sampler_logp_BT=nan_BT, source_B=torch.full_like(batch.source_B, 4))


@pytest.mark.parametrize(
    ("algorithm", "update", "passes"),
    [
        (("sft",), {}, 0),  # the only step's own are those of before it
        (("sft",), {"minibatches": 2}, 1),  # of the second step they are not
        (("grpo",), {}, 1),  # its ratio asks
        (("sft", "kl=loss_k3", "kl_controller=ziegler"), {}, 1),  # its controller may
    ],
)
def test_what_is_asked_is_computed_once(
    algorithm: tuple[str, ...], update: dict[str, int], passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = build(fresh(*algorithm), **update)
    asked: list[Any] = []
    plain = module.updater.networks.compute_logp
    monkeypatch.setattr(
        module.updater.networks, "compute_logp", lambda *of: asked.append(len(of)) or plain(*of)
    )
    step(module, texts())
    assert asked.count(1) == passes  # with two it is the reference that says
    assert torch.isfinite(gradient(module)).all() and abs(module.row["train/approx_kl"]) < 1e-12 or update
    assert module.row["train/logp_gap"] == 0.0


def test_imitation_is_the_same_whoever_knows_the_log_probs() -> None:
    known, unknown = (build(fresh("sft")) for _ in range(2))
    step(known, replace(texts(), sampler_logp_BT=off_policy().sampler_logp_BT))
    step(unknown, texts())
    assert torch.equal(gradient(known), gradient(unknown))
