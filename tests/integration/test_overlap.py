"""Playing ahead in whole runs: always one update old, corrected, and as exact as without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lit_agentrl.callbacks.transcript_lines import read as read_transcripts
from lit_agentrl.cli.train import main as main_train
from tests.conftest import ROOT
from tests.integration.conftest import TINY, assert_equal_runs, outcome

pytestmark = pytest.mark.usefixtures("one_thread")

AHEAD = "rollout.overlap=true"
EVERY = "callbacks.transcripts.every=1"
TINIER = [option for option in TINY if not option.startswith("callbacks.")]


def train(folder: Path, iterations: int, *options: str) -> list[dict[str, str]]:
    given = {option.split("=")[0] for option in options}
    tiny = [option for option in TINIER if option.split("=")[0] not in given]
    main_train([*tiny, EVERY, *options, f"trainer.max_epochs={iterations}", f"hydra.run.dir={folder}"])
    return outcome(folder)[1]


def rollouts(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: row[name] for name in row if name.startswith("rollout/")} for row in rows]


@pytest.mark.slow
@pytest.mark.sweep
def test_episodes_are_those_of_the_weights_one_update_ago(tmp_path: Path) -> None:
    """Iteration 2 is played with the start weights, as a run that learns nothing plays it; iteration 3 is not."""
    options = ("update.epochs=2", "update.minibatches=2", "optim.lr=1e-3")
    ahead = train(tmp_path / "ahead", 3, AHEAD, *options)
    plain = train(tmp_path / "plain", 3, "algo/correction=truncated", *options)
    frozen = train(tmp_path / "frozen", 3, "algo/correction=truncated", *options[:2], "optim.lr=1e-30")
    assert [row["train/staleness"] for row in ahead[1:]] == ["0.0", "4.0", "4.0"]
    assert rollouts(ahead)[:3] == rollouts(frozen)[:3]
    assert rollouts(plain)[1] == rollouts(ahead)[1] and rollouts(plain)[2] != rollouts(ahead)[2]
    assert rollouts(ahead)[3] not in (rollouts(plain)[3], rollouts(frozen)[3])
    versions: dict[int, set[int]] = {}
    for iteration, episode in read_transcripts(tmp_path / "ahead" / "transcripts" / "train.jsonl"):
        versions.setdefault(iteration, set()).update(turn.policy_version for turn in episode.turns)
    assert versions == {1: {0}, 2: {0}, 3: {4}}
    # the first iteration is fresh, its update that of a run without overlap; later ones are weighted
    assert ahead[1]["val/success"] == plain[1]["val/success"]
    assert float(ahead[1]["train/correction_max"]) == pytest.approx(1.0, abs=1e-5)
    for row in ahead[2:]:
        assert 1.001 < float(row["train/correction_max"]) <= 2.0
        assert float(row["train/correction"]) == pytest.approx(1.0, abs=0.2)
        assert float(row["train/logp_gap"]) > 1e-4
    assert "train/staleness" not in plain[1]


@pytest.mark.slow
@pytest.mark.sweep
def test_the_correction_acts_and_its_cap_holds(tmp_path: Path) -> None:
    """Equal episodes in iteration 2; a tighter cap leads to other weights, and is what the largest weight is."""
    options = (AHEAD, "algo/correction=truncated", "optim.lr=1e-3")
    loose, tight = tmp_path / "loose", tmp_path / "tight"
    rows_loose = train(loose, 2, *options)
    rows_tight = train(tight, 2, *options, "algo.correction.cap=1.0")
    assert rollouts(rows_loose) == rollouts(rows_tight)
    assert float(rows_loose[2]["train/correction_max"]) > 1.001
    assert rows_tight[2]["train/correction_max"] == "1.0"
    assert float(rows_tight[2]["train/correction"]) < float(rows_loose[2]["train/correction"])
    assert rows_loose[2]["train/loss"] != rows_tight[2]["train/loss"]
    weights_loose, weights_tight = outcome(loose)[0], outcome(tight)[0]
    assert any(not torch.equal(weights_loose[name], weights_tight[name]) for name in weights_loose)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_playing_process_that_fails_ends_the_run_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's file is broken for the process that starts after the run has loaded it."""
    (tmp_path / "fragile.py").write_text(
        "from lit_agentrl.engines.native.engine import NativeEngine\n"
        "class Fragile(NativeEngine):\n"
        "    import multiprocessing\n"
        "    if multiprocessing.parent_process() is not None:\n"
        "        raise OSError('the licence server is away')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit):
        train(tmp_path / "run", 2, AHEAD, "engine._target_=fragile.Fragile")
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("error: the playing process (worker=process) failed: OSError: the lic")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed" and "the licence server is away" in summary["error"]


OWN = ("--config-dir", str(ROOT / "examples" / "own_worker" / "conf"), "worker=second_copy")


@pytest.mark.slow
@pytest.mark.sweep
def test_a_worker_plays_what_the_trainer_would(tmp_path: Path) -> None:
    """Weights, rows and transcripts, with greedy episodes, several waves, and two steps an iteration."""
    waves = (
        "env=frozen_lake",
        "filter=dynamic_sampling",
        "algo.structure.max_waves=3",
        "update.minibatches=2",
    )
    tail = ("rollout.max_context_tokens=300", "optim.lr=1e-3")
    shares = ("worker.count=2", "worker.share=1")  # three of them in the first wave
    for name, options, of_pool in (
        ("greedy", ("algo=remax", "rollout.prompts=3"), shares),
        ("waves", waves, ()),
    ):
        plain, there = tmp_path / f"{name}_none", tmp_path / f"{name}_process"
        rows = train(plain, 3, *options, *of_pool[1:], *tail)
        train(there, 3, "worker=process", *options, *of_pool, *tail)
        assert_equal_runs(plain, there)
    assert max(float(row["rollout/waves"]) for row in rows[1:]) > 1
    assert "train/staleness" not in rows[1]
    train(tmp_path / "own", 3, *OWN, *waves, *tail)
    assert_equal_runs(plain, tmp_path / "own")


@pytest.mark.slow
@pytest.mark.sweep
def test_a_worker_of_ones_own_plays_ahead_as_the_process_does(tmp_path: Path) -> None:
    process, own = tmp_path / "process", tmp_path / "own"
    train(process, 3, AHEAD, "optim.lr=1e-3")
    train(own, 3, AHEAD, *OWN, "optim.lr=1e-3")
    assert_equal_runs(process, own)


EVERYTHING = [  # waves, parts that learn, two players, a mixture, a window
    "env=mixture", "env.weights={bandit: 0, frozen_lake: 2.0, sokoban: 1.0}", "context=window",
    "rollout.max_context_tokens=300", "filter=dynamic_sampling", "algo.structure.max_waves=3", "algo/ratio=token",
    "reward=[count,rnd,delta,potential]", "worker=process", "worker.count=2", "worker.share=1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sweep
def test_same_seed_same_bits_and_resume_after_a_finished_run(tmp_path: Path) -> None:
    """Four iterations straight equal two, then a longer target through resume=."""
    given = {option.split("=")[0] for option in EVERYTHING}
    options = [AHEAD, "optim.lr=1e-3", *EVERYTHING]
    tiny = [option for option in TINY if option.split("=")[0] not in given]
    straight, extended = tmp_path / "straight", tmp_path / "extended"
    for folder, iterations in ((straight, 4), (extended, 2)):
        main_train([*tiny, *options, f"trainer.max_epochs={iterations}", f"hydra.run.dir={folder}"])
    main_train([f"resume={extended}", "trainer.max_epochs=4"])
    assert_equal_runs(straight, extended)
    rows = outcome(straight)[1]
    assert [float(row["train/staleness"]) for row in rows[1:]] == [0.0, 1.0, 1.0, 1.0]
    if "filter=dynamic_sampling" in options:
        assert max(float(row["rollout/waves"]) for row in rows[2:]) > 1


@pytest.mark.long
def test_the_better_arm_is_learnt(tmp_path: Path) -> None:
    """As in test_learning, with episodes that are one update old."""
    folder = tmp_path / "run"
    main_train(
        [
            "env=bandit", "env.game.payoff=expected", "test.episodes=256", "val.episodes=8", "val.every=1000",
            "callbacks.transcripts.every=1000", "optim.lr=2e-4", AHEAD, "trainer.max_epochs=25",
            f"hydra.run.dir={folder}",
        ]
    )  # fmt: skip
    games = json.loads((folder / "summary.json").read_text())["games"]
    (game,) = [each for each in games if each["split"] == "test"]
    start, last = game["start"]["success"], game["last"]["success"]
    print(f"{start['mean']:.3f} -> {last['mean']:.3f} [{last['low']:.3f}, {last['high']:.3f}]")
    assert last["mean"] >= start["mean"] + 0.15 and last["low"] > start["high"]
