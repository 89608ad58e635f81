"""The slices that wait for a GPU: tiny ones run here, so that none is found broken there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def call(*arguments: str) -> str:
    command = [sys.executable, "-m", "scripts.bench.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.sweep
def test_slices_run_on_tiny_shapes_once_and_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    given = ("--cpu-smoke", "--only", "roofline", "generate", "--folder", str(tmp_path))
    assert "roofline: decode and update" in call(*given)
    found = json.loads((tmp_path / "smoke" / "results.json").read_text())["slices"]
    assert {name: each["ended"] for name, each in found.items()} == {
        "roofline": "passed",
        "generate": "passed",
    }
    assert found["generate"]["figures"]["ratio"]["median"] > 0
    assert "roofline: decode and update" not in call(*given)
    listed = call("--list").splitlines()
    assert [line.split()[0] for line in listed][:2] == ["tests", "roofline"]
