"""A whole small run in this process: start, fit, best and last, evaluation, export."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_agentrl.callbacks.transcript_lines import read as read_transcripts
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.composition import load_option
from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.engines.served import vllm_setup
from lit_agentrl.envs.base import Outcome, Task
from lit_agentrl.envs.games.bandit import Bandit
from lit_agentrl.envs.world import World
from lit_agentrl.models.onednn import _CACHE_SIZE, _CAPACITIES
from lit_agentrl.report import summary as reports
from lit_agentrl.runs import training
from tests.commands import Refused

SMALL = [
    "rollout.prompts=3", "rollout.members=4", "rollout.max_reply_tokens=24", "rollout.max_context_tokens=400",
    "val.episodes=2", "val.every=1", "test.episodes=2", "trainer.max_epochs=2", "engine.num_slots=8",
    "callbacks.transcripts.every=1",
]  # fmt: skip
WITHOUT_TEST = ["test.episodes=0" if option.startswith("test.") else option for option in SMALL]


@pytest.fixture
def open_games(monkeypatch: pytest.MonkeyPatch) -> list[Bandit]:
    """Those that are made and not closed."""
    found: list[Bandit] = []
    make = Task.make

    def made(self: Task, split: str) -> World:
        game = make(self, split)
        found.append(game)  # type: ignore[arg-type]
        return game

    monkeypatch.setattr(Task, "make", made)
    monkeypatch.setattr(Bandit, "close", lambda self: found.remove(self))
    return found


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two games, a KL to the reference, two passes of two minibatches."""
    folder = tmp_path_factory.mktemp("run") / "mixed"
    main_train(
        [
            *SMALL, f"hydra.run.dir={folder}", "env=mixture", "env.weights={bandit: 1.0, frozen_lake: 2.0, sokoban: 0}",
            "val.envs=[bandit,bandit_reversed]", "algo/kl=loss_k3", "algo/entropy=bonus", "filter.ratio=0.7",
            "update.epochs=2", "update.minibatches=2",
        ]
    )  # fmt: skip
    return folder


def test_the_run_folder_is_complete(mixed_run: Path) -> None:
    names = {path.name for path in mixed_run.iterdir()}
    assert {
        ".hydra",
        "summary.json",
        "metrics.csv",
        "tensorboard",
        "transcripts",
        "checkpoints",
        "hf",
    } <= names
    summary = reports.read(mixed_run / "summary.json")
    assert summary["status"] == "completed" and summary["iterations"] == 2 and summary["episodes"] == 24
    assert {(g["name"], g["split"]) for g in summary["games"]} == {
        ("bandit", "val"), ("bandit_reversed", "val"), ("bandit", "test"), ("frozen_lake", "test"),
    }  # fmt: skip
    for game in summary["games"]:
        assert game["chance"] and game["oracle"] and game["start"] and game["best"] and game["last"]
    assert summary["action_tokens"] > 0 and summary["seconds"]["rollout"] > 0


def test_metrics_have_the_promised_names(mixed_run: Path) -> None:
    with (mixed_run / "metrics.csv").open(newline="") as file:
        start, first, second = csv.DictReader(file)
    assert start["iteration"] == "0" and start["val/success"] and not start["rollout/success"]
    promised = [
        *(f"rollout/{n}" for n in (
            "return_mean", "return_std_within_group", "success", "turns", "actions", "reply_tokens", "invalid_share",
            "dead_group_share", "truncated_share", "entropy", "distinct_2",
        )),
        *(f"train/{n}" for n in (
            "loss", "grad_norm", "approx_kl", "clip_share_low", "clip_share_high", "ratio_max", "kept_group_share",
            "entropy", "lr", "ref_kl",
        )),
        "val/success", "val/return", "val/normalised", "val/bandit_reversed/success", "time/rollout", "time/env",
        "time/update",
        "speed/action_tokens_per_s", "speed/episodes_per_s", "speed/prefill_reuse",
    ]  # fmt: skip
    for row in (first, second):
        assert [name for name in promised if not row[name]] == []
    assert float(first["speed/prefill_reuse"]) == 1.0
    assert float(first["speed/shared_prefill"]) > 0  # the members of a group begin alike
    assert 0 < float(first["train/logp_gap_max"]) < 1e-4  # nats: what was recorded is what training computes
    assert float(second["train/kept_group_share"]) == pytest.approx(2 / 3)


def test_tensorboard_shows_the_same(mixed_run: Path) -> None:
    events = EventAccumulator(str(mixed_run / "tensorboard")).Reload()
    steps = [event.step for event in events.Scalars("val/success")]
    assert steps == [0, 1, 2]
    assert any("train" in tag or "val" in tag for tag in events.Tags()["tensors"]), "transcripts as text"


def test_transcripts_can_be_read_back(mixed_run: Path) -> None:
    records = list(read_transcripts(mixed_run / "transcripts" / "train.jsonl"))
    assert {iteration for iteration, _ in records} == {1, 2}
    assert all(len(episode.turns[0].reply_tokens) for _, episode in records)


def test_the_export_is_the_best_policy(mixed_run: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(mixed_run / "hf")
    best = torch.load(mixed_run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, best[f"network.{name}"])
    assert AutoTokenizer.from_pretrained(mixed_run / "hf").chat_template


@pytest.mark.slow
@pytest.mark.sweep
def test_evaluate_any_game_split_and_temperature(mixed_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_evaluate(
        [
            f"run={mixed_run}", "env=[bandit,frozen_lake]", "split=val", "episodes=4", "members=3",
            "pass_k=[1,2]", "temperature=[1.0,0.5]", "checkpoint=best",
        ]
    )  # fmt: skip
    [file] = (mixed_run / "evaluations").glob("best_val_*.json")
    results = json.loads(file.read_text())["results"]
    assert [(r["env"], r["temperature"]) for r in results] == [
        ("bandit", 1.0), ("frozen_lake", 1.0), ("bandit", 0.5), ("frozen_lake", 0.5),
    ]  # fmt: skip
    for record in results:
        assert record["episodes"] == 12 and len(record["solved"]) == 12
        assert record["pass@1"]["mean"] == pytest.approx(record["success"]["mean"])
        assert record["pass@2"]["mean"] >= record["pass@1"]["mean"]
    told = capsys.readouterr().out
    assert "playing 12 episodes each of bandit, frozen_lake, split val, temperature 0.5 …\n" in told
    # other options write another file, equal ones the same
    for _ in range(2):
        main_evaluate(
            [f"run={mixed_run}", "env=[bandit,frozen_lake]", "split=val", "episodes=2", "checkpoint=best"]
        )
    assert len(list((mixed_run / "evaluations").glob("best_val_*.json"))) == 2
    assert json.loads(file.read_text())["results"] == results


@pytest.mark.slow
@pytest.mark.sweep
def test_evaluate_needs_no_device_of_the_training(mixed_run: Path, tmp_path: Path) -> None:
    """As on a machine without the GPUs that played ahead; ``gpu`` is there on some machines, ``cuda:99`` on none."""
    shutil.copytree(mixed_run / ".hydra", tmp_path / ".hydra")
    cfg = OmegaConf.load(tmp_path / ".hydra" / "config.yaml")
    cfg.trainer.accelerator, cfg.trainer.devices = "gpu", 4
    cfg.rollout.overlap, cfg.rollout.overlap_device, cfg.rollout.overlap_threads = True, "cuda:99", 2
    OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
    main_evaluate([f"run={tmp_path}", "env=bandit", "episodes=2", "checkpoint=start"])
    assert len(list((tmp_path / "evaluations").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_is_evaluated_with_another_engine(
    mixed_run: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was trained with vLLM, which is not here."""
    shutil.copytree(mixed_run, tmp_path, dirs_exist_ok=True)
    config = tmp_path / ".hydra" / "config.yaml"
    cfg = OmegaConf.load(config)
    cfg.engine = {**load_option("engine", "vllm"), "num_slots": 3}
    OmegaConf.save(cfg, config)
    monkeypatch.setattr(vllm_setup, "find_spec", lambda name: None)
    asked = f"run={tmp_path} env=bandit episodes=2"
    assert "needs vLLM, which has" in (said := refused(asked, main_evaluate)) and "engine=native" in said
    assert "engine=openai needs engine.url" in refused(f"{asked} engine=openai", main_evaluate)
    assert "no option engine=nativ; valid:" in refused(f"{asked} engine=nativ", main_evaluate)
    main_evaluate([*asked.split(), "engine=native"])
    [file] = (tmp_path / "evaluations").glob("last_test_bandit_seed0*.json")
    assert json.loads(file.read_text())["config"]["engine"] == "native"


@pytest.mark.slow
@pytest.mark.sweep
def test_few_products_are_kept_prepared_unless_the_user_says_how_many(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Of a run whose prompt leaves no room for a reply, which is refused."""
    of_onednn, of_torch = _CAPACITIES
    monkeypatch.setenv(of_onednn, "77")
    monkeypatch.setenv(of_torch, "")  # put back at the end
    monkeypatch.delenv(of_torch)
    with pytest.raises(SystemExit):
        model = ["model=hf", f"model.name={tiny_model_folder}", "prompt=full"]
        main_train([*SMALL, f"hydra.run.dir={tmp_path / 'r'}", *model])
    assert "rollout.max_context_tokens=400 leaves no room for a reply" in capsys.readouterr().err
    assert (os.environ[of_onednn], os.environ[of_torch]) == ("77", str(_CACHE_SIZE))


@pytest.mark.slow
@pytest.mark.sweep
def test_a_game_that_fails_in_validation_alone_stops_the_run_too(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    open_games: list[Bandit],
) -> None:
    real, plays = Bandit._play, Counter[str]()

    def broken(self: Bandit, action: str) -> Outcome:
        plays[self.split] += 1
        if self.split == "val" and plays["val"] % 2:
            raise RuntimeError("no such level")
        return real(self, action)

    monkeypatch.setattr(Bandit, "_play", broken)
    with pytest.raises(SystemExit):
        main_train([*WITHOUT_TEST, f"hydra.run.dir={tmp_path / 'r'}", "env=bandit"])
    error = capsys.readouterr().err.strip()
    assert "game bandit instance seed" in error and "no such level" in error and "Traceback" not in error
    assert "rollout.max_failed_share" in error
    assert not open_games, "those that did not fail are closed too"
    assert reports.read(tmp_path / "r" / "summary.json")["status"] == "failed"


@pytest.mark.slow
@pytest.mark.sweep
def test_an_interrupted_run_closes_its_games_and_leaves_the_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_games: list[Bandit]
) -> None:
    real = Bandit._play

    def interrupted(self: Bandit, action: str) -> Outcome:
        if len(open_games) > 1:  # no more than one is tried at start
            raise KeyboardInterrupt
        return real(self, action)

    left: list[bool] = []
    monkeypatch.setattr(Bandit, "_play", interrupted)
    monkeypatch.setattr(training, "get_hooks", lambda _: StrategyHooks(close=lambda: left.append(True)))
    with pytest.raises(SystemExit) as stop:
        main_train([*WITHOUT_TEST, f"hydra.run.dir={tmp_path / 'r'}", "env=bandit"])
    assert stop.value.code == 130 and left and not open_games
    assert reports.read(tmp_path / "r" / "summary.json")["error"] == "interrupted"


BROKEN = [  # 1e60 of each weight is taken off it
    "optim.lr=1e30", "optim.optimizer._target_=torch.optim.SGD", "~optim.optimizer.betas",
    "optim.optimizer.weight_decay=1e30",
]  # fmt: skip


@pytest.mark.slow
def test_weights_that_are_not_finite_end_the_run_as_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main_train([*WITHOUT_TEST, f"hydra.run.dir={tmp_path / 'r'}", "env=bandit", *BROKEN])
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 1 and error.count("\n") == 0
    assert "the weights after 1 optimizer steps are not finite" in error and "no earlier checkpoint" in error
    summary = reports.read(tmp_path / "r" / "summary.json")
    assert summary["status"] == "failed" and summary["error"] in error and summary["iterations"] == 0
    assert not (tmp_path / "r" / "checkpoints").exists()
