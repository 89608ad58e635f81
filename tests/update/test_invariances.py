"""What must not change the gradient of any named algorithm: order, padding, micro-batches, number of ranks.

And a measurement on held-out rows is that of a first step, and changes nothing.

float64, relative 1e-9, on one off-policy batch of ragged multi-turn rows on which clips act.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.policy.algorithm import Algorithm
from tests.conftest import thinned
from tests.rl.ragged import fresh
from tests.rl.test_algo_configs import ALGORITHMS, UNTRAINED
from tests.update.bare import BareModule, build, elsewhere, float64, gradient, off_policy, play_on_ranks, step

RANKS = {2: [[0], [1, 2, 3, 4, 5]], 4: [[0], [1, 2], [3], [4, 5]]}  # groups of each rank: 1 row, or many
VARIANTS = [(name,) for name in ALGORITHMS if name not in UNTRAINED]
VARIANTS += [("ppo", "critic=shared"), ("grpo", "entropy=adaptive", "entropy.target=20.0")]
VARIANTS += [
    ("dapo", "rows=mask_truncated"),
    ("grpo", "tokens=top_entropy"),
    ("grpo", "correction=truncated"),
    ("grpo", "correction=sequence"),
    ("grpo", "kl=loss_k3"),
]
every_algorithm = pytest.mark.parametrize(
    "mixed", thinned([(mixed,) for mixed in VARIANTS], one_in=16), ids=" ".join
)


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    with float64():
        yield


def module_of(mixed: tuple[str, ...], **update: int) -> BareModule:
    changes = [change for change in mixed[1:] if change != "critic=shared"]
    critic = "shared" if "critic=shared" in mixed else None
    return elsewhere(build(fresh(mixed[0], *changes), critic=critic, **update))


def after(mixed: tuple[str, ...], batch: TrajectoryBatch, **update: int) -> Tensor:
    module = module_of(mixed, **update)
    step(module, batch)
    return gradient(module)


@cache
def whole(mixed: tuple[str, ...]) -> Tensor:
    """The gradient of the batch as it is, on one process."""
    return after(mixed, off_policy())


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == torch.float64 and expected.norm() > 0
    assert (actual - expected).norm() <= 1e-9 * expected.norm()


@every_algorithm
def test_row_order(mixed):
    batch = off_policy()
    order = torch.randperm(batch.num_rows, generator=torch.Generator().manual_seed(3))
    assert_same(after(mixed, batch.select(order)), whole(mixed))


@every_algorithm
def test_padding(mixed):
    batch, wider = off_policy(), {}
    for field in batch.__dataclass_fields__:
        tensor = getattr(batch, field)
        if field.endswith("_BT"):
            fill = {"turn_BT": -1, "segment_BT": -1, "policy_version_BT": -1}.get(field, 0)
            tensor = torch.nn.functional.pad(tensor, (0, 7), value=fill)
        wider[field] = tensor
    assert_same(after(mixed, TrajectoryBatch(**wider)), whole(mixed))


@every_algorithm
@pytest.mark.parametrize("budget", [1, 60, 10**6])
def test_micro_batches(mixed, budget):
    assert_same(after(mixed, off_policy(), tokens_per_microbatch=budget), whole(mixed))


@every_algorithm
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks(mixed, ranks, monkeypatch):
    """Complete groups dealt unequally; row selection empties some of the ranks."""
    batch = off_policy()
    shares = [batch.select(torch.isin(batch.group_B, torch.tensor(g))).trim() for g in RANKS[ranks]]
    modules = [module_of(mixed, tokens_per_microbatch=60) for _ in shares]
    assert_same(play_on_ranks(monkeypatch, modules, shares), whole(mixed))


@every_algorithm
@pytest.mark.parametrize("budget", [60, 10**6])
def test_measuring_changes_nothing_and_is_the_loss_of_a_step(mixed, budget):
    module, batch = module_of(mixed), off_policy()
    measured = module_of(mixed, tokens_per_microbatch=budget)
    before = [p.detach().clone() for p in measured.parameters()]
    row = measured.updater.measure(batch.to_dict(), measured.make_loop())
    assert all(p.grad is None or not p.grad.any() for p in measured.parameters())
    assert all(map(torch.equal, before, measured.parameters()))
    assert (measured.updater.progress, measured.row) == (module.updater.progress, {})
    step(module, batch)
    assert {"loss"} < row.keys()
    if any(term.is_before for term in module.objective.terms()):
        row.pop("loss")  # training moves its coefficient first, a measurement does not
    for name, value in row.items():
        logged = f"critic/{name[7:]}" if name.startswith("critic_") else f"train/{name}"
        assert value == pytest.approx(module.row[logged], rel=1e-9, abs=1e-12), name


@every_algorithm
def test_the_batch_is_off_policy(mixed):
    module = module_of(mixed)
    step(module, off_policy())
    row = module.row
    assert row["train/logp_gap"] > 0.3
    if not isinstance(module.objective, Algorithm):
        return
    is_recomputed = module.objective.correction is not None  # then the first ratio is 1
    has_clip = bool(module.objective.clip.keywords) and not is_recomputed
    assert (row["train/clip_share_low"] + row["train/clip_share_high"] > 0) == has_clip


def test_row_selection_empties_a_rank():
    """So that the test of ranks covers it."""
    module, batch = build(fresh("loop")), off_policy()
    alone = batch.select(batch.group_B == 3)
    with pytest.warns(UserWarning, match="lr_scheduler.step"):  # no optimizer has stepped yet
        step(module, alone)
    assert module.row["train/kept_row_share"] == 0 and module.row["train/skipped_steps"] == 1
