"""Guessing a number: answers, best play, invalid guesses."""

from __future__ import annotations

import pytest

from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.games.guess_number import GuessNumber
from lit_agentrl.envs.levels import measure
from tests.conftest import load_task_yaml


def test_the_contract() -> None:
    check_env(load_task_yaml("guess_number").make)
    check_env(lambda split: GuessNumber(split=split, size=10, largest=50))


@pytest.mark.parametrize("size", [2, 3, 10, 100, 127])
def test_best_play_finds_every_number_in_time(size: int) -> None:
    env = GuessNumber(size=size, largest=size)
    needed = []
    for number in range(1, size + 1):
        env.reset(seed=0)
        state = env.state_dict()
        env.load_state_dict({**state, "game": {"first": 1, "number": number, "guesses": []}})
        for count in range(1, size + 1):
            plan = env.optimal_actions(horizon=1)
            assert plan is not None
            if env.step(plan[0])[2]:
                needed.append(count)
                break
    assert len(needed) == size and max(needed) == env.max_solution
    assert env.optimal_actions(horizon=1) is None


def test_answers() -> None:
    env = GuessNumber()
    seen, _ = env.reset(seed=1)
    state = {**env.state_dict(), "game": {"first": 200, "number": 250, "guesses": []}}
    env.load_state_dict(state)
    assert seen.startswith("Guess a number from ") and env.best_thought() == "200 to 299"
    assert env.step("240")[0] == "It is higher than 240."
    assert env.step(" 260 ")[:3] == ("It is lower than 260.", 0.0, False)
    assert env.best_thought() == "241 to 259"
    for wrong in ("", "x", "-250", "250.0", "199", "300", "²50", "9" * 5000, "250 251"):
        seen, reward, terminated, _, info = env.step(wrong)
        assert (seen, reward, terminated, info["action_is_valid"]) == (
            "It is lower than 260.",
            0.0,
            False,
            False,
        )
    seen, reward, terminated, _, info = env.step("250")
    assert (seen, reward, terminated, info["success"]) == ("250 is right.", 1.0, True, True)


def test_levels() -> None:
    levels = measure(load_task_yaml("guess_number"), "val", 300, 0)
    assert levels.oracle_success == 1
    assert levels.chance_success == pytest.approx(1 - 0.99**7, abs=0.06)


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match="^size=1 must be"):
        GuessNumber(size=1)
    with pytest.raises(ValueError, match="^largest=99 must be a whole number from 100"):
        GuessNumber(largest=99)
