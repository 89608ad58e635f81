"""The script that teaches a pretrained model: its results file, its table, and all stages with a tiny network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.runs.jobs import Interrupted
from scripts import real, real_table
from tests.conftest import ROOT


def make_rows(seed: int, imitation: str, rl: str = "", game: str = "reverse_text") -> list[dict[str, Any]]:
    """The rows of a seed; without RL where there is no result of it."""
    rows = []
    for name, solved in {"start": "0000", "imitation": imitation, **({"RL": rl} if rl else {})}.items():
        success = solved.count("1") / len(solved)
        for at in ("T=1", "best T"):
            rows.append(
                {
                    "game": game, "seed": seed, "policy": f"{name}, {at}", "temperature": 1.0, "success": success,
                    "return": 0.0, "n": len(solved), "solved": solved, "minutes": "" if name == "start" else 3.0,
                    "iteration_s": "" if name == "start" else 2.0, "peak_gb": "" if name == "start" else 1.5,
                }
            )  # fmt: skip
    for level, value in (("chance", 0.25), ("oracle", 1.0)):
        rows.append({"game": game, "seed": seed, "policy": level, "success": value})
    return rows


def test_a_finished_seed_replaces_its_rows_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    real_table.add_rows(path, make_rows(1, "1000", "1100"))
    real_table.add_rows(path, make_rows(2, "1000", "1110"))
    real_table.add_rows(path, make_rows(1, "1100", "1111"))
    rows = real_table.read_rows(path)
    assert [(row["seed"], row["solved"]) for row in rows if row["policy"] == "RL, best T"] == [
        ("2", "1110"), ("1", "1111"),
    ]  # fmt: skip
    assert len(rows) == 16 and rows[0]["policy"] == "start, T=1"


def test_the_table_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    real_table.add_rows(path, make_rows(1, "1000", "1100"))
    one = real_table.summarise(real_table.read_rows(path)).splitlines()
    assert one[2] == "| reverse_text | chance | | 0.250 | | | |"
    # Wilson's interval of 2 of 4
    assert one[8] == "| reverse_text | RL, best T | 1 | 0.500 [0.150, 0.850] | 1 x 4 | 3.0 | 1.5 GB |"
    # differences of tasks 0, 1, 0, 0: mean 0.25, standard error 0.25, t = 3.182
    difference = "| reverse_text | {} | best of each | +0.250 [-0.546, +1.046] | 1 x 4 | | |"
    assert one[10:] == [difference.format(pair) for pair in ("imitation less start", "RL less imitation")]
    real_table.add_rows(path, make_rows(2, "1000", "1111"))
    two = real_table.summarise(real_table.read_rows(path)).splitlines()
    # differences of seeds 0.25 and 0.75: standard error 0.25, t = 12.706
    assert (
        two[11] == "| reverse_text | RL less imitation | best of each | +0.500 [-2.677, +3.677] | 2 x 4 | | |"
    )
    averaged = real_table.average(real_table.read_rows(path))["reverse_text"]
    assert averaged["RL, best T"] == {"success": 0.75, "iteration_s": 2.0}
    assert averaged["start, T=1"] == {"success": 0.0}


def test_a_game_without_reinforcement_has_no_rows_of_it(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    real_table.add_rows(path, make_rows(1, "1000", "1100"))
    real_table.add_rows(path, make_rows(1, "1110", game="guess_number"))
    lines = real_table.summarise(real_table.read_rows(path)).splitlines()
    assert [line.split(" | ")[1] for line in lines if line.startswith("| guess_number")] == [
        "chance", "start, T=1", "start, best T", "imitation, T=1", "imitation, best T", "oracle",
        "imitation less start",
    ]  # fmt: skip
    assert lines[-1].startswith("| guess_number | imitation less start | best of each | +0.750 [")
    assert not any("–" in line for line in lines)


def test_a_damaged_file_and_other_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.csv"
    real_table.add_rows(path, make_rows(1, "0000", "0011"))
    whole = path.read_text()
    for damaged in (whole.replace("0011", "11"), whole.replace("solved", "won"), whole[:-20], "x"):
        path.write_text(damaged)
        with pytest.raises(SystemExit, match=r"results.csv is damaged"):
            real_table.read_rows(path)
    path.write_text(whole.replace(",32-true,", ",,"))
    with pytest.raises(SystemExit, match="trains in 32-true; choose another --results"):
        real_table.require_equal_precision(path, "32-true")
    written = tmp_path / "rl" / ".hydra" / "overrides.yaml"
    written.parent.mkdir(parents=True)
    written.write_text("- seed=1\n- model.name=/elsewhere/seed-1/imitation/hf\n")
    moved = f"model.name={tmp_path}/imitation/hf"
    real.require_equal_options(tmp_path, "rl", ["seed=1", moved])
    with pytest.raises(
        SystemExit, match=r"rl began with optim.lr=None, and this call has optim.lr=1; choose"
    ):
        real.require_equal_options(tmp_path, "rl", ["seed=1", moved, "optim.lr=1"])
    with pytest.raises(
        SystemExit, match=r"rl began with model.name=/elsewhere.*, and this call has model.name=/x;"
    ):
        real.require_equal_options(tmp_path, "rl", ["seed=1", "model.name=/x"])
    with pytest.raises(SystemExit):
        real.main(["--smoke", "--precision", "16-mixed"])
    assert "--smoke has its own model and precision" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Interrupted("folder"), 130, "interrupted; the same command continues\n"),
        (ValueError("the index cannot be reached"), "error: the index cannot be reached", ""),
    ],
)
def test_an_interruption_and_wrong_input_end_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: object,
    line: str,
) -> None:
    def fetch(name: str) -> Path:
        raise error

    monkeypatch.setattr(sys, "argv", ["real"])
    monkeypatch.setattr(real, "fetch", fetch)
    with pytest.raises(SystemExit) as ended:
        real.run()
    assert (ended.value.code, capsys.readouterr().err) == (code, line)


def test_the_protocol_names_games_that_exist() -> None:
    assert all((ROOT / "conf" / "env" / f"{name}.yaml").exists() for name in real.GAMES)


@pytest.mark.slow
@pytest.mark.parametrize("game", real.GAMES)
def test_every_stage_with_a_tiny_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], game: str
) -> None:
    call = ["--smoke", "--games", game, "--folder", str(tmp_path)]
    real.main(call)
    before = (tmp_path / "table.md").read_text()
    assert f"| {game} | oracle | | 1.000 | | | |" in before
    policies = 3 if real.GAMES[game].reinforce else 2
    assert before.count("1 x 8") == policies * 2 + policies - 1
    stages = tmp_path / game / "seed-1"
    assert (stages / "rl").exists() == (policies == 3)
    (stages / ("rl_test.json" if policies == 3 else "imitation_test.json")).unlink()
    capsys.readouterr()
    real.main(call)  # plays what is missing, and trains nothing
    assert capsys.readouterr().out.count("playing 8 episodes") == 1
    assert (tmp_path / "table.md").read_text() == before


@pytest.mark.parametrize(
    "capabilities, precision",
    [
        ({"amx_bf16": True}, "bf16-mixed"),
        ({"amx_bf16": False, "avx512_bf16": True}, "bf16-mixed"),
        ({"amx_bf16": False, "avx512_bf16": False}, "32-true"),
        ({}, "32-true"),
    ],
)
def test_updates_take_bfloat16_where_the_cpu_multiplies_it(
    capabilities: dict[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real, "read_cpu_capabilities", lambda: capabilities)
    assert real.choose_precision("cpu") == precision
