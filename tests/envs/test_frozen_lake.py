"""FrozenLake: a game played by hand, slips, the planner against brute force."""

from __future__ import annotations

import functools

import pytest

from lit_agentrl.envs.games.frozen_lake import FrozenLake


def place(env: FrozenLake, rows: list[str], square: int) -> None:
    env.reset(seed=0)
    env.load_state_dict(env.state_dict() | {"game": {"map": rows, "square": square}, "is_running": True})


def test_golden_game_without_slips():
    env = FrozenLake(success_rate=1.0, size=3)
    place(env, ["FHF", "FFF", "HFG"], 0)
    observation, reward, terminated, truncated, info = env.step("up")
    assert observation == "P O _\n_ _ _\nO _ G"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "action_is_valid": True, "reward_parts": {"goal": 0.0}}
    assert env.step("Down")[0] == "_ O _\nP _ _\nO _ G"
    assert env.step("RIGHT")[0] == "_ O _\n_ P _\nO _ G"
    assert env.step("Down")[0] == "_ O _\n_ _ _\nO P G"
    observation, reward, terminated, _, info = env.step("Right")
    assert observation == "_ O _\n_ _ _\nO _ √"
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_a_hole_ends_the_game():
    env = FrozenLake(success_rate=1.0, size=2)
    place(env, ["FH", "FG"], 0)
    observation, reward, terminated, _, info = env.step("Right")
    assert observation == "_ X\n_ G"
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert env.optimal_actions(horizon=3) is None


@pytest.mark.slow
def test_slips_go_to_both_sides_as_often_as_stated():
    env = FrozenLake(success_rate=0.5, size=3)
    counts = dict.fromkeys((1, 3, 5), 0)
    for noise_seed in range(1000):
        env.reset(seed=0, options={"noise_seed": noise_seed})
        env.load_state_dict(env.state_dict() | {"game": {"map": ["FFF", "FFF", "FFG"], "square": 4}})
        env.step("Up")
        counts[env.state_dict()["game"]["square"]] += 1
    assert counts[1] == pytest.approx(500, abs=50)
    assert counts[3] == pytest.approx(250, abs=45) and counts[5] == pytest.approx(250, abs=45)


def test_coordinates():
    env = FrozenLake(view="coordinates", success_rate=1.0, size=3)
    place(env, ["FHF", "FFF", "HFG"], 0)
    assert env.step("Down")[0] == "player : 1 , 0\ngoal : 2 , 2\nholes : 0 , 1 ; 2 , 0"
    assert "row , column" in env.rules and "Symbols" not in env.rules


@pytest.mark.slow
def test_generated_maps_are_solvable_within_bounds():
    env, starts, lengths = FrozenLake(success_rate=1.0), set(), set()
    for seed in range(300):
        env.reset(seed=seed)
        plan = env.optimal_actions(horizon=99)
        lengths.add(len(plan))
        starts.add(env.state_dict()["game"]["square"])
        results = [env.step(action) for action in plan]
        assert results[-1][4]["success"] and 2 <= len(plan) <= 10
    assert len(starts) == 16 and lengths >= {2, 3, 4, 5}


@pytest.mark.parametrize("square", [0, 2, 5, 7])
def test_planner_is_as_good_as_brute_force(square):
    rows, horizon = ["FFF", "FHF", "FFG"], 5
    env = FrozenLake(success_rate=0.6, size=3)

    def outcomes(here: int, action: int) -> list[tuple[float, int]]:
        # Written apart from gymnasium: left, down, right, up are a quarter turn apart.
        steps = [(0, -1), (1, 0), (0, 1), (-1, 0)]
        found = []
        for turn, probability in ((-1, 0.2), (0, 0.6), (1, 0.2)):
            down, right = steps[(action + turn) % 4]
            row, column = min(max(here // 3 + down, 0), 2), min(max(here % 3 + right, 0), 2)
            found.append((probability, row * 3 + column))
        return found

    @functools.cache
    def value(here: int, num_left: int) -> float:
        kind = "".join(rows)[here]
        if kind != "F" or num_left == 0:
            return float(kind == "G")
        return max(sum(p * value(to, num_left - 1) for p, to in outcomes(here, a)) for a in range(4))

    place(env, rows, square)
    plan = env.optimal_actions(horizon=horizon)
    action = env.action_names().index(plan[0])
    best = sum(p * value(to, horizon - 1) for p, to in outcomes(square, action))
    assert best == pytest.approx(value(square, horizon), abs=1e-5) and best > 0


def test_plan_heads_for_a_goal_out_of_reach():
    env = FrozenLake(success_rate=1.0)
    place(env, ["FFFF", "HHHF", "FFFF", "FFFG"], 0)
    assert env.optimal_actions(horizon=2) == ["Right", "Right"]
    assert env.optimal_actions(horizon=6) == ["Right"] * 3 + ["Down"] * 3


def test_the_thought_of_best_play_names_player_and_goal():
    env = FrozenLake(size=3)
    place(env, ["FHF", "FFF", "HFG"], 3)
    assert env.best_thought() == "P 1 0 G 2 2"
    place(env, ["FHF", "FFF", "HFG"], 1)
    assert env.best_thought() is None
    env = FrozenLake(view="coordinates")
    env.reset(seed=0)
    assert env.best_thought() is None


def test_thin_ice_costs_and_is_no_reward():
    env = FrozenLake(success_rate=1.0, size=3, thin_share=0.5)
    env.reset(seed=0)
    game = {"map": ["FHF", "FFF", "HFG"], "square": 0, "thin": [3, 4]}
    env.load_state_dict(env.state_dict() | {"game": game, "is_running": True})
    observation, reward, _, _, info = env.step("Down")
    assert observation == "_ O _\nS # _\nO _ G" and (reward, info["cost"]) == (0.0, 1.0)
    assert env.state_dict()["game"] == game | {"square": 3}
    assert env.step("Left")[4]["cost"] == 1.0, "off the board it stays, on thin ice"
    assert env.step("Right")[4]["cost"] == 1.0
    observation, _, _, _, info = env.step("Right")
    assert observation == "_ O _\n# # P\nO _ G" and info["cost"] == 0.0
    _, reward, terminated, _, info = env.step("Down")
    assert (reward, terminated, info["cost"]) == (1.0, True, 0.0)
    assert "# thin ice" in env.rules and "Costs: 1" in env.rules


def test_thin_ice_leaves_maps_and_dynamics_as_they_are():
    plain, thin = FrozenLake(), FrozenLake(thin_share=0.4)
    shares = []
    for seed in range(40):
        first, _ = plain.reset(seed=seed)
        second, _ = thin.reset(seed=seed)
        assert second.replace("#", "_") == first, "the start, the goal and holes are never thin"
        shares.append(second.count("#") / (first.count("_") + 1e-9))
        one, other = plain.step("Up"), thin.step("Up")
        assert other[0].replace("#", "_").replace("S", "P") == one[0] and other[1:4] == one[1:4]
        assert "cost" not in one[4]
    assert sum(shares) / 40 == pytest.approx(0.4, abs=0.1)
    assert thin.reset(seed=3)[0] == FrozenLake(thin_share=0.4).reset(seed=3)[0]


def test_levels_are_of_the_game_without_thin_ice():
    assert "thin_share" not in FrozenLake.identity({"size": 4, "thin_share": 0.0})
    assert FrozenLake.identity({"size": 4, "thin_share": 0.3})["thin_share"] == 0.3
