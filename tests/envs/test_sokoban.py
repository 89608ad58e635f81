"""Sokoban: a game played by hand, the generator, the solver against exhaustive search."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from lit_agentrl.envs.games.sokoban import VOCABULARIES, Sokoban, solve


def cells_of(picture: list[str], symbols: str) -> list[list[int]]:
    return [[r, c] for r, row in enumerate(picture) for c, here in enumerate(row) if here in symbols]


def place(env: Sokoban, picture: list[str]) -> None:
    """Sets up a room drawn in the game's own symbols."""
    env.reset(seed=0)
    state = env.state_dict()
    groups = {"walls": "#", "targets": "O√S", "boxes": "X√"}
    state["game"] = {name: cells_of(picture, symbols) for name, symbols in groups.items()}
    state["game"] |= {"size": len(picture), "player": cells_of(picture, "PS")[0]}
    env.load_state_dict(state)


def solution(picture: list[str]) -> list[str] | None:
    walls, targets, boxes, players = (
        [tuple(cell) for cell in cells_of(picture, symbols)] for symbols in ("#", "O√S", "X√", "PS")
    )
    return solve(walls, targets, boxes, players[0])


def text(*rows: str) -> str:
    return "\n".join(" ".join(row) for row in rows)


def test_golden_game():
    env = Sokoban()
    place(env, ["#####", "#P__#", "#_X_#", "#__O#", "#####"])
    zero = {"step": -0.1, "box_on": 0.0, "box_off": 0.0, "completion": 0.0}

    observation, reward, terminated, truncated, info = env.step("up")  # into the wall
    assert observation == text("#####", "#P__#", "#_X_#", "#__O#", "#####")
    assert (reward, terminated, truncated) == (-0.1, False, False)
    assert info == {"success": False, "action_is_valid": True, "reward_parts": zero, "deadlock": False}

    observation, reward, *_ = env.step("DOWN")
    assert observation == text("#####", "#___#", "#PX_#", "#__O#", "#####") and reward == -0.1
    observation, reward, *_ = env.step("Right")  # a push
    assert observation == text("#####", "#___#", "#_PX#", "#__O#", "#####") and reward == -0.1
    env.step("Up")
    env.step("Right")
    observation, reward, terminated, truncated, info = env.step("Down")
    assert observation == text("#####", "#___#", "#__P#", "#__√#", "#####")
    assert reward == pytest.approx(10.9) and terminated and not truncated
    assert info["success"] and info["reward_parts"] == zero | {"box_on": 1.0, "completion": 10.0}


def test_box_off_and_player_on_target():
    env = Sokoban(num_boxes=2)
    place(env, ["######", "#P√__#", "#__XO#", "######", "######", "######"])
    observation, reward, _, _, info = env.step("Right")
    assert observation.split("\n")[1] == "# _ S X _ #"
    assert info["reward_parts"]["box_off"] == -1.0 and reward == pytest.approx(-1.1)


def test_a_push_from_target_to_target_pays_both_ways():
    env = Sokoban(num_boxes=2)
    place(env, ["######", "#P√O_#", "#_X__#", "######", "######", "######"])
    _, reward, _, _, info = env.step("Right")
    assert (info["reward_parts"]["box_on"], info["reward_parts"]["box_off"]) == (1.0, -1.0)
    assert reward == pytest.approx(-0.1)


def test_two_boxes_in_a_row_do_not_move():
    env = Sokoban(num_boxes=2)
    place(env, ["######", "#PXX_#", "#_OO_#", "######", "######", "######"])
    before = env.state_key()
    _, reward, _, _, info = env.step("Right")
    assert env.state_key() == before and reward == -0.1 and info["action_is_valid"]


def test_deadlock_is_told_and_the_game_goes_on():
    env = Sokoban()
    place(env, ["#####", "#_XP#", "#___#", "#__O#", "#####"])
    # Along the top wall a box can never come down again: dead before it is in the corner.
    assert env.optimal_actions(horizon=10) is None
    _, _, terminated, _, info = env.step("Left")
    assert info["deadlock"] and not terminated
    assert env.step("Down")[4]["deadlock"]


def test_letters_share_no_symbol_with_symbols():
    assert not set(VOCABULARIES["symbols"].values()) & set(VOCABULARIES["letters"].values())
    symbols, letters = Sokoban(), Sokoban(vocab="letters")
    drawn, told = symbols.reset(seed=4)[0], letters.reset(seed=4)[0]
    pairs = zip(VOCABULARIES["symbols"].values(), VOCABULARIES["letters"].values(), strict=True)
    assert told == drawn.translate(str.maketrans(dict(pairs)))
    assert "wall" in letters.rules and "W wall" in letters.rules


def test_coordinates_and_both():
    env = Sokoban(view="coordinates")
    place(env, ["####", "#PX#", "#_O#", "####"])
    border = "0 , 0 ; 0 , 1 ; 0 , 2 ; 0 , 3 ; 1 , 0 ; 1 , 3 ; 2 , 0 ; 2 , 3 ; 3 , 0 ; 3 , 1 ; 3 , 2 ; 3 , 3"
    expected = f"player : 1 , 1\nboxes : 1 , 2\ntargets : 2 , 2\nwalls : {border}"
    told = env.step("Up")[0]
    assert told == expected
    both = Sokoban(view="both")
    both.load_state_dict(env.state_dict())
    assert both.step("Up")[0] == text("####", "#PX#", "#_O#", "####") + "\n" + expected


def test_generated_rooms_are_well_formed_and_of_every_length():
    env, lengths = Sokoban(lengths="uniform"), Counter()
    for seed in range(400):
        observation, info = env.reset(seed=seed)
        symbols = Counter(observation.replace("\n", " ").split(" "))
        assert sum(symbols.values()) == 36 and not info["deadlock"]
        assert symbols["X"] == 1 and symbols["O"] + symbols["S"] == 1 and symbols["P"] + symbols["S"] == 1
        lengths[len(env.optimal_actions(horizon=99))] += 1
    assert sorted(lengths) == list(range(3, 11))
    assert min(lengths.values()) >= 400 / 8 / 2


def test_short_rooms_are_the_most_frequent_by_default():
    env, lengths = Sokoban(), Counter()
    for seed in range(400):
        env.reset(seed=seed)
        lengths[len(env.optimal_actions(horizon=99))] += 1
    # the smaller of two uniform draws from 3 … 10: 3 and 4 together have 28 of 64 cases, 9 and 10 have 4
    assert 400 * 28 / 64 - 40 < lengths[3] + lengths[4] < 400 * 28 / 64 + 40
    assert lengths[9] + lengths[10] < 400 * 4 / 64 + 20


@pytest.mark.parametrize(
    "options", [{"size": 7, "num_boxes": 2}, {"size": 5, "max_solution": 6}, {"size": 8}]
)
def test_other_sizes_keep_the_bounds(options):
    env = Sokoban(split="test", **options)
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        assert observation.count("X") == env.num_boxes and "√" not in observation
        plan = env.optimal_actions(horizon=99)
        assert 3 <= len(plan) <= env.max_solution
        results = [env.step(action) for action in plan]
        assert results[-1][2] and results[-1][4]["success"] and not any(result[2] for result in results[:-1])


@pytest.mark.slow
def test_solver_is_as_short_as_exhaustive_play():
    env = Sokoban(min_solution=1, max_solution=5)
    for seed in range(15):
        env.reset(seed=seed)
        start = env.state_dict()
        plan = env.optimal_actions(horizon=10)
        solving = [
            length
            for length in range(1, len(plan) + 1)
            if any(
                _solves(env, start, actions)
                for actions in itertools.product(env.action_names(), repeat=length)
            )
        ]
        assert solving[0] == len(plan)


def _solves(env: Sokoban, start: dict, actions: tuple[str, ...]) -> bool:
    env.load_state_dict(start)
    return any(env.step(action)[2] for action in actions[:-1]) is False and env.step(actions[-1])[2]


def test_solver_sees_what_cannot_be_solved():
    assert solution(["#####", "#P_X#", "#___#", "#O__#", "#####"]) is None
    # Not a dead square, yet the player cannot get to the far side.
    assert solution(["#####", "#PXO#", "#####", "#####", "#####"]) == ["Right"]
    assert solution(["######", "#OXP_#", "######", "######", "######", "######"]) == ["Left"]
    assert solution(["######", "#PX_X#", "#_O_O#", "######", "######", "######"]) is None
    assert solution(["####", "#P√#", "####", "####"]) == []


def test_plan_is_cut_to_the_horizon():
    env = Sokoban(min_solution=8)
    env.reset(seed=1)
    assert env.optimal_actions(horizon=3) == env.optimal_actions(horizon=99)[:3]
    with pytest.raises(ValueError, match="horizon"):
        env.optimal_actions(horizon=0)


def test_the_thought_of_best_play_names_places_and_the_next_push():
    env = Sokoban()
    place(env, ["#####", "#P__#", "#_X_#", "#_O_#", "#####"])
    assert env.best_thought() == "P 1 1 X 2 2 O 3 2 go 1 2 push Down"
    env.step("Right")
    assert env.best_thought() == "P 1 2 X 2 2 O 3 2 go 1 2 push Down"
    place(env, ["#####", "#X__#", "#P__#", "#_O_#", "#####"])  # in a corner: no push is left
    assert env.best_thought() == "P 2 1 X 1 1 O 3 2"
    env = Sokoban(vocab="letters")
    env.reset(seed=0)
    assert env.best_thought() is None
