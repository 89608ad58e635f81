"""Values of a small tree worked by hand, the pairs that they make, and what a critic learns of both."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.experimental import tree_steps
from lit_agentrl.rl.binding import bind, with_computed
from lit_agentrl.rl.objective import metric_values, try_loss
from lit_agentrl.rl.preference import pairing
from lit_agentrl.rl.preference.objective import NLL
from tests.rl.pairs import loss_of, objective, rows
from tests.rl.ragged import ragged

pytestmark = pytest.mark.usefixtures("in_float64")

# tokens of the replies, two each, and what each turn pays; leaf 1 and 2 took turn 0 over from leaf 0
REPLIES = [[(1, 2), (3, 2)], [(1, 2), (4, 2)], [(1, 2), (5, 2)], [(6, 2)], [(7, 2), (3, 2)]]
PAID = [[0.5, 1.0], [0.5, 0.0], [0.5, 0.25], [0.25], [-1.0, 3.0]]
# hand-worked: the opening has the mean of 1.5, .5, .75, .25 and 2; the reply (1, 2) that of the first three
OPENING, SHARED, BELOW = 1.0, 2.75 / 3, 1.25 / 3
V = [[OPENING, BELOW]] * 3 + [[OPENING], [OPENING, 3.0]]
Q = [[SHARED, 1.0], [SHARED, 0.0], [SHARED, 0.25], [0.25], [2.0, 3.0]]


def grown():
    """The tree: one group whose second turn begins in state 8 below the reply (1, 2), in 9 below the reply (7, 2)."""
    tensors = rows([[[(-1.0, -1.5)] * 2 for _ in turns] for turns in REPLIES], [sum(paid) for paid in PAID])
    tensors |= {"group_B": torch.zeros(5, dtype=torch.int64), "reward_BT": torch.full((5, 8), float("nan"))}
    tensors["reward_BT"][tensors["is_action_BT"]] = 0.0
    for b, (replies, paid) in enumerate(zip(REPLIES, PAID, strict=True)):
        for k, (reply, points) in enumerate(zip(replies, paid, strict=True)):
            tensors["tokens_BT"][b, 4 * k + 2 : 4 * k + 4] = torch.tensor(reply)
            tensors["reward_BT"][b, 4 * k + 3] = points
    tensors["state_key_BK"] = torch.tensor([[7, 8]] * 3 + [[7, 0]] + [[7, 9]])
    tensors["is_turn_end_BT"] = torch.zeros(5, 8, dtype=torch.bool)
    tensors["is_turn_end_BT"][:, [3, 7]] = tensors["is_action_BT"][:, [3, 7]]
    return tensors


def step_loss(**parts):
    return objective(**({"pairing": tree_steps.tree_state, "targets": tree_steps.tree} | parts))


def taught(tensors):
    found = bind(tree_steps.tree, tensors)
    assert torch.equal(found.is_value_target_BT, tensors["is_action_BT"])  # both tokens of each reply
    at = {name: [2, 6] if name == "V" else [3, 7] for name in "VQ"}
    return {
        name: [[x for x, here in zip(row, mask, strict=True) if here] for row, mask in zip(
            found.return_BT[:, t].tolist(), found.is_value_target_BT[:, t].tolist(), strict=True
        )] for name, t in at.items()
    }  # fmt: skip


def test_values_of_a_tree():
    found = taught(grown())
    for name, expected in (("V", V), ("Q", Q)):
        assert [len(row) for row in found[name]] == [len(row) for row in expected]
        for row, values in zip(found[name], expected, strict=True):
            assert row == pytest.approx(values, abs=1e-6)


def test_where_nothing_is_shared_they_are_the_points_that_an_episode_still_got():
    tensors = grown()
    tensors["state_key_BK"] = torch.arange(10).reshape(5, 2)
    found = taught(tensors)
    to_go = [[sum(paid[k:]) for k in range(len(paid))] for paid in PAID]
    assert found["V"] == found["Q"] == to_go


def test_groups_turns_and_unscored_episodes_are_told_apart():
    tensors = grown()
    tensors["return_B"][4] = float("nan")  # its reward is no part of any mean
    found = bind(tree_steps.tree, tensors)
    assert not found.is_value_target_BT[4].any()
    assert found.return_BT[0, 2].item() == pytest.approx((1.5 + 0.5 + 0.75 + 0.25) / 4)
    other = grown() | {"group_B": torch.tensor([0, 0, 0, 1, 1])}
    found = bind(tree_steps.tree, other)
    assert found.return_BT[[0, 3], 2].tolist() == pytest.approx([2.75 / 3, 1.125])
    later = grown()
    later["state_key_BK"][0, 1] = 7  # the opening's state again, a turn later
    assert bind(tree_steps.tree, later).return_BT[0, [2, 6]].tolist() == pytest.approx([1.0, 1.0])


def test_a_reply_of_one_token_has_the_value_of_its_state_alone():
    tensors = grown()
    tensors["is_action_BT"][3, 2] = False
    assert bind(tree_steps.tree, tensors).return_BT[3, 3].item() == pytest.approx(OPENING)
    made = step_loss(ranking=tree_steps.Ranking(coef=1.0, width=0.1))
    pairs, values = bind(made.pairing, tensors), torch.zeros(5, 8)
    assert len(pairs.chosen_P) == 2 and len(made.ranking.value_differences(pairs, values)) == 1


def sides(rule, tensors):
    pairs = bind(rule, tensors)
    place_N = pairs.units.place_A[pairs.units.start_N]
    return [
        tuple(divmod(place_N[side].item(), 8) for side in pair)
        for pair in zip(pairs.chosen_P, pairs.rejected_P, strict=True)
    ], pairs.gap_P.tolist()


def test_pairs_are_of_means_where_equal_state_has_those_of_single_episodes():
    found, gaps = sides(tree_steps.tree_state, grown())
    assert found == [
        ((4, 2), (3, 2)),
        ((0, 6), (1, 6)),
    ]  # the opening: 2 against .25; below (1, 2): 1 against 0
    assert gaps == pytest.approx([1.75, 1.0])
    lucky = grown()  # one episode of (1, 2) is the best of all, and its mean, .5, below the .6 of (7, 2)
    lucky["reward_BT"][[1, 2], 7], lucky["reward_BT"][4, 7] = -0.5, 1.6
    lucky["return_B"] = torch.tensor([1.5, 0.0, 0.0, 0.25, 0.6])
    assert sides(tree_steps.tree_state, lucky)[0][0] == ((4, 2), (3, 2))
    assert sides(pairing.equal_state, lucky)[0][0][0] == (0, 2)
    assert sides(partial(tree_steps.tree_state, min_gap=1.5), grown())[1] == pytest.approx([1.75])
    assert len(sides(partial(tree_steps.tree_state, most=None), grown())[0]) > 2


def test_visits_smooth_the_labels_of_pairs():
    tensors = grown()
    tensors["reward_BT"][
        4, 7
    ] = -3.0  # the worst opening is (7, 2), of one episode, the best (1, 2), of three
    tensors["logp_BT"][4, 2:4] = tensors["ref_logp_BT"][4, 2:4]
    assert sides(tree_steps.tree_state, tensors)[0] == [((0, 2), (4, 2)), ((0, 6), (1, 6))]
    opening = 0.75 * math.log1p(math.exp(-0.1)) + 0.25 * math.log1p(math.exp(0.1))  # z = 0.1 (2 * 0.5 - 0)
    below = math.log(2)  # z = 0, of one episode each
    made = step_loss(targets=None, smoothing=tree_steps.by_visits)
    assert loss_of(made, tensors) == pytest.approx((opening + below) / 2)
    with pytest.raises(ValueError, match="smoothing.*use algo/pairing=tree_state"):
        loss_of(step_loss(targets=None, smoothing=tree_steps.by_visits, pairing=pairing.equal_state), tensors)


def test_equal_means_are_no_pair():
    tensors = grown()
    tensors["reward_BT"][:] = 0.0
    tensors["reward_BT"][[0, 1, 2], 7] = torch.tensor([0.1, 0.2, 0.3]).to(tensors["reward_BT"])
    tensors["reward_BT"][[3], [3]] = tensors["reward_BT"][[4], [7]] = 0.2
    assert [pair for pair in sides(tree_steps.tree_state, tensors)[0] if pair[0][1] == 2] == []


def test_a_group_with_a_pair_is_kept_whole_so_that_means_stay():
    tensors = grown()
    kept = step_loss(targets=None).prepare(tensors)["keep_B"]
    assert kept.tolist() == [True] * 5  # leaf 2 stands in no pair, and in the mean of (1, 2)
    alone = tensors | {"return_B": tensors["return_B"].clone()}
    alone["return_B"][2] = float("nan")
    assert step_loss(targets=None).prepare(alone)["keep_B"].tolist() == [True, True, False, True, True]


def test_a_critic_is_taught_by_groups_without_a_pair_too():
    tensors = grown()
    tensors["reward_BT"][:] = 0.0
    found = step_loss().prepare(tensors)
    assert found["keep_B"].all() and float(found["pairless_share"]) == 1
    assert not step_loss(targets=None).prepare(tensors)["keep_B"].any()


@pytest.mark.parametrize("nll", [None, NLL(coef=0.2)])
def test_the_policys_loss_is_the_same_with_and_without_values(nll):
    tensors, ranking = grown(), tree_steps.Ranking(coef=2.0, width=0.5)
    plain, valued = step_loss(targets=None, nll=nll), step_loss(ranking=ranking, nll=nll)
    assert loss_of(valued, tensors) == loss_of(plain, tensors) > 0
    assert valued.needs("value_BT") and not plain.needs("value_BT") and plain.value_loss(tensors) is None
    # both sides of both pairs have moved by 1 nat: z = 0
    assert loss_of(plain, tensors) == pytest.approx(0.693147 + (0.2 if nll else 0), abs=1e-6)
    # where each reply was played once, the two rules find the same pairs
    once = {name: t[2:] for name, t in tensors.items()}
    assert loss_of(plain, once) == loss_of(objective(pairing=pairing.equal_state, nll=nll), once)


def test_ranking():
    made, tensors = step_loss(ranking=tree_steps.Ranking(coef=2.0, width=0.5)), grown()
    value_BT = torch.zeros(5, 8, dtype=torch.float64)
    value_BT[[4, 3], 3] = torch.tensor([0.3, 0.1])  # apart by .2: .3 is lacking
    value_BT[[0, 1], 7] = torch.tensor([1.0, 0.2])  # by .8
    value_BT.requires_grad_()
    loss, metrics = made.value_loss(tensors | made.count(tensors) | {"value_BT": value_BT})
    assert loss.item() == pytest.approx(2.0 * 0.3 / 2)
    assert metric_values(metrics) == pytest.approx({"critic_ranking": 0.15, "critic_ranked_rightly": 1.0})
    loss.backward()
    expected = torch.zeros(5, 8, dtype=torch.float64)
    expected[4, 3], expected[3, 3] = -1.0, 1.0
    torch.testing.assert_close(value_BT.grad, expected)
    # of two states with one pair each
    assert (
        replace(made, over="groups").value_loss(tensors | made.count(tensors) | {"value_BT": value_BT})[0]
        == loss
    )


@pytest.mark.parametrize("seed", range(3))
def test_order_of_rows_changes_nothing(seed):
    tensors = ragged(seed, sizes=(2, 5, 4, 1, 6))
    tensors["reward_BT"] = (2 * tensors["reward_BT"]).round() / 2
    order = torch.randperm(18, generator=torch.Generator().manual_seed(seed))
    shuffled = {name: t[order] for name, t in tensors.items()}
    found, other = (bind(tree_steps.tree, each) for each in (tensors, shuffled))
    assert torch.equal(found.return_BT[order], other.return_BT)
    made = step_loss(nll=NLL(coef=0.2))
    assert loss_of(made, tensors) == pytest.approx(loss_of(made, shuffled), rel=1e-12)


def test_no_row_and_no_pair():
    none = {name: t[:0] for name, t in grown().items()}
    assert bind(tree_steps.tree, none).return_BT.shape == (0, 8)
    assert len(bind(tree_steps.tree_state, none).chosen_P) == 0
    made, tensors = step_loss(ranking=tree_steps.Ranking(coef=1.0, width=0.1)), grown()
    tensors["return_B"][:] = float("nan")
    loss, _ = made.value_loss(tensors | made.count(tensors) | {"value_BT": torch.ones(5, 8)})
    assert loss.item() == 0 and loss_of(made, tensors) == 0


def test_an_objective_whose_value_loss_fails_is_named_before_anything_is_played():
    class Wrong(tree_steps.Ranking):
        def losses(self, difference_P):
            raise KeyError("gap")

    toy = with_computed(TrajectoryBatch.make_toy().to_dict())
    try_loss(step_loss(ranking=tree_steps.Ranking(coef=1.0, width=0.1)), toy)
    with pytest.raises(ValueError, match="value_loss failed on small rows: KeyError: 'gap'"):
        try_loss(step_loss(ranking=Wrong(coef=1.0, width=0.1)), toy)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tree_steps.Ranking(coef=0.0, width=0.1), "coef=0.0 must be finite and > 0; algo/ranking=none"),
        (lambda: tree_steps.Ranking(coef=1.0, width=-0.1), "width=-0.1 must be finite and >= 0"),
        (
            lambda: step_loss(targets=None, ranking=tree_steps.Ranking(coef=1.0, width=0.1)),
            "algo/targets=none has none: use algo/targets=tree",
        ),
        (lambda: bind(partial(tree_steps.tree_state, most=0), grown()), "most=0 must be"),
        (lambda: bind(partial(tree_steps.tree_state, min_gap=-1.0), grown()), "min_gap=-1.0 must be"),
    ],
)  # fmt: skip
def test_wrong_constants(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
