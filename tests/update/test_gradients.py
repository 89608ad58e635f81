"""Gradient norms by the spread of returns: buckets by hand, norms against gradients taken one by one, no trace left."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl import distributed
from lit_agentrl.update.gradients import SpreadBuckets, assign_buckets
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.rl.ragged import fresh
from tests.update.bare import BareModule, ThreadedDist, build, elsewhere, float64, off_policy, step

SGD = OptimSettings(optimizer=torch.optim.SGD, lr=0.5)
TWO = SpreadBuckets(buckets=2, every=2)


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    with float64():
        yield


def by_hand(**columns: Any) -> tuple[list[int], list[int], list[float]]:
    buckets = columns.pop("buckets")
    found = assign_buckets(
        **{name: torch.tensor(values) for name, values in columns.items()}, buckets=buckets
    )
    return tuple(each.tolist() for each in found)  # type: ignore[return-value]


def test_buckets_of_equal_numbers_the_least_spread_first() -> None:
    nan = float("nan")
    groups, bucket, spread = by_hand(
        group_B=[7, 7, 7, 3, 3, 5, 5, 9, -1],
        trajectory_B=[0, 0, 1, 2, 3, 4, 5, 6, -1],  # the first lies in two rows, and counts once
        return_B=[0.0, 0.0, 4.0, 1.0, 1.0, 2.0, 4.0, nan, 0.0],
        buckets=2,
    )
    assert groups == [7, 3, 5] and bucket == [1, 0, 0]
    assert spread == pytest.approx([2**0.5 / 2, 8**0.5])  # means of the spreads 0 and √2, and of √8
    groups, bucket, spread = by_hand(group_B=[1, 1], trajectory_B=[0, 1], return_B=[0.0, 4.0], buckets=6)
    assert (groups, bucket) == ([1], [0]) and spread == pytest.approx([8**0.5])


def trained(algo: str, gradients: SpreadBuckets | None, *changes: str) -> BareModule:
    module = elsewhere(build(fresh(algo, *changes), optim=SGD, gradients=gradients))
    step(module, off_policy())
    return module


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_run_that_measures_is_the_same_run(algo: str) -> None:
    plain, measured = trained(algo, None), trained(algo, TWO)
    for mine, theirs in zip(measured.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    same = {name: value for name, value in plain.row.items() if not name.startswith("time/")}
    assert same == {name: measured.row[name] for name in same}
    assert sorted(name for name in set(measured.row) - set(plain.row)) == sorted(
        f"gradients/{what}_{k}" for what in ("spread", "task", "regulariser") for k in (1, 2)
    )
    measured.row = {}
    step(measured, off_policy(), iteration=1)
    assert not [name for name in measured.row if name.startswith("gradients/")]


def test_norms_are_those_of_a_step_on_the_bucket_alone() -> None:
    """Without regularisers the task is the whole gradient; of equal returns there is none."""
    batch = off_policy()
    measured = trained("grpo", TWO).row
    groups, bucket, _ = assign_buckets(
        return_B=batch.return_B, group_B=batch.group_B, trajectory_B=batch.trajectory_B, buckets=2
    )
    for k in (0, 1):
        alone = build(fresh("grpo"), optim=SGD)
        step(alone, batch.select(torch.isin(batch.group_B, groups[bucket == k])).trim())
        assert measured[f"gradients/task_{k + 1}"] == pytest.approx(alone.row["train/grad_norm"], rel=1e-9)
        assert measured[f"gradients/regulariser_{k + 1}"] == 0.0
    assert measured["gradients/spread_1"] < measured["gradients/spread_2"]


def test_regularisers_are_apart() -> None:
    """With ten times the coefficient their norm is ten times as large, and that of the task as it was."""
    weak, strong = (trained("grpo", TWO, "kl=loss_k3", f"kl.coef={coef}").row for coef in (0.01, 0.1))
    for k in (1, 2):
        assert strong[f"gradients/regulariser_{k}"] == pytest.approx(10 * weak[f"gradients/regulariser_{k}"])
        assert weak[f"gradients/regulariser_{k}"] > 1e-6
        assert strong[f"gradients/task_{k}"] == pytest.approx(weak[f"gradients/task_{k}"])


def test_a_rank_without_rows_of_a_bucket_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets are of the groups of all ranks; gradients are added up by a strategy, which is not here."""
    batch = off_policy()
    whole = trained("grpo", TWO).row
    shares = [batch.select(torch.isin(batch.group_B, torch.tensor(g))).trim() for g in ([0, 1, 3], [2, 4, 5])]
    modules = [elsewhere(build(fresh("grpo"), optim=SGD, gradients=TWO)) for _ in shares]
    dist = ThreadedDist(2)
    monkeypatch.setattr(distributed, "dist", dist)
    dist.play([partial(step, module, share) for module, share in zip(modules, shares, strict=True)])
    for module in modules:
        assert [module.row[f"gradients/spread_{k}"] for k in (1, 2)] == pytest.approx(
            [whole[f"gradients/spread_{k}"] for k in (1, 2)]
        )
    assert modules[0].row["gradients/task_1"] == 0.0 < modules[1].row["gradients/task_1"]


def test_wrong_options() -> None:
    for options, message in (({"buckets": 1}, "buckets=1 must be"), ({"every": 0}, "every=0 must be")):
        with pytest.raises(ValueError, match=message):
            SpreadBuckets(**options)
    with pytest.raises(ValueError, match=r"gradients\._target_=dict must be a SpreadBuckets"):
        UpdateSettings(gradients={})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"algo=dpo has none; set update/gradients=none"):
        build(fresh("dpo"), gradients=TWO)
