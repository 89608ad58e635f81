"""A leave-one-out of returns to go sees that the policy may stop; baselines of single rewards do not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from lit_agentrl.certificates.certificate import measure_direction
from lit_agentrl.certificates.estimator import Estimator
from lit_agentrl.certificates.exact import make_table
from lit_agentrl.certificates.objectives import list_gradients
from lit_agentrl.certificates.shipped import LENGTHS, REPEAT, STOP, TURNS
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.credit.turn_baseline import process_group_baseline
from lit_agentrl.rl.objective import Objective
from lit_agentrl.rl.returns import return_to_go
from tests.rl.ragged import fresh

GO_ON = 1  # the logit of going on in the first state


def update_of_going_on(objective: Objective) -> float:
    return float(Estimator(objective, STOP).compute_moments(2).mean[GO_ON])


def subtract_mean_by_turn_number(
    *, turn_BT: Tensor, is_action_BT: Tensor, reward_BT: Tensor, trajectory_B: Tensor, first_turn_B: Tensor
) -> Advantage:
    """A peer's rule: the rewards of turn k minus their mean over the members that have a turn k, summed to go."""
    centred_BT = torch.zeros_like(reward_BT)
    for k in range(int(turn_BT.max()) + 1):
        is_here_BT = is_action_BT & (turn_BT == k)
        centred_BT[is_here_BT] = reward_BT[is_here_BT] - reward_BT[is_here_BT].mean()
    return Advantage(
        return_to_go(
            reward_BT=centred_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B,
            first_turn_B=first_turn_B, discount=1.0,
        )
    )  # fmt: skip


def test_two_turns_with_a_choice_to_stop() -> None:
    table = make_table(STOP)
    assert float(list_gradients(table, 0.0)["return"][GO_ON]) == pytest.approx(0.25, abs=1e-10)
    base = fresh("rloo", "advantage=process_group")
    by_turn = replace(base, advantage=partial(subtract_mean_by_turn_number))  # type: ignore[type-var]
    leave_one_out = fresh("rloo", "advantage=process_group_baseline")
    assert update_of_going_on(base) == pytest.approx(0.0, abs=1e-10)
    assert update_of_going_on(by_turn) == pytest.approx(0.0, abs=1e-10)
    assert update_of_going_on(leave_one_out) == pytest.approx(0.25, abs=1e-10)


@pytest.mark.slow
def test_it_is_the_gradient_of_the_return_in_games_of_turns() -> None:
    objective = fresh("rloo", "advantage=process_group_baseline")
    for game in (STOP, TURNS, REPEAT, LENGTHS):
        found = measure_direction(objective, game)
        assert found.is_exact and found.scale == pytest.approx(1.0, abs=1e-10), game.name


def test_worked_numbers_with_a_turn_that_one_member_reached() -> None:
    """Rewards (1, 2), (3) and, unscorable, (5, 5): the second turn of the first has no other to compare with."""
    tensors = {
        "return_B": torch.tensor([3.0, 3.0, float("nan")]),
        "group_B": torch.tensor([7, 7, 7]),
        "trajectory_B": torch.tensor([2, 5, 6]),
        "is_action_BT": torch.tensor([[0, 1, 1, 0, 1], [0, 1, 0, 0, 0], [0, 1, 0, 0, 1]]).bool(),
        "turn_BT": torch.tensor([[0, 0, 0, 1, 1], [0, 0, -1, -1, -1], [0, 0, 1, 1, 1]]),
        "reward_BT": torch.tensor([[0.0, 0, 1, 0, 2], [0, 3, 0, 0, 0], [0, 5, 0, 0, 5]]),
    }
    found = process_group_baseline(**tensors).advantage_BT
    assert found.tolist() == [[0, 0, 0, 0, 2], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    tensors["reward_BT"][1, 1] = 4.0
    found = process_group_baseline(**tensors).advantage_BT
    assert found.tolist() == [[0, -1, -1, 0, 2], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    tensors["turn_BT"][0, 4] = -1
    with pytest.raises(ValueError, match="turn_BT is negative"):
        process_group_baseline(**tensors)
