"""Configs of earlier versions: what moved is found, what was removed is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.build.parts import build_parts
from lit_agentrl.config import composition
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.saved import (
    _add_worker,
    _drop_removed,
    read_resumed_config,
    read_saved_config,
)
from lit_agentrl.renamed import rename_targets
from lit_agentrl.rl.policy.group_loss import GroupLoss
from lit_agentrl.rollout.workers.inline import Here
from lit_agentrl.rollout.workers.process import ProcessSettings


@pytest.mark.slow
@pytest.mark.parametrize(("value", "warnings"), [(False, 0), (True, 1)])
def test_a_removed_option_is_dropped_and_said_where_it_did_something(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: bool, warnings: int
) -> None:
    cfg = composition.compose_job("train", ["reward=rnd"], composition.format_search_path([]))
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    cfg.run_dir = str(tmp_path)
    cfg.engine.compile = value
    cfg.callbacks.collapse.action = "stop"
    cfg.algo.entropy = {"_target_": "lit_agentrl.rl.policy.entropy.bonus", "_partial_": True, "coef": 0.01}
    cfg.reward.rnd.seed = "${seed}"
    del (
        cfg["dialect"],
        cfg["worlds"],
        cfg.env["hosting"],
        cfg.callbacks.transcripts["dialect"],
    )  # a group of later versions
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
    kinds = ("main", "command-line")  # another installation's, and the user's
    sources = [{"path": str(tmp_path), "schema": "file", "provider": kind} for kind in kinds]
    recorded = {"hydra": {"runtime": {"config_sources": sources}}}
    OmegaConf.save(recorded, tmp_path / ".hydra" / "hydra.yaml")
    found, folders = read_saved_config(tmp_path, "resume", trusted=True)
    assert folders == [str(tmp_path)]
    assert instantiate(found.callbacks.collapse).action.ends and instantiate(found.algo.entropy).coef == 0.01
    assert found.worlds.delay == 0 and "hosting" not in found.env
    assert found.dialect._target_ == "lit_agentrl.text.dialects.answer.Answer"
    assert "seed" not in found.reward.rnd and found.reward.rnd.features == cfg.reward.rnd.features
    assert "compile" not in found.engine and found.engine.num_slots == cfg.engine.num_slots
    assert [r.getMessage()[:19] for r in caplog.records] == ["compile=True of the"] * warnings


def test_a_run_of_a_gpu_is_resumed_on_a_cpu(tmp_path: Path) -> None:
    """Where there is no GPU, the message asks for this option."""
    cfg = composition.compose_job("train", ["trainer.accelerator=gpu"], composition.format_search_path([]))
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
    OmegaConf.save({"hydra": {"runtime": {"config_sources": []}}}, tmp_path / ".hydra" / "hydra.yaml")
    found, _ = read_resumed_config(tmp_path, ["trainer.accelerator=cpu"])
    assert found.trainer.accelerator == "cpu"


def test_a_loss_of_groups_that_was_an_advantage_is_one() -> None:
    """A run folder of ``algo=gvpo`` from when its advantages were computed anew before each step."""
    part = {"_target_": "lit_agentrl.rl.ratios.none", "_partial_": True}
    old = {
        "_target_": "lit_agentrl.rl.algorithm.Algorithm", "name": "gvpo", "ratio": part, "clip": part, "kl": None,
        "advantage": {"_target_": "lit_agentrl.rl.gvpo.gvpo", "_partial_": True, "beta": 0.2},
    }  # fmt: skip
    made = instantiate(_drop_removed(rename_targets({"algo": old}))["algo"])
    assert (
        isinstance(made, GroupLoss) and made.loss_of_groups.keywords == {"beta": 0.2} and made.name == "gvpo"
    )
    made.try_out(TrajectoryBatch.make_toy().to_dict())


@pytest.mark.parametrize(
    ("axis", "target"), [("aggregate", "aggregation.token_sum"), ("correction", "correction.masked")]
)
def test_a_loss_that_is_no_more_is_not_resumed_as_another(tmp_path: Path, axis: str, target: str) -> None:
    old = {
        "advantage": {"_target_": "lit_agentrl.rl.gvpo.gvpo"},
        axis: {"_target_": f"lit_agentrl.rl.{target}"},
    }
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save({"algo": old}, tmp_path / ".hydra" / "config.yaml")
    OmegaConf.save({}, tmp_path / ".hydra" / "hydra.yaml")
    with pytest.raises(
        UserError, match=f"gvpo with algo.{axis}={target.split('.')[1]}, a loss that this version"
    ):
        read_saved_config(tmp_path, "resume")


def test_an_optimizer_of_the_critic_is_one_like_any_other() -> None:
    old = {"_target_": "lit_agentrl.modules.critic.CriticOptim", "lr": 1e-4}
    assert _drop_removed(rename_targets(old)) == {
        "_target_": "lit_agentrl.update.settings.OptimSettings",
        "lr": 1e-4,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "name", "max_waves"),
    [
        (["algo=remax"], "greedy.Greedy", None),
        (["algo=dapo"], "refill.Refill", 4),
        (["algo=cppo"], "refill.Refill", None),  # nothing read the limit
    ],
)
def test_rollouts_of_before_structures(
    tmp_path: Path, options: list[str], name: str, max_waves: int | None
) -> None:
    cfg = composition.compose_job("train", options, composition.format_search_path([]))
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"], cfg.algo["structure"]
    cfg.run_dir = str(tmp_path)
    cfg.rollout.max_waves = 4
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
    OmegaConf.save({}, tmp_path / ".hydra" / "hydra.yaml")
    found, _ = read_saved_config(tmp_path, "resume")
    assert found.algo.structure._target_ == f"lit_agentrl.rollout.structures.{name}"
    assert found.algo.structure.max_waves == max_waves and "max_waves" not in found.rollout
    build_parts(found, composition.make_task_loader())


@pytest.mark.parametrize(
    "old", [{}, {"_target_": "lit_agentrl.rollout.workers.process.ProcessSettings", "patience": 9}]
)
def test_workers_of_before_shares(old: dict[str, Any]) -> None:
    """They have all options, which can be given when the run is continued."""
    cfg: dict[str, Any] = {"worker": old}
    _add_worker(cfg)
    made = instantiate(cfg["worker"])
    assert made == (ProcessSettings(patience=9) if old else Here()) and cfg["worker"]["share"] is None


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [True, False])
def test_playing_ahead_of_before_workers(tmp_path: Path, overlap: bool) -> None:
    cfg = composition.compose_job("train", [], composition.format_search_path([]))
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"], cfg["worker"]
    cfg.run_dir = str(tmp_path)
    threads = 1 if overlap else None
    cfg.callbacks.profile = {"_target_": "lit_agentrl.callbacks.profile.Profile", "dirpath": str(tmp_path)}
    cfg.eval_cache = True  # of when the start could be taken over from another run
    cfg.rollout.update(overlap=overlap, overlap_device=None, overlap_threads=threads, overlap_patience=None)
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
    OmegaConf.save({}, tmp_path / ".hydra" / "hydra.yaml")
    saved = read_saved_config(tmp_path, "resume")[0]
    assert "eval_cache" not in saved and "profile" not in saved.callbacks
    worker = build_parts(saved, composition.make_task_loader()).worker
    assert worker == (ProcessSettings(threads=1) if overlap else Here())
