"""The two loggers on their own; whole runs are in test_resume.py."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import approx
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from lit_agentrl.loggers import board
from lit_agentrl.loggers.files import CSVLog, TensorBoardLog


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def shown(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return events


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in shown(folder).Scalars(tag)]


def test_floats_come_back_bit_equal(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1 / 3, 1e-310, -0.0, float(np.float32(0.1)), math.inf]
    CSVLog(tmp_path).log_metrics({str(i): value for i, value in enumerate(values)}, step=0)
    (row,) = rows(tmp_path / "metrics.csv")
    back = [float(row[str(i)]) for i in range(len(values))]
    assert [v.hex() for v in back] == [v.hex() for v in values]


def test_nan_is_written_and_missing_is_empty(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": math.nan, "b": 1.0}, step=0)
    log.log_metrics({"b": 2.0}, step=1)
    assert (tmp_path / "metrics.csv").read_text() == "iteration,a,b\n0,nan,1.0\n1,,2.0\n"


def test_header_is_sorted_behind_the_iteration_and_grows(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"val/success": 0.5}, step=0)
    log.log_metrics({"train/loss": 1.0, "a": 2}, step=1)
    assert (
        tmp_path / "metrics.csv"
    ).read_text() == "iteration,a,train/loss,val/success\n0,,,0.5\n1,2.0,1.0,\n"


def test_a_plain_row_is_appended_not_rewritten(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": 1}, step=0)
    inode = os.stat(log.path).st_ino
    log.log_metrics({"a": 2}, step=1)
    assert os.stat(log.path).st_ino == inode
    log.log_metrics({"b": 2}, step=2)
    assert os.stat(log.path).st_ino != inode


def test_a_new_launch_continues_the_file(tmp_path: Path) -> None:
    CSVLog(tmp_path).log_metrics({"a": 1}, step=0)
    again = CSVLog(tmp_path)
    again.log_metrics({"a": 2}, step=1)
    assert again.path.read_text() == "iteration,a\n0,1.0\n1,2.0\n"


def test_rewind_drops_later_and_torn_rows_and_their_columns(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    for i in range(4):
        log.log_metrics({"a": i, **({"late": 1.0} if i == 3 else {})}, step=i)
    with open(log.path, "a") as file:
        file.write("4,0.1")  # killed in the middle of a number
    again = CSVLog(tmp_path)
    again.rewind(2)
    assert log.path.read_text() == "iteration,a\n0,0.0\n1,1.0\n2,2.0\n"
    again.log_metrics({"a": 3}, step=3)
    assert log.path.read_text().endswith("2,2.0\n3,3.0\n")


def test_rewind_keeps_the_row_of_the_iteration_itself_and_minus_one_keeps_none(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": 1}, step=0)
    log.rewind(0)
    assert len(rows(log.path)) == 1
    log.rewind(-1)
    assert log.path.read_text() == "iteration\n"


def test_rewind_tells_of_rows_that_somebody_took_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = CSVLog(tmp_path)
    for i in (0, 1, 4):
        log.log_metrics({"a": i}, step=i)
    log.rewind(4)
    assert caplog.messages == [
        f"{log.path}: 2 of the rows before iteration 5 are missing; the run continues without them"
    ]
    assert len(rows(log.path)) == 3


def test_rewind_without_a_file_writes_none(tmp_path: Path) -> None:
    CSVLog(tmp_path / "run").rewind(0)
    assert not (tmp_path / "run").exists()


def test_a_torn_line_is_not_glued_to_the_next_row(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("iteration,a,b\n0,1.0,2.0\n1,3.")
    CSVLog(tmp_path).log_metrics({"a": 5, "b": 6}, step=1)
    assert (tmp_path / "metrics.csv").read_text() == "iteration,a,b\n0,1.0,2.0\n1,5.0,6.0\n"


def test_logging_an_iteration_again_adds_to_its_row(tmp_path: Path) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": 1, "b": 1}, step=1)
    log.log_metrics({"b": 2}, step=1)
    log.log_metrics({"a": 0, "b": 0}, step=0)
    assert log.path.read_text() == "iteration,a,b\n0,0.0,0.0\n1,1.0,2.0\n"


@pytest.mark.parametrize("step", [None, -1])
def test_a_row_without_iteration_is_refused(tmp_path: Path, step: int | None) -> None:
    with pytest.raises(ValueError, match=f"step={step}"):
        CSVLog(tmp_path).log_metrics({"a": 1}, step=step)


def test_wrong_names_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'iteration'"):
        CSVLog(tmp_path).log_metrics({"iteration": 1}, step=0)
    (tmp_path / "metrics.csv").write_text("step,a\n0,1\n")
    with pytest.raises(ValueError, match="'step'"):
        CSVLog(tmp_path).log_metrics({"a": 1}, step=1)


def test_a_full_disk_names_the_file_and_the_next_launch_heals_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CSVLog(tmp_path)
    log.log_metrics({"a": 1}, step=0)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left.*metrics\.csv"):
            log.log_metrics({"a": 2}, step=1)
    again = CSVLog(tmp_path)
    again.rewind(0)
    assert again.path.read_text() == "iteration,a\n0,1.0\n"


def test_rewind_removes_a_torn_line_alone_and_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.csv.tmp").write_text("half")
    (tmp_path / "metrics.csv").write_text("iteration,a\n0,1.0\n1,0.")
    CSVLog(tmp_path).rewind(0)
    assert (tmp_path / "metrics.csv").read_text() == "iteration,a\n0,1.0\n"
    assert caplog.messages == [f"{tmp_path}/metrics.csv: dropped an incomplete line of an interrupted write"]
    assert os.listdir(tmp_path) == ["metrics.csv"]


@pytest.mark.parametrize("kept", [-1, 0, 1, 3])
def test_tensorboard_shows_each_step_once_after_a_rewind(tmp_path: Path, kept: int) -> None:
    for launch, first in ((1, -1), (2, kept)):  # the second launch continues after `kept` iterations
        log = TensorBoardLog(tmp_path)
        log.rewind(first)
        for step in range(first + 1, 4):
            log.log_metrics({"a": 10.0 * launch + step}, step=step)
        log.finalize("failed")
    expected = [(step, 10.0 * (1 if step <= kept else 2) + step) for step in range(4)]
    assert scalars(tmp_path, "a") == expected


def summary_of(last: float, games: tuple[str, ...] = ("sokoban",)) -> Any:
    """A finished run of three iterations, tested on these games."""

    def scored(mean: float, iteration: int | None) -> Any:
        found = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "n": 8}
        return {"iteration": iteration, "success": found, "return": None if iteration is None else found}

    levels = {"chance": scored(0.2, None), "oracle": None}
    stages = {"start": scored(0.3, 0), "best": scored(0.5, 2), "last": scored(last, 3)}
    listed = [{"name": name, "split": "test", **levels, **stages} for name in games]
    return {
        "status": "completed",
        "iterations": 3,
        "planned_iterations": 3,
        "seed": 7,
        "games": listed,
        "held_out": {},
        "monitored": {"name": "val/success", "mode": "max", "value": 0.5, "iteration": 2},
    }


def test_closing_scores_are_shown_once_and_go_when_the_run_goes_on(tmp_path: Path) -> None:
    for last in (0.6, 0.4):  # the second launch finds a finished run
        log = TensorBoardLog(tmp_path, figure=False)
        log.rewind(-1 if last == 0.6 else 3)
        log.log_hyperparams({"seed": 7})
        log.finalize("success")
        log.conclude(summary_of(last))
        assert scalars(tmp_path, "test/success") == [(0, approx(0.3)), (2, approx(0.5)), (3, approx(last))]
        assert [value for _, value in scalars(tmp_path, "test/success_low")][-1] == approx(last - 0.1)
        (table,) = shown(tmp_path).Tensors("0_overview/scores/text_summary")
        text = table.tensor_proto.string_val[0].decode()
        assert f"| sokoban | test | last | 3 | 8 | {last:.3f} [{last - 0.1:.3f}, {last + 0.1:.3f}] |" in text
        assert "| sokoban | test | chance | – | 8 | 0.200 [0.100, 0.300] | – |" in text
    log = TensorBoardLog(tmp_path, figure=False)
    log.rewind(3)
    log.finalize("failed")
    tags = shown(tmp_path).Tags()
    assert "test/success" not in tags["scalars"] and "0_overview/scores/text_summary" not in tags["tensors"]


def test_what_held_out_data_measured_is_in_the_overview_and_in_the_scores() -> None:
    row = board.add_overview({"val/data_loss": 0.5, "val/data_reward_accuracy": 0.75})
    assert row["0_overview/1_val_data_loss"] == 0.5 and row["0_overview/2_val_data_reward_accuracy"] == 0.75
    held_out = {
        "held_out": {"start": {"iteration": 0.0, "loss": 0.6931}, "last": {"iteration": 3.0, "loss": 0.5}}
    }
    played = board.format_scores(summary_of(0.5) | held_out)
    alone = board.format_scores(summary_of(0.5, games=()) | held_out)
    assert all("\n| start | 0 | 0.6931 |\n" in text for text in (played, alone))
    assert "| sokoban | test |" in played and "| game |" not in alone


def test_means_over_games_have_no_bounds() -> None:
    rows = board.list_test_scores(summary_of(0.5, games=("sokoban", "bandit")))
    assert rows[-1] == (3, {"test/success": approx(0.5), "test/return": approx(0.5)})


def test_hparams_session_ends_only_when_the_run_concludes(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path, figure=False)
    start, end = "_hparams_/session_start_info", "_hparams_/session_end_info"
    log.rewind(-1)
    log.log_hyperparams({"algo": {"clip": 0.2, "name": "grpo"}, "seed": 1, "none": None})
    log.finalize("success")  # Lightning does this after the validation of the start
    assert {tag for tag in shown(tmp_path).summary_metadata if "hparams" in tag} == {start}
    log.conclude(summary_of(0.5))
    assert {tag for tag in shown(tmp_path).summary_metadata if "hparams" in tag} == {start, end}
    assert not list(tmp_path.rglob("hparams.yaml"))


def test_the_overview_and_its_levels_come_first(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path, figure=False)
    log.compare_with(chance=0.1, oracle=1.0)
    log.rewind(-1)
    log.log_metrics({"val/success": 0.5, "val/turns": 3.0}, step=0)
    log.log_metrics({"rollout/entropy": 0.5}, step=1)
    log.finalize("failed")
    events = shown(tmp_path)
    names = ["0_overview/1_val_success", "0_overview/4_entropy"]
    assert sorted(events.Tags()["scalars"])[:2] == names
    assert scalars(tmp_path, "val/chance") == [(0, approx(0.1))] and scalars(tmp_path, names[0]) == [(0, 0.5)]
    (layout,) = events.Tensors("custom_scalars__config__")
    charts = Layout.FromString(layout.tensor_proto.string_val[0]).category[0].chart
    assert list(charts[0].multiline.tag) == ["val/success", "rollout/success", "val/chance", "val/oracle"]
    assert charts[1].margin.series[0].lower == "test/success_low"


def test_the_learning_curve_is_a_picture(tmp_path: Path) -> None:
    CSVLog(tmp_path).log_metrics({"val/success": 0.5, "rollout/success": 0.25}, step=0)
    log = TensorBoardLog(tmp_path, figure=True)
    log.compare_with(chance=0.1, oracle=1.0)
    log.rewind(-1)
    log.conclude(summary_of(0.5))
    (picture,) = shown(tmp_path).Images("0_overview/7_learning_curve")
    assert (picture.width, picture.height, picture.step) == (770, 476, 3)


def test_hparams_are_flat_and_fix_no_metric(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    def read() -> tuple[EventAccumulator, Any]:
        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
        content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        return events, HParamsPluginData.FromString(content).session_start_info.hparams

    log = TensorBoardLog(tmp_path, figure=False)
    log.log_hyperparams({"algo": {"clip": 0.2}, "layers": [1, 2], "seed": 3})
    log.finalize("failed")
    events, found = read()
    assert found["algo/clip"].number_value == 0.2 and found["layers"].string_value == "[1, 2]"
    assert found["0_seed"].number_value == 3 and "seed" not in found
    assert events.Tags()["scalars"] == []
    log.conclude(summary_of(0.5))
    _, found = read()
    assert sorted(found)[:2] == ["0_best val/success", "0_seed"], "the tab sorts its columns by name"
    assert found["0_best val/success"].number_value == 0.5 and found["algo/clip"].number_value == 0.2
    log = TensorBoardLog(tmp_path, figure=False)  # the run goes on: its score is not known yet
    log.rewind(3)
    log.log_hyperparams({"seed": 3})
    log.finalize("failed")
    assert set(read()[1]) == {"0_seed"}
