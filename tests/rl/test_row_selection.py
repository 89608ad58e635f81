"""Which rows are trained on once advantages are known."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.binding import bind, try_out
from lit_agentrl.rl.credit import advantages
from lit_agentrl.rl.policy.row_selection import CPPO, abs_advantage, keep_all, mask_truncated
from tests.rl.ragged import advantages_of, loss_of, mix, ragged

NAN = float("nan")
SELECTIONS = [keep_all, abs_advantage, CPPO(), CPPO(prune=0.3)]


@pytest.fixture
def scored(batch):
    """The example with group_mean_std advantages, NaN where the token was not sampled."""
    advantage_BT = bind(advantages.group_mean_std, batch).advantage_BT
    return batch | {"advantage_BT": torch.where(batch["is_action_BT"], advantage_BT, NAN)}


def rows(values, groups=None, trajectories=None):
    """One sampled token per row, and a second position that was not sampled and holds garbage."""
    advantage_BT = torch.tensor([[v, 99.0] for v in values]).reshape(-1, 2)
    return {
        "advantage_BT": advantage_BT,
        "is_action_BT": torch.tensor([[True, False]]).repeat(len(values), 1),
        "group_B": torch.tensor(groups or [0] * len(values), dtype=torch.int64),
        "trajectory_B": torch.tensor(trajectories or range(len(values)), dtype=torch.int64),
    }


def test_the_worked_example(scored):
    assert bind(CPPO(prune=1 / 3), scored).tolist() == [True, True, False, True, False, True]
    assert bind(abs_advantage, scored).tolist() == [True, True, False, True, True, True]
    assert bind(keep_all, scored).tolist() == [True] * 6
    assert bind(CPPO(), scored).dtype == torch.bool


def test_threshold_is_inclusive_and_two_sided():
    batch = rows([0.01, -0.01, 0.0099, -0.0099, 0.0])
    assert bind(abs_advantage, batch).tolist() == [True, True, False, False, False]
    assert bind(partial(abs_advantage, threshold=1e-9), batch).tolist() == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("size", "prune", "kept"),
    [
        (16, 0.5, 8),
        (16, 0.75, 4),
        (16, 0.875, 2),
        (10, 0.9, 1),
        (3, 0.99, 1),
        (5, 0.5, 2),
        (5, 0.01, 4),
        (1, 0.5, 1),
    ],
)
def test_cppo_keeps_the_floor_and_at_least_one(size, prune, kept):
    keep = bind(CPPO(prune=prune), rows([float(i) for i in range(size)]))
    assert keep.tolist() == [i >= size - kept for i in range(size)]


def test_cppo_counts_per_group_and_ties_keep_the_first():
    values = [0.1, 9.0, -0.3, 8.0, 0.2, -7.0, 0.0, 7.0]
    assert bind(CPPO(), rows(values, [4, 2] * 4)).tolist() == [
        False,
        True,
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    tied = rows([1.0, -1.0, 1.0, -1.0], trajectories=[9, 3, 7, 1])  # first by row, not by id
    assert bind(CPPO(), tied).tolist() == [True, True, False, False]


def test_groups_that_teach_nothing():
    flat = rows([0.0] * 4, [0, 0, 1, 1])
    assert bind(abs_advantage, flat).tolist() == [False] * 4
    assert bind(CPPO(), flat).tolist() == [True, False, True, False]


@pytest.mark.parametrize("fn", [abs_advantage, CPPO()])
def test_rows_of_one_trajectory_stand_or_fall_together(fn):
    batch = rows([0.0, 0.5, 0.001, -0.8, 0.0, 0.002], trajectories=[5, 6, 7, 5, 7, 8])
    largest_first = {5: 0.8, 6: 0.5, 7: 0.001, 8: 0.002}
    kept = {i for i, a in largest_first.items() if a >= 0.01}  # also the larger half, as cppo wants
    assert bind(fn, batch).tolist() == [i in kept for i in [5, 6, 7, 5, 7, 8]]


def test_the_largest_token_of_a_row_decides():
    batch = rows([0.0, 0.0, 0.0])
    batch["is_action_BT"][1, 1] = True
    assert bind(abs_advantage, batch).tolist() == [False, True, False]
    assert bind(CPPO(prune=0.6), batch).tolist() == [False, True, False]


@pytest.mark.parametrize("fn", SELECTIONS)
def test_row_order_ids_and_padding_do_not_matter(fn):
    generator = torch.Generator().manual_seed(0)
    batch = rows(
        torch.randn(24, generator=generator).mul(0.02).tolist(), torch.arange(24).remainder(3).tolist()
    )
    whole = bind(fn, batch)
    order = torch.randperm(24, generator=generator)
    shuffled = {n: v[order] for n, v in batch.items()}
    shuffled["group_B"] = 50 - 3 * shuffled["group_B"]
    shuffled["trajectory_B"] = 90 - shuffled["trajectory_B"]
    assert bind(fn, shuffled).equal(whole[order])
    padding = {torch.bool: False, torch.float64: NAN}
    padded = {
        n: torch.cat([v, torch.full((24, 3), padding[v.dtype])], 1) if n.endswith("_BT") else v
        for n, v in batch.items()
    }
    assert bind(fn, padded).equal(whole)
    assert whole.all() == (fn is keep_all)


def test_unscorable_trajectories_fall(batch):
    batch["return_B"][1] = NAN
    batch["advantage_BT"] = bind(advantages.group_mean_std, batch).advantage_BT
    assert bind(abs_advantage, batch).tolist() == [True, False, True, True, True, True]
    assert bind(CPPO(prune=1 / 3), batch).tolist() == [True, False, True, True, False, True]


@pytest.mark.parametrize("fn", SELECTIONS)
def test_no_rows_and_rows_without_tokens(fn):
    assert bind(fn, rows([])).shape == (0,)
    batch = rows([1.0, 2.0])
    none = batch | {n: batch[n][:, :0] for n in ("advantage_BT", "is_action_BT")}
    expected = {"keep_all": [True, True], "abs_advantage": [False, False]}
    name = getattr(getattr(fn, "func", fn), "__name__", "")
    assert bind(fn, none).tolist() == expected.get(name, [True, False])


@pytest.mark.parametrize("fn", SELECTIONS)
def test_fit_for_a_run(fn):
    try_out("algo.rows", fn, torch.Tensor, TrajectoryBatch.make_toy().to_dict())


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (partial(abs_advantage, threshold=0), r"threshold=0 must be > 0 .*; algo/rows=none"),
        (partial(abs_advantage, threshold=NAN), r"threshold=nan must be > 0"),
        (
            lambda **kwargs: CPPO(prune=0),
            r"prune=0 must be in \(0, 1\); algo/rows=none keeps all",
        ),
        (lambda **kwargs: CPPO(prune=1.0), r"prune=1\.0 must be in \(0, 1\)"),
        (lambda **kwargs: CPPO(prune=NAN), r"prune=nan must be in \(0, 1\)"),
    ],
)
def test_wrong_constants(scored, fn, message):
    with pytest.raises(ValueError, match=message):
        bind(fn, scored)


def test_refill_asks_for_as_many_prompts_as_pruning_drops():
    assert CPPO(prune=0.75).prompt_factor == 4
    assert CPPO(prune=0.75, refill=False).prompt_factor == 1


@pytest.mark.parametrize("fn", [abs_advantage, CPPO()])
def test_wrong_tensors(scored, fn):
    with pytest.raises(ValueError, match="is_action_BT has B=5"):
        bind(fn, scored | {"is_action_BT": scored["is_action_BT"][:5]})
    with pytest.raises(ValueError, match="trajectory_B has B=5"):
        bind(fn, scored | {"trajectory_B": scored["trajectory_B"][:5]})
    scored["advantage_BT"][4, 1] = NAN
    with pytest.raises(ValueError, match="advantage_BT is NaN at a sampled token"):
        bind(fn, scored)


def test_cppo_needs_each_trajectory_in_one_group(scored):
    with pytest.raises(ValueError, match="has B="):
        bind(CPPO(), scored | {"group_B": scored["group_B"][:5]})
    with pytest.raises(ValueError, match="group_B differs between rows of one trajectory"):
        bind(CPPO(), scored | {"trajectory_B": torch.tensor([0, 1, 2, 0, 4, 5])})


def test_truncated_trajectories_are_dropped_with_all_their_rows():
    batch = {
        "trajectory_B": torch.tensor([7, 3, 7, 5]),
        "is_truncated_B": torch.tensor([False, False, True, False]),
    }
    assert bind(mask_truncated, batch).tolist() == [False, True, False, True]
    assert bind(mask_truncated, batch | {"is_truncated_B": torch.zeros(4, dtype=torch.bool)}).all()
    empty = {name: tensor[:0] for name, tensor in batch.items()}
    assert bind(mask_truncated, empty).tolist() == []


def test_a_truncated_trajectory_counts_in_its_group_and_carries_no_gradient():
    """The advantages of the others are those with it; the loss is that of the batch without its row."""
    batch = ragged(0)
    masked = mix("dapo", "rows=mask_truncated")
    found = advantages_of(masked, batch)
    assert torch.equal(found["advantage_BT"], advantages_of(mix("dapo"), batch)["advantage_BT"])
    assert found["keep_B"].tolist() == (~batch["is_truncated_B"]).tolist() and not found["keep_B"].all()
    _, grad_BT = loss_of(masked, batch)
    assert (grad_BT[batch["is_truncated_B"]] == 0).all() and grad_BT.abs().sum() > 0
