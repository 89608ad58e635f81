"""Credit of a planner and an executor: numbers worked by hand, identities, rows cut anywhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from lit_agentrl.experimental.two_level import two_level
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import advantages
from tests.rl.ragged import ragged

pytestmark = pytest.mark.usefixtures("in_float64")

# turns of two trajectories as (planner's or executor's, points); turn k has k % 2 + 1 tokens
TURNS = [["P0", "E1", "E2", "P0", "E3"], ["P0", "E-1"]]
# with discounts of a half and a cost of a quarter: planner's returns 3.5, 2.5 and -1.5; executor's 2, 2, 3 and -1
PLANNER = torch.tensor([2.0, 1.0, -3.0], dtype=torch.float64) / 7**0.5
EXECUTOR = torch.tensor([0.5, 0.5, 1.5, -2.5], dtype=torch.float64) / 3**0.5


def rows(turns: list[list[str]]) -> dict[str, Tensor]:
    width = 2 * max(map(len, turns))
    masks = {name: torch.zeros(len(turns), width, dtype=torch.bool) for name in ("action", "end", "plan")}
    reward_BT = torch.full((len(turns), width), torch.nan)
    for b, row in enumerate(turns):
        for k, turn in enumerate(row):
            for t in range(
                2 * k, 2 * k + k % 2 + 1
            ):  # where a turn has one token, an observation stands behind it
                masks["action"][b, t], masks["plan"][b, t], reward_BT[b, t] = True, turn[0] == "P", 0.0
            masks["end"][b, t], reward_BT[b, t] = True, float(turn[1:])
    return {
        "is_action_BT": masks["action"], "is_turn_end_BT": masks["end"], "is_plan_BT": masks["plan"],
        "reward_BT": reward_BT, "return_B": reward_BT.nan_to_num().sum(1), "group_B": torch.zeros(len(turns)).long(),
        "trajectory_B": torch.arange(len(turns)), "first_turn_B": torch.zeros(len(turns)).int(),
    }  # fmt: skip


def of_ends(batch: dict[str, Tensor], **constants: float) -> tuple[Tensor, Tensor]:
    """At the ends of turns, planner's and executor's; tokens of a turn are alike, others 0."""
    value_BT = bind(partial(two_level, **constants), batch).advantage_BT
    assert not value_BT[~batch["is_action_BT"]].any()
    assert torch.equal(value_BT[0, 2], value_BT[0, 3])  # of one turn
    is_plan_BT, is_end_BT = batch["is_plan_BT"], batch["is_turn_end_BT"]
    return value_BT[is_end_BT & is_plan_BT], value_BT[is_end_BT & ~is_plan_BT]


def test_numbers_worked_by_hand() -> None:
    found = of_ends(rows(TURNS), discount=0.5, turn_discount=0.5, cost=0.25)
    for value, expected in zip(found, (PLANNER, EXECUTOR), strict=True):
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=0)


def test_one_plan_has_the_advantage_of_its_trajectory() -> None:
    batch = rows([["P0", "E1", "E2"], ["P0", "E-1"], ["P0", "E4"]])
    planner, executor = of_ends(batch)
    assert torch.equal(planner, bind(advantages.group_mean_std, batch).advantage_BT[:, 0])
    assert len(executor.unique()) == 4  # the last reply of the first is paid for itself alone


def test_a_trajectory_that_cannot_be_scored_and_rows_without_plans() -> None:
    batch = rows([*TURNS, ["P0", "E9"]]) | {"return_B": torch.tensor([6.0, -1.0, torch.nan])}
    found = bind(two_level, batch).advantage_BT
    assert torch.equal(found[:2], bind(two_level, rows(TURNS)).advantage_BT) and not found[2].any()
    alone = ragged(0) | {"is_plan_BT": torch.zeros_like(ragged(0)["is_action_BT"])}
    assert bind(two_level, alone).advantage_BT.any()


@pytest.mark.parametrize(("name", "value"), [("discount", 1.5), ("turn_discount", -1.0), ("cost", -0.1)])
def test_constants_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}={value} must be"):
        bind(partial(two_level, **{name: value}), rows(TURNS))
