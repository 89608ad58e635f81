"""What must not change the gradient of any named algorithm: order, padding, micro-batches, number of ranks.

float64, relative 1e-9, on one off-policy batch of ragged multi-turn rows on which clips act.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lit_agentrl.types import TrajectoryBatch
from tests.modules.bare import build, float64, gradient, off_policy, play_on_ranks, step
from tests.rl.ragged import mix
from tests.rl.test_algo_configs import ALGORITHMS

RANKS = {2: [[0], [1, 2, 3, 4, 5]], 4: [[0], [1, 2], [3], [4, 5]]}  # groups of each rank: 1 row, or many
VARIANTS = [*((name, "separate") for name in ALGORITHMS), ("ppo", "shared")]
every_algorithm = pytest.mark.parametrize(("name", "critic"), VARIANTS)


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    with float64():
        yield


WHOLE: dict[tuple[str, str], Tensor] = {}


def whole(name: str, critic: str) -> Tensor:
    """The gradient of the batch as it is, on one process."""
    if (name, critic) not in WHOLE:
        WHOLE[name, critic] = after(name, critic, off_policy())
    return WHOLE[name, critic]


def after(name: str, critic: str, batch: TrajectoryBatch, **update: int) -> Tensor:
    module = build(mix(name), critic=critic, **update)
    step(module, batch)
    return gradient(module)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == torch.float64 and expected.norm() > 0
    assert (actual - expected).norm() <= 1e-9 * expected.norm()


@every_algorithm
def test_row_order(name, critic):
    batch = off_policy()
    order = torch.randperm(batch.num_rows, generator=torch.Generator().manual_seed(3))
    assert_same(after(name, critic, batch.select(order)), whole(name, critic))


@every_algorithm
def test_padding(name, critic):
    batch, wider = off_policy(), {}
    for field in batch.__dataclass_fields__:
        tensor = getattr(batch, field)
        if field.endswith("_BT"):
            fill = {"turn_BT": -1, "segment_BT": -1, "policy_version_BT": -1}.get(field, 0)
            tensor = torch.nn.functional.pad(tensor, (0, 7), value=fill)
        wider[field] = tensor
    assert_same(after(name, critic, TrajectoryBatch(**wider)), whole(name, critic))


@every_algorithm
@pytest.mark.parametrize("budget", [1, 60, 10**6])
def test_micro_batches(name, critic, budget):
    assert_same(after(name, critic, off_policy(), tokens_per_microbatch=budget), whole(name, critic))


@every_algorithm
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks(name, critic, ranks, monkeypatch):
    """Complete groups dealt unequally; row selection empties some of the ranks."""
    batch = off_policy()
    shares = [batch.select(torch.isin(batch.group_B, torch.tensor(g))).trimmed() for g in RANKS[ranks]]
    modules = [build(mix(name), critic=critic, tokens_per_microbatch=60) for _ in shares]
    assert_same(play_on_ranks(monkeypatch, modules, shares), whole(name, critic))


@every_algorithm
def test_the_batch_is_off_policy(name, critic):
    module = build(mix(name), critic=critic)
    step(module, off_policy())
    row = module.row
    has_clip = bool(mix(name).clip.keywords)
    assert row["train/logp_gap"] > 0.3
    assert (row["train/clip_share_low"] + row["train/clip_share_high"] > 0) == has_clip


def test_row_selection_empties_a_rank():
    """So that the test of ranks covers it."""
    module, batch = build(mix("loop")), off_policy()
    alone = batch.select(batch.group_B == 3)
    with pytest.warns(UserWarning, match="lr_scheduler.step"):  # no optimizer has stepped yet
        step(module, alone)
    assert module.row["train/kept_row_share"] == 0 and module.row["train/skipped_steps"] == 1
