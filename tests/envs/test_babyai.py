"""BabyAI in words: what is seen is told, the bot of minigrid solves it, and no process sees another game."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from lit_agentrl.envs.adapters.babyai import BabyAI
from lit_agentrl.envs.checker import check_env
from tests.conftest import thinned
from tests.envs.processes import printed_alike

LEVELS = [
    "GoToLocal-v0",
    "PutNextLocal-v0",
    "Unlock-v0",
    "BossLevel-v0",
    "UnlockPickup-v0",
    "GoToImpUnlock-v0",
]


@pytest.mark.slow
@pytest.mark.parametrize("level", thinned(LEVELS, one_in=6))
def test_the_bot_solves_levels_that_keep_the_contract(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = BabyAI(id=f"BabyAI-{level}")
    for seed in range(2):
        env.reset(seed=seed)
        over = False
        for _ in range(400):
            plan = env.optimal_actions(horizon=1)
            assert plan is not None
            _, points, over, _, info = env.step(plan[0])
            if over:
                break
        assert over and info["success"] and points == 1.0 and env.optimal_actions(horizon=1) is None
    check_env(lambda split: BabyAI(id=f"BabyAI-{level}", split=split), episodes=2)
    assert capsys.readouterr().out.count("\n") == 1  # of check_env; the library prints nothing


def test_a_mission_played_by_hand() -> None:
    env = BabyAI(id="BabyAI-PickupLoc-v0")
    told, _ = env.reset(seed=1)
    assert told.splitlines()[0].startswith("goal : pick up ") and "you carry : nothing" in told
    lines = {line for line in told.splitlines() if " step" in line}
    game = env._game
    for cell in filter(None, game.grid.grid):
        if cell.type == "wall" or not game.in_view(*cell.cur_pos):
            continue
        ahead, side = (
            int(np.dot(np.subtract(cell.cur_pos, game.agent_pos), way))
            for way in (game.dir_vec, game.right_vec)
        )
        parts = [f"{ahead} step{'s' * (ahead > 1)} ahead"] * (ahead > 0)
        parts += [f"{abs(side)} step{'s' * (abs(side) > 1)} {'right' if side > 0 else 'left'}"] * (side != 0)
        lines.remove(f"a {cell.color} {cell.type} {' and '.join(parts)}")
    assert lines and all(line.startswith("a wall ") for line in lines), "nothing is told that is not there"
    over = False
    while not over:
        told, _, over, _, info = env.step((env.optimal_actions(horizon=1) or ["none"])[0])
    assert info["success"] and "you carry : a " in told


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("BabyAI-None-v0", "^id=BabyAI-None-v0 must be a level of BabyAI"),
        ("os:BabyAI-GoTo-v0", "must be a level"),
        ("Taxi-v4", "must be a level"),
    ],
)
def test_what_is_no_level_is_told_in_one_line(id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BabyAI(id=id)


def test_what_the_bot_cannot_play_has_no_best_play() -> None:
    env = BabyAI(id="BabyAI-KeyInBox-v0")
    env.reset(seed=0)
    assert env.optimal_actions(horizon=9) is None


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(ValueError, match=r"^this game needs minigrid .*pip install 'lit-agentrl\[babyai\]'$"):
        BabyAI()


@pytest.mark.slow
@pytest.mark.sweep
def test_rooms_are_the_same_in_two_processes() -> None:
    script = (
        "from lit_agentrl.envs.adapters.babyai import BabyAI as B\n"
        "for id in ('GoToLocal', 'BossLevel'):\n"
        "    env = B(id=f'BabyAI-{id}-v0', split='val')\n"
        "    for seed in range(10): print(env.reset(seed=seed), env.optimal_actions(horizon=1), env._get_content())\n"
    )
    assert len(printed_alike(script)) > 20_000
