"""TextWorld: policies win, games repeat, what is shown, and no jericho."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from lit_agentrl.envs.adapters.textworld import FAMILIES, TextWorld, load_library
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.levels import measure
from tests.conftest import load_task_yaml
from tests.envs.processes import printed_alike

pytestmark = [
    pytest.mark.slow,  # the library takes seconds to load
    pytest.mark.skipif(
        find_spec("textworld") is None, reason="textworld is not installed (docs/adapters.md)"
    ),
]
HARD: dict[str, dict[str, object]] = {
    "quest": {"rooms": 10, "objects": 15, "quest_length": 10},
    "coin_collector": {"level": 110},
    "treasure_hunter": {"level": 15},
    "simple": {"rewards": "sparse"},
    "cooking": {"recipe": 3, "take": 3, "go": 6, "cut": True},
}


def solve(env: TextWorld, seed: int) -> float:
    """Play a game by its policy, one command at a time, and return what it earned."""
    env.reset(seed=seed)
    total = 0.0
    for _ in range(env.max_solution):
        plan = env.optimal_actions(horizon=env.max_solution)
        assert plan is not None
        _, reward, is_over, _, info = env.step(plan[0])
        total += reward
        assert info["action_is_valid"]
        if is_over:
            assert info["success"] and env.optimal_actions(horizon=1) is None
            return total
    raise AssertionError("the policy is too long")


def test_the_contract() -> None:
    check_env(
        lambda split: TextWorld(family="coin_collector", settings={"level": 3}, split=split), episodes=1
    )


@pytest.mark.sweep
@pytest.mark.parametrize("number", [30, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("family", FAMILIES)
def test_policies_win_every_game(family: str, number: int) -> None:
    for settings, games in ((None, number), (HARD[family], number // 10)):
        env = TextWorld(family=family, split="test", settings=settings, longest=60)
        assert [solve(env, seed) for seed in range(games)] == pytest.approx([1.0] * games)
    assert solve(TextWorld(family=family, split="train", longest=20), 0) == pytest.approx(1)
    check_env(lambda split: TextWorld(family=family, split=split, longest=20), episodes=5)


@pytest.mark.sweep
def test_games_are_the_same_in_two_processes() -> None:
    script = (
        "from lit_agentrl.envs.adapters.textworld import FAMILIES, TextWorld\n"
        "for family in FAMILIES:\n"
        "    env = TextWorld(family=family, split='val', longest=20)\n"
        "    for seed in range(3): print(env.reset(seed=seed), env.optimal_actions(horizon=9), env._get_content())\n"
    )
    assert len(printed_alike(script)) > 20_000


def test_a_game_played_by_hand() -> None:
    env = TextWorld(family="simple", longest=20, partial=False)
    seen, _ = env.reset(seed=0)
    lines = dict(line.split(": ", 1) for line in seen.splitlines())
    assert lines["Goal"].startswith("The dinner is almost ready!")
    assert lines["Room"] == "bedroom" and lines["Exits"] == "east by wooden door (locked)"
    assert lines["Things"] == "antique trunk (closed), chest drawer (closed), king-size bed"
    assert lines["Carried"] == "none" and "open antique trunk, open chest drawer" in lines["Commands"]
    for wrong in ("", "go east", "open", "open antique trunk, open chest drawer", "x" * 9000):
        again, reward, is_over, _, info = env.step(wrong)
        assert (reward, is_over, info["action_is_valid"]) == (0.0, False, False)
        assert again == seen
    seen, reward, is_over, _, info = env.step(" OPEN  antique trunk\n")
    assert seen.startswith("You open antique trunk.\nRoom: bedroom\n") and info["action_is_valid"]
    assert (reward, is_over) == (0.0, False)
    assert env.step("examine king-size bed")[0].startswith("The king-size bed is ")
    assert "[" not in env.step("examine wooden door")[0]


def test_a_lost_game() -> None:
    """Eating what the dinner needs loses the game."""
    env = TextWorld(family="simple", longest=20, admissible=False)
    seen, _ = env.reset(seed=0)
    assert "Commands" not in seen
    food = seen.splitlines()[0].rpartition("grilled ")[2].strip(".")
    while f"eat {food}" not in env._game.commands:
        env.step((env.optimal_actions(horizon=1) or ["none"])[0])
    seen, _, is_over, _, info = env.step(f"eat {food}")
    assert is_over and not info["success"] and seen.endswith("You lost.")
    assert env.optimal_actions(horizon=1) is None


def test_a_policy_leads_on_from_where_random_play_went() -> None:
    env = TextWorld(family="coin_collector", settings={"level": 4}, longest=10)
    for seed in range(3):
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        for _ in range(4):
            if env.step(env.random_action(rng))[2]:
                break
        else:
            while not env.step((env.optimal_actions(horizon=1) or ["none"])[0])[2]:
                continue
            return
    raise AssertionError("random play ended every game")


def test_a_detailed_goal_tells_the_way() -> None:
    goals = {goal: TextWorld(goal=goal).reset(seed=0)[0].splitlines()[0] for goal in ("brief", "detailed")}
    assert len(goals["detailed"]) > len(goals["brief"]) and goals["brief"].startswith("Goal: ")


def test_levels() -> None:
    levels = measure(load_task_yaml("textworld"), "val", 3, 0)
    assert levels.oracle_success == levels.oracle_return == 1 and levels.chance_success is not None


def test_jericho_is_not_imported() -> None:
    TextWorld()
    assert "textworld" in sys.modules and "jericho" not in sys.modules


def test_without_the_library_both_commands_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    commands = r"pip install 'lit-agentrl\[textworld\]', then pip install --no-deps textworld==1\.7\.0$"
    with pytest.raises(ValueError, match=rf"^this game needs textworld 1\.7\.0 .*{commands}"):
        load_library.__wrapped__()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "alfred"}, "^family=alfred must be"),
        ({"goal": "none"}, "^goal=none must be"),
        ({"family": "cooking", "goal": "detailed"}, "^goal=detailed must be brief"),
        ({"longest": 0}, "^longest=0 must be"),
        (
            {"settings": {"level": 1}},
            "^settings=level must be settings of quest: rooms, objects, quest_length",
        ),
        ({"settings": ["rooms"]}, r"^settings=\[rooms\] must be a mapping of names to values"),
        ({"admissible": None}, "^admissible=null must be true or false"),
        ({"settings": {"rooms": 0}}, r"^settings\.rooms=0 must be 1 to 30"),
        ({"settings": {"rooms": True}}, r"^settings\.rooms=true must be 1 to 30"),
        ({"family": "coin_collector", "settings": {"level": 151}}, r"^settings\.level=151 must be"),
        (
            {"family": "cooking", "settings": {"take": 2}},
            r"^settings\.take=2 must be at most settings\.recipe",
        ),
        ({"family": "cooking", "settings": {"go": 2}}, r"^settings\.go=2 must be 1, 6, 9, 12"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextWorld(**options)  # type: ignore[arg-type]


def test_games_that_need_too_many_commands_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_agentrl.envs.adapters.textworld._TRIES", 2)
    env = TextWorld(longest=2)
    with pytest.raises(ValueError, match=r"^none of 2 games of family=quest .*raise env\.game\.longest"):
        env.reset(seed=0)
