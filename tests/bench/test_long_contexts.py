"""Both sides of the benchmark of long contexts do the work that it names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.sweep
def test_a_small_network(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    options = ["--model", "tiny-random", "--episodes", "2", "--turns", "2", "--growth", "70", "--reply", "4"]
    command = [sys.executable, "-m", "scripts.bench.campaigns.long_contexts", *options, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(out.read_text())["rounds"]
    assert found.keys() == {"ours", "generate"}
    for side in found.values():
        assert side["token_ms"] == pytest.approx(1e3 * side["seconds"] / 16)
        assert side["memory_mib"] >= 0
