"""Points from a function of one's own: what it is asked, where its points stand, what is refused."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from lit_agentrl.rewards.function import Function
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rewards.shaping.length import Length
from tests.rewards.conftest import episode, turn


def shorter(reply: str, turn: int, cost: float = 0.5) -> float:
    return -cost * len(reply) + 10 * turn


def played():
    first = turn(reward=0.2, reply_text="abc", actions=["Up"], reward_parts={"invalid": -0.1, "goal": 0.3})
    return episode([first, turn(reward=1.0, reply_text="a", actions=["Up", "Left"])], success=True)


def shaped(**options):
    pipeline, one = RewardPipeline({"function": Function(**options)}), played()
    pipeline.score([one], iteration=0)
    return [each.shaped_reward for each in one.turns], pipeline.learn([one], iteration=0)


def test_points_are_added():
    points, curves = shaped(fn=partial(shorter, cost=1.0), weight=2.0)
    assert points == pytest.approx([0.2 + 2 * -3, 1.0 + 2 * (10 - 1)])
    assert curves["reward/function"] == pytest.approx(-6 + 18)


def test_points_of_the_last_turn_alone():
    def solved(success, is_last, turn):
        assert is_last and turn == 1
        return success

    assert shaped(fn=solved, per="episode")[0] == pytest.approx([0.2, 2.0])


@pytest.mark.parametrize(("keep", "first"), [(True, 3.0 - 0.1), (False, 3.0)])
def test_points_in_place_of_the_games(keep, first):
    """Shaping comes on top, however the parts are listed."""
    function = Function(fn=lambda reply: len(reply), replaces=True, keep_penalties=keep)
    one = played()
    RewardPipeline({"length": Length(free_tokens=0, step_tokens=2), "function": function}).score(
        [one], iteration=0
    )
    assert [each.shaped_reward for each in one.turns] == pytest.approx([first, 1.0 - 0.5 * 2])


def test_all_that_it_may_ask_for():
    seen = []

    def everything(reply, actions, observation, points, is_valid, turn, is_last, success, episode, other=3):
        actions.append("mine")  # a copy
        seen.append(
            (reply, actions, observation, points, is_valid, turn, is_last, success, len(episode.turns), other)
        )
        return 0.0

    shaped(fn=everything)
    assert seen == [
        ("abc", ["Up", "mine"], "P", 0.2, True, 0, False, True, 2, 3),
        ("a", ["Up", "Left", "mine"], "P", 1.0, True, 1, True, True, 2, 3),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fn": lambda reference: 1.0},
            "asks for reference; it may ask for reply, actions, observation, points",
        ),
        ({"fn": 3}, "fn=3 must be a function: a _target_ with _partial_: true"),
        ({"fn": shorter, "per": "game"}, "per=game must be one of turn, episode"),
        ({"fn": shorter, "replaces": "no"}, "replaces=no must be true or false"),
        ({"fn": shorter, "keep_penalties": False}, "keep_penalties=false has no effect under replaces=false"),
        ({"fn": shorter, "weight": 0}, "weight=0 must be a number other than 0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Function(**options)


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda: None, "TypeError"),
        (lambda: "1", "it returned '1', and must return a finite number"),
        (lambda: float("nan"), "it returned nan"),
        (lambda reply: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: sys.exit(3), "SystemExit: 3"),
    ],
)
def test_a_function_that_fails_is_named_with_its_place(fn, what):
    with pytest.raises(
        ValueError, match=f"^reward.function.*fails on game instance seed 1, turn 1 .*{what}.*mend"
    ):
        shaped(fn=fn)
