"""Where the time goes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_agentrl.callbacks.profile import Profile
from lit_agentrl.report.trace import own_times
from tests.callbacks.test_nonfinite import Small, fit, mean


class Timed(Small):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        self.row = {"time/rollout": 1e-6, "time/update": 2e-6}


def test_a_table_and_a_trace_are_left_and_the_numbers_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "profile"
    profiled, plain = fit(tmp_path, Timed(mean), Profile(folder, rows=3)), fit(tmp_path, Timed(mean))
    for mine, other in zip(profiled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, other)
    told = capsys.readouterr().out.splitlines()
    for heading in ("time of 2 iterations", "operators of iteration 2, by their own time on the CPU"):
        assert any(heading in line for line in told)
    table = (folder / "table.txt").read_text(encoding="utf-8")
    assert max(map(len, [*table.splitlines(), *told[:-1]])) <= 80
    parts = table.split("operators of iteration 2")
    sections, named = ([row for row in part.splitlines() if row.startswith("│")] for part in parts)
    assert [row.split()[1] for row in sections] == ["rollout", "update", "other"]
    assert len(named) == 3  # which three they are is for the clock to say
    [file] = folder.glob("*.gz")
    assert file.name == "iteration_2.pt.trace.json.gz"
    with gzip.open(file, "rt") as trace:
        names = {each.get("name") for each in json.load(trace)["traceEvents"]}
    assert {"rollout", "update", "validate", "aten::addmm"} <= names


def test_a_shorter_run_traces_its_last_iteration(tmp_path: Path) -> None:
    fit(tmp_path, Timed(mean), Profile(tmp_path / "profile", iteration=9))
    assert (tmp_path / "profile" / "iteration_2.pt.trace.json.gz").exists()


def test_an_operator_counts_what_it_does_itself() -> None:
    outer = {"name": "outer", "ts": 0.0, "dur": 9e6, "pid": 1, "tid": 1}
    inner = {"name": "inner", "ts": 2e6, "dur": 3e6, "pid": 1, "tid": 1}
    innermost = {"name": "leaf", "ts": 2e6, "dur": 1e6, "pid": 1, "tid": 1}
    beside = {"name": "inner", "ts": 2e6, "dur": 4e6, "pid": 1, "tid": 2}
    after = {"name": "leaf", "ts": 9e6, "dur": 1e6, "pid": 1, "tid": 1}
    assert own_times([after, innermost, inner, beside, outer]) == [
        ("outer", 1, 6.0), ("inner", 2, 6.0), ("leaf", 2, 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), [("iteration", 0), ("rows", 0)])
def test_wrong_options_are_named(option: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^{option}={value} must be"):
        Profile(tmp_path, **{option: value})
