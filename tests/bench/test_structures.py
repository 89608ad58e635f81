"""The comparison of structures: its table by hand, and its command on runs of two iterations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench.campaigns.structures import PROTOCOL, STRUCTURES, as_csv, format_table, list_cells
from tests.conftest import ROOT
from tests.integration.conftest import environment


def test_the_table_by_hand() -> None:
    """Gains of 1/4 and 3/4 over two seeds: 1/2 ± 12.706 x 1/4."""

    def rooms(solved: int) -> dict[str, object]:
        return {"solved": [True] * solved + [False] * (4 - solved), "tokens": 100}

    found = {
        ("hard", "refill", 0): rooms(1), ("hard", "refill", 1): rooms(0),
        ("hard", "hint", 0): rooms(2), ("hard", "hint", 1): rooms(3), ("hard", "replay", 0): rooms(4),
    }  # fmt: skip
    lines = format_table(found).splitlines()[2:]
    assert lines == [
        "| hard | refill | 2 | 100 | 0.125 | refill | – |",
        "| hard | hint | 2 | 100 | 0.625 | refill | +0.500 [-2.677, +3.677] |",
        "| hard | replay | 1 | 100 | 1.000 | refill, 64 instances | – |",
    ]
    assert as_csv(found).splitlines() == [
        "world,structure,seed,tokens,rooms,success", "hard,refill,0,100,4,0.25", "hard,refill,1,100,4,0.0",
        "hard,hint,0,100,4,0.5", "hard,hint,1,100,4,0.75", "hard,replay,0,100,4,1.0",
    ]  # fmt: skip


def test_the_most_telling_cells_come_first_and_all_structures_of_a_seed_together() -> None:
    order = list_cells(["frozen_lake", "hard"], list(STRUCTURES), [0, 1])
    for start, first in ((0, ["refill", "hint"]), (4, ["refill, 64 instances", "replay"])):
        assert order[start : start + 4] == [("hard", name, seed) for seed in (0, 1) for name in first]
    assert order[8:24] == [("frozen_lake", name, seed) for seed in (0, 1) for name in STRUCTURES]
    assert order[24] == ("hard", "branch", 0) and len(order) == len(set(order)) == 2 * 8 * 2
    assert list_cells(["frozen_lake", "hard", "sokoban"], list(STRUCTURES), [0, 1], PROTOCOL) == order[:24]
    assert list_cells(["hard"], ["mcts"], [3]) == [("hard", "mcts", 3)]


@pytest.mark.slow
@pytest.mark.sweep
def test_the_command_goes_on_from_what_was_done(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "scripts.bench.campaigns.structures", "--folder", str(tmp_path),
        "--worlds", "frozen_lake", "--structures", "refill", "mcts", "--seeds", "1", "--budget", "300", "--rooms", "4",
        "--csv", str(tmp_path / "kept.csv"), "--", "rollout.prompts=2", "rollout.members=4",
        "trainer.accelerator=cpu",
    ]  # fmt: skip
    rows = []
    for _ in range(2):
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        (tmp_path / "frozen_lake_mcts_1.json").unlink()
        rows.append((tmp_path / "frozen_lake_mcts_1" / "metrics.csv").read_text())
    assert rows[0] == rows[1], "a run that its budget ended is not trained further"
    assert done.stdout.count("| frozen_lake |") == 2
    assert len((tmp_path / "kept.csv").read_text().splitlines()) == 1 + 2
