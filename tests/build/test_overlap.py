"""Overlap and its correction: what is chosen, what is said, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from omegaconf import DictConfig

from lit_agentrl.build.overlap import add_correction
from lit_agentrl.build.parts import build_parts
from lit_agentrl.build.structure import build_algorithm
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.composition import initialize_hydra, make_task_loader
from lit_agentrl.facts import IN_ORDER, PLAYED_HERE
from lit_agentrl.models.policy import NANO_FOLDER
from lit_agentrl.rl.policy.algorithm import Algorithm
from lit_agentrl.rl.policy.correction import masked, truncated
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.workers.inline import Here
from lit_agentrl.rollout.workers.process import ProcessSettings
from lit_agentrl.runs.record import flatten_hyperparameters
from lit_agentrl.strategies.hooks import get_hooks
from tests.rl.test_algo_configs import ALGORITHMS


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    with initialize_hydra():
        yield


def config(*overrides: str) -> DictConfig:
    cfg = compose("train", overrides=["env=bandit", *overrides])
    cfg.run_dir = "."
    return cfg


SWEEP = [pytest.mark.slow, pytest.mark.sweep]


@pytest.mark.parametrize(
    "algo", [name if name == "grpo" else pytest.param(name, marks=SWEEP) for name in ALGORITHMS]
)
def test_every_algorithm_gets_the_truncated_correction(algo: str) -> None:
    teacher = [f"reference.path={NANO_FOLDER}"] if algo == "distill" else []
    cfg = config(f"algo={algo}", "rollout.overlap=true", *teacher)
    asked = {getattr(each, "fact", each) for each in build_algorithm(cfg)[1].requires}
    if asked & {IN_ORDER, PLAYED_HERE}:
        with pytest.raises(ValueError, match=r"set .*rollout\.overlap=false"):
            build_parts(cfg, make_task_loader())
        return
    algorithm = build_parts(cfg, make_task_loader()).algorithm
    if not isinstance(algorithm, Algorithm):  # a loss of groups, whose log-probs may be those of any policy
        assert "correction" not in cfg.algo and algorithm.unit is not None
        return
    assert algorithm.correction is not None and algorithm.correction.func is truncated


def test_the_choice_is_said_once_and_recorded() -> None:
    cfg = config("rollout.overlap=true")
    assert "algo/correction=truncated (cap 2) is applied" in add_correction(cfg)
    assert add_correction(cfg) == ""
    assert flatten_hyperparameters(dict(cfg))["algo.correction"] == "truncated"


def test_a_correction_of_the_users_stays() -> None:
    cfg = config("rollout.overlap=true", "algo/correction=masked")
    assert add_correction(cfg) == ""
    assert build_algorithm(cfg)[0].correction.func is masked
    capped = config("rollout.overlap=true", "algo/correction=truncated", "algo.correction.cap=5")
    assert build_parts(capped, make_task_loader()).algorithm.correction.keywords == {"cap": 5}  # type: ignore[union-attr]


def test_without_overlap_nothing_is_added() -> None:
    cfg = config()
    assert add_correction(cfg) == "" and build_parts(cfg, make_task_loader()).algorithm.correction is None


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *overrides: str) -> str:
    with pytest.raises(SystemExit):
        main_train(["env=bandit", f"hydra.run.dir={folder / 'run'}", *overrides])
    error = capsys.readouterr().err.strip()
    assert "\n" not in error and not (folder / "run").exists()
    return error


def test_no_correction_is_refused_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    error = refused(capsys, tmp_path, "rollout.overlap=true", "algo/correction=none")
    assert "use algo/correction=truncated or masked, or rollout.overlap=false" in error


def test_no_worker_is_refused_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    error = refused(capsys, tmp_path, "rollout.overlap=true", "worker=none")
    assert "use worker=process, or rollout.overlap=false" in error


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("option", ["device", "threads", "patience"])
def test_options_that_moved_are_told(option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    error = refused(capsys, tmp_path, "rollout.overlap=true", f"rollout.overlap_{option}=2")
    assert error.endswith(f"rollout.overlap_{option} was removed; write worker=process worker.{option}=…")


def test_who_plays() -> None:
    def worker(*overrides: str) -> Any:
        return build_parts(config(*overrides), make_task_loader()).worker

    assert worker() == Here()
    assert worker("worker.share=2", "rollout.overlap=true") == ProcessSettings(share=2)
    assert worker("worker=process", "worker.threads=2") == ProcessSettings(threads=2)
    assert worker("rollout.overlap=true") == ProcessSettings()
    assert worker("rollout.overlap=true", "worker=process", "worker.patience=9") == ProcessSettings(
        patience=9
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, r"^threads=0 must be a whole number from 1 to 1024"),
        ({"threads": 1.5}, r"^threads=1\.5 must be a whole number"),
        ({"patience": 0}, r"^patience=0 must be a number > 0, in seconds"),
        ({"share": 0}, r"^share=0 must be a whole number >= 1"),
        ({"count": 0, "share": 1}, r"^count=0 must be a whole number from 1 to 256"),
        ({"count": 2}, r"^count=2 workers divide a wave into shares, .* set worker\.share"),
        ({"attempts": 0}, r"^attempts=0 must be a whole number >= 1"),
        ({"device": ["cpu", "gpu"]}, r"^device=gpu cannot be used here"),
        ({"device": "gpu"}, r"^device=gpu cannot be used here \(.*gpu"),
        ({"device": "cuda:99"}, r"^device=cuda:99 cannot be used here"),
        ({"device": "meta"}, r"^device=meta cannot be used here"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProcessSettings(**options)
    ProcessSettings(device="cpu", threads=1)
    with pytest.raises(ValueError, match=r"^overlap=1 must be true or false"):
        RolloutSettings(prompts=1, members=1, overlap=1)  # type: ignore[arg-type]


def test_a_bad_option_of_the_worker_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    error = refused(capsys, tmp_path, "worker=process", "worker.threads=0")
    assert error.endswith("worker.threads=0 must be a whole number from 1 to 1024")
    error = refused(capsys, tmp_path, "worker.count=2")
    assert error.endswith("worker=none has no option count; worker.count belongs to worker=process, ray")
    error = refused(capsys, tmp_path, "worker.threads=2")
    assert "worker.threads=2 acts on shares alone; set worker.share too" in error


def test_strategies_that_shard_weights_say_so() -> None:
    """No worker plays under them."""
    whole, cut = (SingleDeviceStrategy(torch.device("cpu")), DDPStrategy()), FSDPStrategy()
    assert not any(get_hooks(strategy).is_sharded for strategy in whole) and get_hooks(cut).is_sharded
