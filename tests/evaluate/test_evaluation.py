"""The record and the table of an evaluation, from made-up outcomes."""

from __future__ import annotations

import io
import itertools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.episode import EndReason, Outcome
from lit_agentrl.evaluate.score_table import _format_estimate, build_table
from lit_agentrl.evaluate.scores import make_record
from lit_agentrl.report.statistics import estimate_best_of_k
from tests.commands import Refused
from tests.rewards.test_model import model as reward_model

LEVELS = {"chance_success": 0.035, "oracle_success": 1.0, "chance_return": None, "oracle_return": None}


def outcomes(solved: Sequence[Sequence[bool]], failed: int = 0) -> list[Outcome]:
    """Episodes of each instance, of which the first ``failed`` have failed."""
    flat = [(group, member, each) for group, row in enumerate(solved) for member, each in enumerate(row)]
    return [
        Outcome(
            wave=0, group=group, member=member, end=EndReason.ERROR if number < failed else EndReason.SUCCESS,
            success=each, total_reward=10.0 * group, turns=1, taken=1, actions=1, invalid=0, surplus=0, tokens=2,
            entropy=0.1, task_name="sokoban", error="",
        )
        for number, (group, member, each) in enumerate(flat)
    ]  # fmt: skip


def recorded(solved: Sequence[Sequence[bool]], failed: int = 0, **options: Any) -> tuple[Any, dict[str, Any]]:
    cfg = OmegaConf.create({"split": "test", "members": len(solved[0]), "pass_k": [1, 4], **options})
    return cfg, make_record(cfg, "sokoban", 1.0, outcomes(solved, failed), LEVELS, model="best weights")


def test_pass_at_k_lies_within_0_and_1_and_rests_on_instances() -> None:
    nearly = [[True] * 8] * 11 + [[True] * 4 + [False] * 4]
    for solved, name in ((nearly, "pass@4"), ([[not each for each in row] for row in nearly], "pass@1")):
        _, record = recorded(solved)
        found = record[name]
        assert 0 <= found["low"] < found["mean"] < found["high"] <= 1 and found["n"] == 12
        assert record["pass@1"] == record["success"]
    certain = recorded([[True] * 4] * 3)[1]["pass@4"]
    assert certain["high"] == certain["mean"] == 1 and certain["low"] < 0.6


def test_returns_are_of_instances_not_of_episodes() -> None:
    by_member = recorded([[True, False] * 8] * 3)[1]["return"]
    alone = recorded([[True]] * 3, pass_k=[])[1]["return"]
    assert by_member == alone and by_member["n"] == 3
    # 0, 10, 20: s = 10, t_2 = 4.303
    assert by_member["high"] - 10 == pytest.approx(4.303 * 10 / 3**0.5, rel=1e-3)


def test_what_cannot_be_known_is_null_and_a_dash() -> None:
    cfg, record = recorded([[True] * 4], failed=1)
    assert record["pass@4"] is None and record["pass@1"]["n"] == 1
    assert record["return"]["low"] is None and "Infinity" not in json.dumps(record)
    assert "–" in shown(cfg, [record])


def shown(cfg: Any, records: list[dict[str, Any]], width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(build_table(cfg, records, {}))
    return console.export_text()


def test_the_table_is_readable_at_80_columns() -> None:
    cfg, record = recorded([[True, False] * 4] * 4, pass_k=[1, 2, 4, 8])
    text = shown(cfg, [record | {"env": "bandit_reversed"}, record])
    assert max(map(len, text.splitlines())) <= 80
    for score in ("pass@1", "pass@2", "pass@4", "pass@8"):
        [line, other] = [
            each for each in text.splitlines() if each.split("│")[4:5] and score in each.split("│")[4]
        ]
        assert line.count("│") == other.count("│") == 7
    interval = record["pass@4"]
    bounds = f"[{interval['low']:.3f}, {interval['high']:.3f}]"
    assert text.count("bandit_reversed") == 2 and "8 episodes of each task" in text
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    success = record["success"]
    policy = f"0.500 [{success['low']:.3f}, {success['high']:.3f}]"
    first = cells.index(["sokoban", "chance", "–", "–", "0.035", "0.00"])
    assert cells[first + 1 : first + 3] == [
        ["test", "best weights", "1", "4", policy, "0.48"],
        ["", "oracle", "–", "–", "1.000", "1.00"],
    ]
    for line in (
        ["sokoban", "1", "4", "reward of a task", "15.000", "[-5.543, 35.543]"],
        ["", "", "", "replies that were cut", "0%", ""],
        ["", "", "", "tokens of a reply", "2.0", ""],
        ["", "", "4", "pass@4", f"{interval['mean']:.3f}", bounds],
    ):
        assert line in cells
    assert "T: temperature; n: tasks" in " ".join(text.split())


def test_levels_have_the_interval_that_the_table_of_a_training_has() -> None:
    cfg, record = recorded([[True, False]] * 4, pass_k=[])
    text = shown(cfg, [record | {"levels": LEVELS | {"episodes": 2000}, "shots": 2}])
    assert "chance" in text and "2000 │ 0.035 [0.028, 0.044]" in text and "2 shots" in text


def test_who_else_played_is_a_table_of_its_own() -> None:
    cfg, record = recorded([[True, False]] * 4, pass_k=[])
    success = record["success"]
    lead = {"mean": -0.5, "low": -0.7, "high": -0.25, "n": 4}
    others = {
        "oracle": {"success": success, "difference": lead},
        "few-shot": {"success": success, "difference": lead},
    }
    text = shown(cfg, [record | {"levels": LEVELS, "shots": 0, "baselines": others}])
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    value = f"0.500 [{success['low']:.3f}, {success['high']:.3f}]"
    first = cells.index(["sokoban, T 1", "4", value, ""])
    assert cells[first + 1 : first + 3] == [
        ["best play", "4", value, "-0.500 [-0.700, -0.250]"],
        ["few-shot", "4", value, "-0.500 [-0.700, -0.250]"],
    ]
    assert max(map(len, text.splitlines())) <= 80 and "lead: success of the first line less" in text


def test_the_best_of_k_is_the_mean_over_all_subsets() -> None:
    scores, solved = [0.3, 0.9, 0.3, 0.1, 0.5], [True, False, False, True, True]

    def chosen(subset: Sequence[int]) -> float:
        alike = [solved[i] for i in subset if scores[i] == max(scores[j] for j in subset)]
        return sum(alike) / len(alike)

    for k in range(1, 6):
        by_hand = [chosen(subset) for subset in itertools.combinations(range(5), k)]
        assert estimate_best_of_k(scores, solved, k) == pytest.approx(sum(by_hand) / len(by_hand))
    with pytest.raises(ValueError, match="k=6 is out of range"):
        estimate_best_of_k(scores, solved, 6)


@pytest.mark.slow
def test_a_reward_model_chooses(
    tmp_path: Path, in_empty_folder: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    path = reward_model(tmp_path)
    asked = "model=nano env=bandit episodes=3 members=3"
    main_evaluate(shlex.split(f"{asked} best_of=[2,3] reward_model={path}"))
    assert "best@3" in capsys.readouterr().out
    [file] = Path("outputs/evaluations").iterdir()
    [found] = json.loads(file.read_text())["results"]
    for k in (2, 3):
        best, most, gain = (found[f"{name}@{k}"]["mean"] for name in ("best", "pass", "gain"))
        assert 0 <= best <= most <= 1 and gain == pytest.approx(best - found["success"]["mean"])
    for options, said in (
        ("best_of=4 reward_model=x", "best_of=[4] needs members >= 4, and members=3"),
        ("best_of=1 reward_model=x", "best_of=1 must be a whole number >= 2"),
        ("best_of=2", "best_of=[2] needs reward_model=RUN"),
        (f"reward_model={path}", "reward_model has no effect without best_of"),
        ("best_of=2 reward_model=nowhere", "reward_model=nowhere is not there"),
        (f"best_of=2 reward_model={tmp_path}", "holds no reward model"),
    ):
        assert said in refused(f"{asked} {options}", main_evaluate)


def test_equal_values_have_no_interval() -> None:
    assert _format_estimate({"mean": -0.7, "low": -0.7, "high": -0.7, "n": 8}) == ("8", "-0.700", "")
    assert _format_estimate({"mean": 0.5, "low": 0.25, "high": 0.75, "n": 8}) == (
        "8",
        "0.500",
        "[0.250, 0.750]",
    )
