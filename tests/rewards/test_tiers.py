"""ARPO's tiers: each of them by hand, calls and names, and what a game does not have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lit_agentrl.episode import Episode
from lit_agentrl.rewards.shaping.tiers import Tiers, get_called_name
from tests.conftest import load_task_yaml
from tests.rewards.conftest import episode, turn

SEARCH, PYTHON = '{"name": "search", "arguments": {"q": "x"}}', '{"name": "python", "arguments": {}}'


def played(*actions: str, success: bool = True, **last: Any) -> Episode:
    turns = [turn(actions=[action], reward=0.5) for action in actions]
    return episode([*turns[:-1], turn(actions=[actions[-1]], **last)], success=success)


def points(part: Tiers, *episodes: Episode) -> list[list[float]]:
    return part.apply([[t.reward for t in e.turns] for e in episodes], episodes, iteration=0)


def test_each_tier() -> None:
    part = Tiers(tools=["search", "python"])
    given = [
        played(SEARCH, PYTHON), played(SEARCH, SEARCH), played(SEARCH, PYTHON, success=False),
        played(SEARCH, PYTHON, is_well_formed=False),
    ]  # fmt: skip
    assert points(part, *given) == [[0.0, pytest.approx(1.1)], [0.0, 1.0], [0.0, 0.0], [0.0, -1.0]]
    assert points(Tiers(), given[0]) == [[0.0, 1.0]], "without tools there is no bonus"
    fined = played(SEARCH, PYTHON, reward_parts={"invalid": -0.1})
    assert points(Tiers(keep_penalties=True), fined) == [[0.0, pytest.approx(0.9)]]
    assert points(Tiers(broken=-2.0), given[3]) == [[0.0, -2.0]]
    moves = played("Up", "Left")
    assert points(Tiers(tools=["Left", "Up"], bonus=0.5), moves) == [[0.0, 1.5]]


@pytest.mark.parametrize("text", ["Up", "5", "[1]", '{"x": 1}', "[" * 100_000, '{"name": "search"'])
def test_what_is_no_call_is_its_own_name(text: str) -> None:
    assert get_called_name(text) == text


def test_games_have_these_tools() -> None:
    task = load_task_yaml("sokoban")
    env = task.make("train")
    Tiers(tools=["Up"]).check_game(task, env, "")
    with pytest.raises(
        ValueError, match=r"tools=\[search\] names search, and sokoban has no such tool or action: "
    ):
        Tiers(tools=["search"]).check_game(task, env, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"broken": 1}, "broken=1 must be finite and <= 0"),
        ({"bonus": -1}, "bonus=-1 must be finite and >= 0"),
        ({"tools": "search"}, "tools=search must be a list of names"),
        ({"keep_penalties": "no"}, "keep_penalties=no must be true or false"),
    ],
)
def test_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(said)):
        Tiers(**options)
