"""Reward parts in whole runs: exact continuation, and what shaping may and may not change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lit_agentrl.cli.collect import main as main_collect
from lit_agentrl.cli.train import main as main_train
from tests.conftest import ROOT
from tests.integration.conftest import TINY, assert_equal_runs, outcome
from tests.rewards.test_model import model as reward_model

LAKE = ["env=frozen_lake", "rollout.max_context_tokens=300"]  # its episodes have several turns
LAKE += [option for option in TINY if option.split("=")[0] not in ("env", "rollout.max_context_tokens")]
STATEFUL = "reward=[count,rnd,icm,delta,normalise,tripwire]"


JUDGED = """
judge:
  _target_: lit_agentrl.rewards.learned.judge.Judge
  engine:
    _target_: tests.rewards.test_judge.Reading
    _partial_: true
    judge: {_target_: tests.rewards.test_judge.by_length, _partial_: true}
  model: {_target_: lit_agentrl.models.remote.load_remote, _partial_: true}
  max_unjudged_share: 1.0
  retries: 0
  samples: 2
"""


def train(folder: Path, iterations: int, *options: str) -> None:
    main_train([*options, f"trainer.max_epochs={iterations}", f"hydra.run.dir={folder}"])


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_with_parts_that_learn_is_resumed_exactly(tmp_path: Path) -> None:
    straight, extended = tmp_path / "straight", tmp_path / "extended"
    options = (
        *LAKE,
        STATEFUL,
        "reward.delta.patience=1",
        "filter=dynamic_sampling",
        "algo.structure.max_waves=2",
    )
    train(straight, 4, *options)
    train(extended, 2, *options)
    main_train([f"resume={extended}", "trainer.max_epochs=4"])
    assert_equal_runs(straight, extended)
    states = [
        torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["callbacks"]["RolloutCallback"]
        for folder in (straight, extended)
    ]
    assert set(states[0]) == {"count", "rnd", "icm", "delta", "normalise", "tripwire"}
    assert torch.equal(states[0]["count"]["visits"], states[1]["count"]["visits"])
    predictors = [state["rnd"]["predictor"] for state in states]
    assert all(torch.equal(predictors[0][name], predictors[1][name]) for name in predictors[0])


@pytest.mark.slow
@pytest.mark.sweep
def test_a_judged_run_is_resumed_exactly(tmp_path: Path) -> None:
    straight, extended, own = tmp_path / "straight", tmp_path / "extended", tmp_path / "conf" / "reward"
    own.mkdir(parents=True)
    (own / "scripted.yaml").write_text(JUDGED)
    judged = [
        f"--config-dir={own.parent}",
        *[o for o in LAKE if o != "val.every=2"],
        "reward=scripted",
        "val.every=1",
    ]
    train(straight, 2, *judged)
    train(extended, 1, *judged)
    main_train([f"resume={extended}", "trainer.max_epochs=2", "trust_run=true"])
    assert_equal_runs(straight, extended)
    rows = outcome(straight)[1]
    assert any(float(row.get("reward/judge_unjudged") or 0) > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_paid_by_likeness_and_logits_is_resumed_exactly(tmp_path: Path) -> None:
    """References are those of the run's own instances, as `collect trained_in` plays them."""
    straight, extended, known = tmp_path / "straight", tmp_path / "extended", tmp_path / "known"
    played = [o for o in LAKE if o.split("=")[0] in ("env", "rollout.max_context_tokens", "env.max_turns")]
    main_collect([*played, "model=nano", "episodes=3", "members=2", "trained_in=0", f"out={known}"])
    paid = [
        *LAKE,
        "rollout.instances=3",
        "reward=[polar,endo]",
        f"reward.polar.path={reward_model(tmp_path, kind='referred')}",
        f"reward.polar.references.path={known}",
        f"reward.endo.path={ROOT / 'src/lit_agentrl/models/nano'}",
        "reward.endo.replaces=false",
    ]
    train(straight, 4, *paid)
    train(extended, 2, *paid)
    main_train([f"resume={extended}", "trainer.max_epochs=4"])
    assert_equal_runs(straight, extended)
    assert all(float(row["reward/polar_missing"]) == 0 for row in outcome(straight)[1][1:])


@pytest.mark.slow
@pytest.mark.sweep
def test_shaping_reaches_training_and_nothing_else(tmp_path: Path) -> None:
    """The first iteration plays the same episodes with and without; only what is learnt from them differs."""
    plain, shaped = tmp_path / "plain", tmp_path / "shaped"
    train(plain, 1, *TINY)
    train(shaped, 1, *TINY, "reward=[format,potential]", "reward.format.weight=3")
    (weights_a, rows_a), (weights_b, rows_b) = outcome(plain), outcome(shaped)
    played = [name for name in rows_a[1] if name.startswith("rollout/")]
    assert len(played) > 10 and {n: rows_a[1][n] for n in played} == {n: rows_b[1][n] for n in played}
    assert rows_a[0]["val/return"] == rows_b[0]["val/return"]
    assert any(not torch.equal(weights_a[name], weights_b[name]) for name in weights_a)
    rewards = {name: float(value) for name, value in rows_b[1].items() if name.startswith("reward/")}
    parts = rewards["reward/format"] + rewards["reward/potential"]
    assert rewards["reward/total"] == pytest.approx(float(rows_b[1]["rollout/return_mean"]) + parts, abs=1e-5)
    assert not [name for name in rows_a[1] if name.startswith("reward/")]
    lines = [json.loads(line)["episode"] for line in (shaped / "transcripts/train.jsonl").open()]
    assert all(turn["probes"]["potential"] < 0 for e in lines for turn in e["turns"])
    validated = [json.loads(line)["episode"] for line in (shaped / "transcripts/val.jsonl").open()]
    assert all(turn["shaped_reward"] is None and not turn["probes"] for e in validated for turn in e["turns"])
