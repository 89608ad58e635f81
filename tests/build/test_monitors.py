"""What a callback may wait for is what runs measure, and what the documentation lists."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lit_agentrl.build.monitors import PAIR_METRICS, list_metrics
from lit_agentrl.build.parts import build_parts
from lit_agentrl.config.composition import compose_job, make_task_loader
from tests.conftest import ROOT


def known(*overrides: str) -> list[str]:
    cfg = compose_job("train", ["env=frozen_lake", *overrides])
    OmegaConf.set_struct(cfg, False)
    cfg.run_dir = "."
    parts = build_parts(cfg, make_task_loader())
    has_critic = parts.critic is not None
    return list_metrics(
        parts.games, parts.rewards, parts.algorithm, parts.structure, [], has_critic=has_critic
    )


def test_every_metric_of_a_run_may_be_waited_for(finished_run: Path) -> None:
    with (finished_run / "metrics.csv").open() as file:
        columns = set(next(csv.reader(file))) - {"iteration"}
    of_loss = {f"train/{name}" for name in ("approx_kl", "ratio_max", "clip_share_low", "clip_share_high")}
    of_loss |= {f"train/{name}" for name in ("entropy", "ref_kl", "entropy_before")}
    assert columns - of_loss <= {*known()}


def test_every_documented_metric_is_known() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    groups = "rollout|train|critic|reward|val|time|speed|collapse"
    documented = {name for name in re.findall(rf"`((?:{groups})/[\w]+)`", text)}
    assert len(documented) > 50
    of_loss = {
        "approx_kl",
        "ratio_max",
        "clip_share_low",
        "clip_share_high",
        "entropy",
        "ref_kl",
        "correction",
    }
    of_loss |= {"correction_max", "old_kl", "imitation_nll", "opponent_logp"}
    of_pairs = {f"{name}_{side}" for name in ("reward", "logp", "moved") for side in ("chosen", "rejected")}
    of_loss |= of_pairs | {"reward_margin", "reward_accuracy", "shorter_wins", "desirable_share"}
    of_loss |= {"step_accuracy", "step_chance", "step_brier", "good_share"}
    names = known("algo=ppo", "reward=[tripwire]") + [f"train/{name}" for name in of_loss]
    names += [f"val/{name}" for name in PAIR_METRICS]
    levels = {"val/chance", "val/oracle"}  # constants: nothing to wait for
    of_model = {
        f"reward/{part}_{name}"
        for part in ("model", "endo", "polar")
        for name in ("score", "success", "auc", "gap")
    }
    of_model |= {"reward/cost_score", "reward/cost_costly_share", "reward/polar_missing"}
    of_held_out = {name for name in documented if name.startswith("val/data_")}  # known with data.held_out
    for name in documented - {"reward/tripwire_share"} - levels - of_model - of_held_out:
        assert name in names, name


def test_metrics_of_a_part_and_of_the_loss_are_let_through() -> None:
    known("callbacks.best.monitor=train/approx_kl")
    known("reward=[rnd]", "callbacks.best.monitor=reward/rnd_coef")
    of_heads = (
        "algo=bradley_terry",
        "data=ranked",
        f"data.path={ROOT}/tests/envs/probes.jsonl",
        "data.score=[a,b]",
    )
    for metric in ("val/head_a_success", "train/head_b_reward_accuracy"):
        known(*of_heads, f"callbacks.best.monitor={metric}")
    with pytest.raises(ValueError, match="monitor=val/head_c_success is not measured"):
        known(*of_heads, "callbacks.best.monitor=val/head_c_success")
    with pytest.raises(ValueError, match="rules.spread.signal=rollout/return_sd is not measured"):
        known("callbacks.collapse.rules.spread.signal=rollout/return_sd")
    with pytest.raises(ValueError, match="reward/rn_coef is not measured; .*reward/rnd"):
        known("reward=[rnd]", "callbacks.best.monitor=reward/rn_coef")
