"""The last good checkpoint of a run whose numbers are no longer finite."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lit_agentrl.checks import NotFinite
from lit_agentrl.runs.recovery import name_good_checkpoint


def save(path: Path, iterations: int) -> None:
    path.parent.mkdir(exist_ok=True)
    torch.save(
        {
            "policy": {"version": 2 * iterations},
            "callbacks": {"Totals": {"counts": {"iterations": iterations}}},
        },
        path,
    )


def told(folder: Path, version: int, *, is_writing: bool = True) -> str:
    error = NotFinite("the weights are not finite", version=version)
    name_good_checkpoint(error, error, folder, is_writing=is_writing)
    return str(error)


def test_the_last_checkpoint_stays_where_it_is_good(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints" / "last.ckpt", 7)
    save(tmp_path / "checkpoints" / "last.ckpt.prev", 6)
    line = told(tmp_path, 15)
    assert line == (
        f"the weights are not finite; the last good checkpoint is {tmp_path}/checkpoints/last.ckpt, of iteration 7"
    )
    assert (tmp_path / "checkpoints" / "last.ckpt.prev").exists()


@pytest.mark.parametrize("is_writing", [True, False])
def test_a_last_checkpoint_with_the_weights_at_fault_gives_way_to_its_predecessor(
    tmp_path: Path, is_writing: bool
) -> None:
    last = tmp_path / "checkpoints" / "last.ckpt"
    save(last, 7)
    save(Path(f"{last}.prev"), 6)
    save(tmp_path / "checkpoints" / "best.ckpt", 3)
    assert told(tmp_path, 14, is_writing=is_writing).endswith(f"{last}, of iteration 6")
    assert Path(f"{last}.prev").exists() is not is_writing
    kept = torch.load(last if is_writing else f"{last}.prev", weights_only=True)
    assert kept["policy"]["version"] == 12


def test_the_best_one_or_none(tmp_path: Path) -> None:
    assert told(tmp_path, 0).endswith("; there is no earlier checkpoint")
    save(tmp_path / "checkpoints" / "last.ckpt", 7)
    save(tmp_path / "checkpoints" / "best.ckpt", 5)
    assert told(tmp_path, 14).endswith("best.ckpt, of iteration 5, which holds only the weights")
    assert told(tmp_path, 1).endswith("; there is no earlier checkpoint")
    assert told(tmp_path, 1, is_writing=False) == "the weights are not finite"
