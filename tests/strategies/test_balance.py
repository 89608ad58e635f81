"""Equal loads, whatever the lengths; the same gradient, wherever rows are trained on."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st

from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.strategies.balance import assign_longest_first
from tests.rl.ragged import config_of
from tests.update.bare import build, float64, gradient, off_policy, play_on_ranks, step


def skewed(count: int, seed: int = 0) -> list[int]:
    """Log-normal lengths of episodes, cut at a context of 500 tokens, five times the median."""
    draw = torch.Generator().manual_seed(seed)
    return (30 + 60 * torch.randn(count, generator=draw).exp()).int().clamp(max=500).tolist()


@pytest.mark.parametrize("world_size", [2, 8, 64])
def test_loads_within_five_percent(world_size: int) -> None:
    """16 trajectories a rank; dealt in order, ranks idle for longer than 5 % of the time."""
    loads = skewed(16 * world_size)
    assert max(loads) > 3 * sorted(loads)[len(loads) // 2]
    where = [0] * len(loads)
    dealt = assign_longest_first(loads=loads, parts=where, ranks=where, world_size=world_size)
    carried = Counter[int]()
    for load, rank in zip(loads, dealt, strict=True):
        carried[rank] += load
    assert max(carried.values()) <= 1.05 * sum(loads) / world_size
    in_order = Counter[int]()
    for u, load in enumerate(loads):
        in_order[u * world_size // len(loads)] += load
    assert max(in_order.values()) > 1.05 * sum(loads) / world_size


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40)
)
def test_each_minibatch_is_balanced_as_well_as_greed_can(units: list[tuple[int, int, int]]) -> None:
    """No rank carries more than the mean of a minibatch and its longest trajectory together."""
    loads, parts, ranks = (list(column) for column in zip(*units, strict=True))
    dealt = assign_longest_first(loads=loads, parts=parts, ranks=ranks, world_size=4)
    assert dealt == assign_longest_first(loads=loads, parts=parts, ranks=ranks, world_size=4)
    for part in set(parts):
        mine = [(load, rank) for load, of, rank in zip(loads, parts, dealt, strict=True) if of == part]
        heaviest = max(sum(load for load, rank in mine if rank == r) for r in range(4))
        total, longest = sum(load for load, _ in mine), max(load for load, _ in mine)
        assert heaviest <= total / 4 + longest


@pytest.mark.parametrize(
    ("algo", "minibatches"),
    [("grpo", 1), ("grpo", 3), ("ppo", 1), ("gspo", 3), ("gvpo", 3), ("loop", 3)],
)
def test_dealt_rows_have_the_gradient_of_one_process(
    algo: str, minibatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ranks, one of which the filter has emptied, so that it must be given rows; float64."""
    with float64():
        batch = off_policy()
        modules = [
            build(instantiate(config_of(algo).algo), minibatches=minibatches, tokens_per_microbatch=60)
            for _ in range(4)
        ]
        step(modules[0], batch)
        for module in modules[1:]:
            module._hooks = StrategyHooks(deal=assign_longest_first)
        groups = ([0, 1, 2, 3, 4], [], [5])
        shares = [batch.select(torch.isin(batch.group_B, torch.tensor(g))).trim() for g in groups]
        found = play_on_ranks(monkeypatch, modules[1:], shares)
        expected = gradient(modules[0])
    assert expected.abs().max() > 0
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert modules[1].row["train/loss"] == pytest.approx(modules[0].row["train/loss"], rel=1e-9)
