"""Which trajectories, or turns, are compared."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.experimental.exploring import opposed
from lit_agentrl.experimental.first_error.pairs import first_error
from lit_agentrl.experimental.spin import demonstrated
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.preference import pairing
from tests.rl.pairs import rows
from tests.rl.ragged import ragged

RULES = [
    pairing.all_pairs, partial(pairing.all_pairs, most=2), partial(pairing.all_pairs, ties=True),
    pairing.best_worst, pairing.best_rest, pairing.equal_length, pairing.equal_state,
    partial(pairing.equal_state, most=None), demonstrated, opposed, first_error, partial(first_error, least=1),
]  # fmt: skip


def group(points, lengths=None, **columns):
    lengths = lengths or [1] * len(points)
    tensors = rows([[[(-1.0, -1.0)] * n] for n in lengths], points)
    return tensors | {"group_B": torch.zeros(len(points), dtype=torch.int64)} | columns


def found(rule, tensors):
    pairs = bind(rule, tensors)
    trajectory_N = tensors["trajectory_B"][
        pairs.units.place_A[pairs.units.start_N] // tensors["is_action_BT"].shape[1]
    ]
    chosen, rejected = trajectory_N[pairs.chosen_P].tolist(), trajectory_N[pairs.rejected_P].tolist()
    return list(zip(chosen, rejected, strict=True))


def test_rules_on_one_group():
    tensors = group([0.2, 0.9, 0.9, 0.1])
    assert found(pairing.best_worst, tensors) == [(1, 3)]
    assert found(pairing.all_pairs, tensors) == [(1, 0), (1, 3), (2, 0), (2, 3), (0, 3)]
    assert found(partial(pairing.all_pairs, most=2), tensors) == [(1, 3), (2, 3)]
    assert found(partial(pairing.all_pairs, min_gap=0.75), tensors) == [(1, 3), (2, 3)]
    assert (1, 2) in found(partial(pairing.all_pairs, ties=True), tensors)
    assert found(pairing.best_rest, tensors) == [(1, 0), (1, 3)]
    assert found(pairing.best_worst, group([0.5, 0.5, 0.5])) == []
    assert found(pairing.best_worst, group([float("nan"), 1.0, 0.0, float("nan")])) == [(1, 2)]
    assert found(pairing.best_worst, group([1.0, 0.0, 0.5], [0, 1, 2])) == [(2, 1)]  # of no sampled token


def test_pairs_of_equal_length():
    tensors = group([1.0, 1.0, 0.0, 0.2], [2, 6, 5, 7])
    assert found(pairing.equal_length, tensors) == [(1, 2)]
    assert found(partial(pairing.equal_length, max_difference=0), tensors) == []


def test_equal_replies_are_no_pair():
    tensors = group([1.0, 0.0], [2, 2])
    tensors["tokens_BT"] = torch.tensor([[1, 2, 8, 9], [3, 4, 8, 9]])
    assert found(pairing.all_pairs, tensors) == []
    tensors["tokens_BT"][1, 2:] = torch.tensor([9, 8])
    assert found(pairing.all_pairs, tensors) == [(0, 1)]


def test_turns_from_the_same_state():
    tensors = rows([[[(-1.0, 0.0)], [(-1.0, 0.0)]]] * 3, [1.0, 0.0, 0.0])
    tensors["group_B"] = torch.zeros(3, dtype=torch.int64)
    tensors["state_key_BK"] = torch.tensor([[5, 6], [5, 7], [4, 6]])
    pairs = bind(pairing.equal_state, tensors)
    places = pairs.units.place_A[pairs.units.start_N] // tensors["is_action_BT"].shape[1]
    sides = [
        (places[a].item(), places[b].item()) for a, b in zip(pairs.chosen_P, pairs.rejected_P, strict=True)
    ]
    assert sides == [(0, 1), (0, 2)] or sides == [(0, 2), (0, 1)]
    assert pairs.units.length_N.tolist() == [1.0] * 6 and pairs.units.turns_N.tolist() == [1] * 6
    tensors["state_key_BK"] = tensors["state_key_BK"][:, :1]
    with pytest.raises(ValueError, match="state_key_BK has K=1"):
        bind(pairing.equal_state, tensors)


def as_sets(rule, tensors):
    """Pairs as the places of the first tokens of their sides, in columns that no order of rows changes."""
    pairs = bind(rule, tensors)
    place_N, T = pairs.units.place_A[pairs.units.start_N], tensors["is_action_BT"].shape[1]
    row_N, start_N = tensors["trajectory_B"][place_N // T], place_N % T
    return {
        tuple(x[side].item() for side in (a, b) for x in (row_N, start_N))
        for a, b in zip(pairs.chosen_P, pairs.rejected_P, strict=True)
    }


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_order_of_rows_and_dropping_the_rest_change_nothing(rule, seed):
    tensors = ragged(seed, sizes=(2, 5, 4, 1, 6))
    tensors["source_B"] = torch.arange(18) % 3
    tensors["return_B"] = (2 * tensors["return_B"]).round() / 2  # ties
    everything = as_sets(rule, tensors)
    assert everything
    order = torch.randperm(18, generator=torch.Generator().manual_seed(seed))
    assert as_sets(rule, {name: t[order] for name, t in tensors.items()}) == everything
    pairs = bind(rule, tensors)
    units = torch.cat([pairs.chosen_P, pairs.rejected_P]).unique()
    is_in_A = torch.isin(pairs.units.unit_A, units)
    kept = torch.zeros(18, dtype=torch.bool)
    kept[pairs.units.place_A[is_in_A] // tensors["is_action_BT"].shape[1]] = True
    assert as_sets(rule, {name: t[kept] for name, t in tensors.items()}) == everything


def test_a_trajectory_of_several_rows_is_one_side():
    tensors = rows([[[(-1.0, 0.0)], [(-2.0, 0.0)]], [[(-4.0, 0.0)], [(-3.0, 0.0)]]], [1.0, 0.0])
    split = {name: t.repeat_interleave(2, 0) for name, t in tensors.items()}
    turn_B1 = torch.tensor([1, 0, 0, 1])[:, None]
    split["is_action_BT"] = split["is_action_BT"] & (split["turn_BT"] == turn_B1)
    split["first_turn_B"] = turn_B1.squeeze(1)
    assert found(pairing.best_worst, tensors) == found(pairing.best_worst, split) == [(0, 1)]
    units = bind(pairing.best_worst, split).units
    assert units.read(split["logp_BT"]).tolist() == [-1.0, -2.0, -4.0, -3.0]
    assert units.turn_A.tolist() == [0, 1, 0, 1] and units.rank_A.tolist() == [0, 1, 0, 1]
