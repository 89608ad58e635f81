"""Parts that replace the task's reward: DELTA's schedule and GRPO-lambda."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch

from lit_agentrl.rewards.shaping.delta import Delta
from lit_agentrl.rewards.shaping.top_lambda import TopLambda
from lit_agentrl.rl.credit.advantages import group_mean_std
from tests.rewards.conftest import episode, golden, sized, turn


def dense(episodes):
    return [[t.reward for t in e.turns] for e in episodes]


def apply(part, episodes, iteration=0):
    return part.apply(dense(episodes), episodes, iteration=iteration)


def test_top_lambda_golden():
    points = apply(TopLambda(top_share=0.5, alpha=0.2), golden())
    assert [sum(row) for row in points] == pytest.approx([1, 0, 0, 0.946212, 0.853788, 0], abs=1e-6)
    assert [row[:-1] for row in points] == [[0.0], [0.0], [0.0], [0.0], [], [0.0]]


def test_top_lambda_chooses_the_best_solved_groups():
    groups = {3: [True, False], 5: [True, True], 8: [True, True], 9: [False, False]}
    episodes = [
        sized(2 + 4 * m, group=g, member=m, success=s) for g, row in groups.items() for m, s in enumerate(row)
    ]

    def shaped(part):
        points = [row[0] for row in apply(part, episodes)]
        return {e.group for e, value in zip(episodes, points, strict=True) if value not in (0.0, 1.0)}

    assert shaped(TopLambda(top_share=0.2)) == {5}  # at least one; of equals the smaller id
    assert shaped(TopLambda(top_share=0.5)) == {5, 8}
    assert shaped(TopLambda(top_share=1.0)) == {3, 5, 8}  # a lone success has no spread, hence sigmoid(0)
    lone = apply(TopLambda(top_share=1.0), episodes)[0]
    assert lone == [pytest.approx(0.9)]
    for order in list(permutations(range(len(episodes))))[:: 10**4]:
        mixed = [episodes[i] for i in order]
        alone = [apply(TopLambda(), episodes)[i] for i in order]
        assert apply(TopLambda(), mixed) == alone


@pytest.mark.parametrize("make", [lambda **k: TopLambda(**k), lambda **k: Delta(at_iteration=1, **k)])
def test_protocol_penalties_stay_or_not(make):
    failed = episode([turn(reward=2.9, reward_parts={"step": 3.0, "invalid": -0.1}), turn(reward=1.0)])
    assert apply(make(), [failed], 1) == [[-0.1, 0.0]]
    assert apply(make(keep_penalties=False), [failed], 1) == [[0.0, 0.0]]


def test_delta_at_an_iteration():
    part = Delta(at_iteration=2, solved=3.0)
    assert apply(part, golden(), 1) == dense(golden()) and part.curves(golden(), iteration=1) == {
        "phase": 1.0
    }
    assert [sum(row) for row in apply(part, golden(), 2)] == [3, 0, 0, 3, 3, 0]
    assert part.curves(golden(), iteration=2) == {"phase": 2.0}


def test_advantages_before_and_after_the_switch_by_hand():
    """Dense 4, 1, 2, 1 points: mean 2, deviation sqrt(2).  Binary 1, 0, 0, 0: mean 1/4, deviation 1/2."""
    members = [
        sized(2, group=7, member=m, reward=r, success=m == 0) for m, r in enumerate((4.0, 1.0, 2.0, 1.0))
    ]
    part = Delta(at_iteration=1)
    for iteration, by_hand in ((0, [2**0.5, -(0.5**0.5), 0.0, -(0.5**0.5)]), (1, [1.5, -0.5, -0.5, -0.5])):
        returns = torch.tensor([math.fsum(row) for row in apply(part, members, iteration)])
        found = group_mean_std(
            return_B=returns, group_B=torch.full((4,), 7), trajectory_B=torch.arange(4),
            is_action_BT=torch.ones(4, 1, dtype=torch.bool),
        )  # fmt: skip
        assert found.advantage_BT[:, 0].tolist() == pytest.approx(by_hand, abs=1e-5)


def test_delta_when_enough_groups_have_a_success():
    failing = [sized(2, group=g, success=g == 0) for g in range(4)]
    part = Delta(at_iteration=None, share=0.5)
    part.learn(failing, iteration=0)
    assert not part.is_binary(1)
    failing[1].success = True
    part.learn(failing, iteration=1)
    assert part.is_binary(2)
    part.learn([sized(2)], iteration=2)
    assert part.is_binary(3)  # for good


def test_delta_on_a_plateau_and_its_state():
    part = Delta(at_iteration=None, patience=2)
    seen = []
    for iteration, mean in enumerate([1.0, 0.5, 1.5, 1.5, 1.2, 9.0]):
        seen.append(part.is_binary(iteration))
        resumed = Delta(at_iteration=None, patience=2)
        resumed.load_state_dict(part.state_dict())
        part = resumed
        part.learn([sized(2, reward=mean)], iteration=iteration)
    assert seen == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Delta(at_iteration=None), "at_iteration=null never switches"),
        (lambda: Delta(at_iteration=0), "at_iteration=0 must be a whole number >= 1"),
        (lambda: Delta(patience=0), "patience=0 must be a whole number >= 1"),
        (lambda: Delta(share=0), "share=0 must be in"),
        (lambda: Delta(solved=0), "solved=0 must be > 0"),
        (lambda: Delta(keep_penalties=1), "keep_penalties=1 must be true or false"),
        (lambda: TopLambda(top_share=0), "top_share=0 must be in"),
        (lambda: TopLambda(alpha=1.5), "alpha=1.5 must be in"),
        (lambda: TopLambda(alpha=math.nan), "alpha=nan must be in"),
        (lambda: TopLambda(keep_penalties=None), "keep_penalties=null must be true or false"),
    ],
)
def test_options_are_refused(make, message):
    with pytest.raises(ValueError, match="^" + message):
        make()
