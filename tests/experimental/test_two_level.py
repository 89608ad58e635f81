"""Two levels: who writes which reply, what a plan costs, which tokens the loss has, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lit_agentrl.actions import Actions
from lit_agentrl.batch import LEFT_OUT, StepBatch, TrajectoryBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.episode import PLANNER, EndReason, Segment, Turn
from lit_agentrl.experimental.two_level import PlanHook, TwoLevel
from lit_agentrl.rl.policy import filters
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.hooks import Moment, write_next
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.text.prompts import Prompt
from tests.build.test_structure import built
from tests.rl.ragged import fresh
from tests.rollout.conftest import reply
from tests.rollout.test_collector import Player
from tests.update.bare import build, float64, gradient, off_policy

PLAN = "<think> left, then up </think> <answer> Left </answer>"  # an action that would break the game


def play(
    structure: Structure, *, iteration: int = 0, script: Any = None
) -> tuple[StepBatch, dict[str, float], Player]:
    player = Player(script or (lambda spec, k: PLAN if k % 3 == 0 else reply("Up")))
    settings = RolloutSettings(prompts=1, members=2, max_context_tokens=400)
    made = Collector(
        player.rules, settings, structure=structure, select_groups=filters.keep_all,
        further_prompts=lambda iteration, wave: StepBatch(iteration, [], [], [], wave=wave),
    )  # fmt: skip
    batch = StepBatch(iteration, seed_P=[7], task_P=[0], group_P=[0])
    return batch, made.collect(batch, player, device=torch.device("cpu")), player


def test_a_plan_is_no_action_and_costs_no_turn() -> None:
    batch, row, _ = play(TwoLevel(every=2))
    episode = batch.episodes[0]
    assert [turn.player == PLANNER for turn in episode.turns] == [True, False, False, True, False]
    assert [turn.actions for turn in episode.turns] == [[], ["Up"], ["Up"], [], ["Up"]]
    assert (episode.success, episode.total_reward, episode.env_calls) == (
        True,
        13.0,
        4,
    )  # reset and three steps
    assert episode.opening[-1]["content"].endswith("P 0\nplan")
    after_plan, told, asked, again = (turn.message for turn in episode.turns[1:])
    assert after_plan == "act\nturns 4 actions 8\nP 0" and again == "act\nturns 2 actions 6\nP 2"
    assert told == "reward +1.0\nturns 3 actions 7\nP 1"
    assert asked == "reward +1.0\nturns 2 actions 6\nP 2\nplan"
    assert (episode.turns[0].reply_segments == Segment.THINK).any() and episode.turns[0].is_valid
    rows = batch.trajectories
    assert rows is not None and LEFT_OUT not in batch.columns
    assert (
        rows.turn_BT[rows.is_plan_BT].unique().tolist() == [0, 3]
        and not (rows.is_plan_BT & ~rows.is_action_BT).any()
    )
    assert (row["structure/plans"], row["structure/subtask_return"]) == (2.0, 6.5)
    assert row["structure/executor_invalid_share"] == 0.0
    assert (
        row["structure/plan_tokens"]
        == sum(len(t.reply_tokens) for t in episode.turns if t.player == PLANNER) / 2
    )


def test_the_budget_is_of_replies_that_act() -> None:
    batch, _, player = play(TwoLevel(every=None), script=lambda spec, k: PLAN if k == 0 else "hm")
    assert [len(episode.turns) for episode in batch.episodes] == [
        5,
        5,
    ]  # one plan, and the four turns of the game
    assert {episode.end for episode in batch.episodes} == {EndReason.TURN_LIMIT}
    told = Evaluation("val", SamplingParams(), plan=TwoLevel(every=3).plan_evaluation)
    found = StepBatch(0, [7], [0], [0])
    told.collect(found, lambda wave, version: player(wave), 0)
    assert found.episodes[0].turns[0].player == PLANNER


def test_without_plans_it_is_independent() -> None:
    one, other = (
        play(structure, script=lambda spec, k: reply("Up"))[0].trajectories
        for structure in (Refill(), TwoLevel(every=0))
    )
    assert one is not None and other is not None
    for name, column in one.to_dict().items():
        assert torch.equal(column, other.to_dict()[name]) or column.isnan().all(), name


@pytest.mark.parametrize(
    ("trains", "period", "planner_trains"),
    [("planner", None, [1, 1, 1, 1]), ("executor", None, [0, 0, 0, 0]), ("alternate", None, [0, 1, 0, 1]),
     ("alternate", 2, [0, 0, 1, 1])],
)  # fmt: skip
def test_which_level_trains(trains: str, period: int | None, planner_trains: list[int]) -> None:
    structure = TwoLevel(trains=trains, period=period)
    for iteration, is_planner in enumerate(planner_trains):
        batch, row, _ = play(structure, iteration=iteration)
        rows = batch.trajectories
        assert rows is not None
        is_trained_BT = rows.is_action_BT & ~batch.columns[LEFT_OUT]
        assert torch.equal(is_trained_BT, rows.is_action_BT & (rows.is_plan_BT == bool(is_planner)))
        assert (row["structure/planner_trains"], row["structure/executor_trains"]) == (
            is_planner,
            1 - is_planner,
        )


def test_of_recorded_episodes_a_level_is_left_out_as_well() -> None:
    batch, _, player = play(TwoLevel(trains="executor"))
    recorded = StepBatch(1, [], [], [], trajectories=batch.trajectories)
    for trains, is_frozen in (("both", False), ("executor", True)):
        made = Collector(
            player.rules, RolloutSettings(prompts=1, members=2, max_context_tokens=400),
            structure=TwoLevel(trains=trains), select_groups=filters.keep_all, further_prompts=lambda i, w: recorded,
        )  # fmt: skip
        made.add_structure_columns(recorded)
        assert (LEFT_OUT in recorded.columns) == is_frozen
    rows = batch.trajectories
    assert rows is not None and torch.equal(recorded.columns[LEFT_OUT], rows.is_plan_BT)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["reinforce", "ppo"])
def test_tokens_that_are_left_out_weigh_nothing(algo: str) -> None:
    """Trajectories of which all is left out are as if they were not there; advantages see them."""
    with float64():
        batch = off_policy()
        is_out_B = batch.member_B == 1

        def after(rows: TrajectoryBatch, columns: dict[str, torch.Tensor]) -> torch.Tensor:
            module = build(fresh(algo, *(["advantage.whiten=false"] if algo == "ppo" else [])))
            module.training_step(StepBatch(0, [], [], [], trajectories=rows, columns=columns), 0)
            return gradient(module)

        left_out_BT = batch.is_action_BT & is_out_B[:, None]
        without = after(batch.select(~is_out_B), {})
        torch.testing.assert_close(after(batch, {LEFT_OUT: left_out_BT}), without, atol=1e-9, rtol=1e-9)
        assert not torch.allclose(after(batch, {}), without)


def test_words_for_instruction_tuned_models() -> None:
    hook, acted, planned = PlanHook(1), Turn("", [], []), Turn("", [], [], player=PLANNER)  # type: ignore[arg-type]
    given: dict[str, Any] = {"turns_left": 1, "actions_left": 1}
    asked, after = (
        write_next(
            hook,
            Moment(Prompt("full"), Actions("names", ("Up",)), "P", turns, **given),
            reward=0.0,
            complaint="",
        )
        for turns in ([planned, acted], [planned])
    )
    assert asked.endswith("this reply is no turn.") and after == "Now follow your plan."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("algo.structure.every=-1",),
            "every=-1 must be a whole number >= 0, or null for one plan an episode",
        ),
        (("algo.structure.trains=all",), "trains=all"),
        (("algo.structure.period=2",), "period=2 has no effect with trains=both; set trains=alternate"),
        (("algo.structure.every=0", "algo.structure.trains=planner"), "with every=0 there is no planner"),
        (
            ("algo.structure.every=0",),
            r"needs turns of a planner, .* set algo/structure=two_level with",
        ),
        (("algo/structure=refill",), r"planner, not given by algo\.structure=Refill"),
        (("context=window",), r"TwoLevel needs a context .*, not given by context=Window; set context=full"),
    ],
)
def test_what_does_not_fit(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(Exception, match=message):
        built("algo=hrl_tar", *options)
