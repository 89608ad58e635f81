"""Quantiles among rewards of the reference: by hand, of folders and files, and what is refused in one line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_agentrl.data.reading import read
from lit_agentrl.experimental.quantiles import Quantiles, reference_quantile
from tests.data.test_reading import file, folder, played, reply, student
from tests.rl.ragged import fresh, loss_of, ragged

REFERENCE = [played(0, member, worth) for member, worth in enumerate((0.1, 0.5, 0.9, 0.2))]
REFERENCE += [played(1, member, worth) for member, worth in enumerate((2.0, 3.0))]
MINE = [played(0, 0, 0.5), played(0, 1, 0.0), played(1, 0, 2.5)]
ROW = {"prompt": "P", "completion": reply("Up"), "score": 0.5, "ref_rewards": [0.1, 0.5, 0.9, 0.2]}


def columns(kind: Quantiles) -> list[tuple[float, float, float]]:
    """Return, quantile and number of reference samples of each row of a pass, by group and row."""
    batch = read(kind, student(), seed=0).make_batch(0)
    assert batch.trajectories is not None
    found = [batch.trajectories.return_B, batch.columns["ref_quantile_B"], batch.columns["ref_count_B"]]
    return sorted(zip(*(column.tolist() for column in found), strict=True))


def test_a_folder_of_the_reference_gives_the_rewards_of_each_prompt(tmp_path: Path) -> None:
    mine, reference = folder(tmp_path, MINE), folder(tmp_path / "r", REFERENCE)
    kind = Quantiles(path=mine, references=reference, batch=3)
    assert columns(kind) == [(0.0, 0.0, 4.0), (0.5, 0.75, 4.0), (2.5, 0.5, 2.0)]
    by_success = replace(kind, score="success")  # all of the reference solved theirs
    assert columns(by_success) == [(0.0, 0.0, 4.0), (1.0, 1.0, 2.0), (1.0, 1.0, 4.0)]
    recorded = read(kind, student(), seed=0)
    shares = [recorded.make_batch(0, rank=rank, world_size=4).columns for rank in range(4)]
    assert [share["ref_quantile_B"].shape for share in shares] == [(1,)] * 3 + [(0,)]
    itself = columns(Quantiles(path=reference, references=reference, batch=6))
    assert [quantile for _, quantile, _ in itself] == [0.25, 0.5, 0.75, 1.0, 0.5, 1.0]


def test_rows_of_a_file_have_them_in_a_column(tmp_path: Path) -> None:
    other = ROW | {"prompt": "Q", "score": 7, "ref_rewards": [8]}
    assert columns(Quantiles(path=file(tmp_path, [ROW, other]), batch=2)) == [
        (0.5, 0.75, 4.0),
        (7.0, 0.0, 1.0),
    ]
    named = {"prompt": "P", "completion": reply("Up"), "score": 0.5, "base": json.dumps([0.1, 0.6])}
    path = tmp_path / "d.csv"
    path.write_text('prompt,completion,score,base\nP,Up,0.5,"[0.1, 0.6]"\n')
    assert columns(Quantiles(path=str(path), batch=1, columns={"ref_rewards": "base"})) == [(0.5, 0.5, 2.0)]
    assert named["base"] == "[0.1, 0.6]"


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        (None, "column ref_rewards must be a list of rewards"),
        ([], "column ref_rewards must be a list of rewards"),
        ([1, "x"], "column ref_rewards is 'x'; write a finite number"),
        ([1, True], "column ref_rewards is 'True'; write a finite number"),
    ],
)
def test_a_malformed_row_is_one_line(rewards: Any, said: str, tmp_path: Path) -> None:
    path = file(tmp_path, [ROW | {"ref_rewards": rewards}])
    with pytest.raises(ValueError) as raised:
        read(Quantiles(path=path, batch=1), student(), seed=0)
    assert said in str(raised.value) and "line 1: " in str(raised.value) and "\n" not in str(raised.value)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    mine, reference = folder(tmp_path, MINE), folder(tmp_path / "r", REFERENCE[:4])
    labels = folder(tmp_path / "l", REFERENCE, continuations=4)
    for kind, said in (
        ({"references": reference}, "has no episode of g, instance seed 101; collect it with the env"),
        ({"references": str(tmp_path / "no")}, "references=.*no does not exist or is empty"),
        ({"references": labels}, "has labels of turns and no rewards"),
        ({}, "references=null: path=.* holds episodes; name a folder"),
        ({"references": reference, "score": "cost"}, "score=cost must be one of return, success"),
        ({"references": " "}, "references=  must be a folder"),
        ({"references": reference, "score": ["return", "success"]}, "data=quantiles has none"),
        ({"references": reference, "path": file(tmp_path, [ROW])}, "references=.* has no effect"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            read(Quantiles(**{"path": mine, "batch": 1} | kind), student(), seed=0)


def test_the_quantile_by_hand() -> None:
    """Rewards 0.5 and 0 among 0.1, 0.5, 0.9 and 0.2."""
    given = {
        "return_B": torch.tensor([0.5, 0.0, math.nan]),
        "ref_quantile_B": torch.tensor([0.75, 0.0, 0.5]),
        "ref_count_B": torch.tensor([4.0, 4.0, 4.0]),
        "is_action_BT": torch.tensor([[False, True, True]] * 3),
    }
    assert reference_quantile(**given).advantage_BT.tolist() == [[0, 0.75, 0.75], [0, 0, 0], [0, 0, 0]]
    assert reference_quantile(**given, floored=True).advantage_BT[1].tolist() == [0, 0.25, 0.25]
    with pytest.raises(ValueError, match="floored=1 must be true or false"):
        reference_quantile(**given, floored=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("transform", ["identity", "log"])
def test_the_loss_is_that_of_each_trajectory_alone(transform: str) -> None:
    """Against sums in plain Python; log Z is integrated over q numerically."""
    floored = str(transform == "log").lower()
    changes = (
        "advantage=reference_quantile",
        f"advantage.floored={floored}",
        f"loss_of_groups.transform={transform}",
    )
    algorithm, beta, steps = fresh("qrpo", *changes), 0.1, 200_000
    assert algorithm.requirements.min_members == 1 and fresh("qrpo").requirements.min_members == 2
    reward = math.log if transform == "log" else float
    middles = [(step + 0.5) / steps for step in range(steps)]
    log_z = math.log(sum(math.exp(reward(q) / beta) for q in middles) / steps)
    batch = ragged(3, sizes=(1,) * 6)
    batch["ref_quantile_B"], batch["ref_count_B"] = torch.arange(6) / 5.0, torch.full((6,), 5.0)
    errors = []
    for b in range(6):
        places = batch["is_action_BT"][b].nonzero().flatten().tolist()
        ratio = sum(float(batch["logp_BT"][b, t] - batch["ref_logp_BT"][b, t]) for t in places)
        q = max(b / 5, 1 / 5) if transform == "log" else b / 5
        errors.append((reward(q) - beta * log_z - beta * ratio) ** 2)
    loss, grad_BT = loss_of(algorithm, batch)
    assert float(loss) == pytest.approx(sum(errors) / 6, rel=1e-6)
    assert not grad_BT[~batch["is_action_BT"]].any() and grad_BT[batch["is_action_BT"]].all()
