"""Tic-tac-toe: minimax never loses, openings and their splits, rewards, invalid moves."""

from __future__ import annotations

from functools import partial

import pytest

from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.games.tic_tac_toe import (
    TicTacToe,
    _canonicalise,
    _evaluate,
    _find_best,
    _has_won,
    _list_best,
    _list_free,
    _list_openings,
    _put,
)
from lit_agentrl.envs.levels import measure
from lit_agentrl.envs.splits import SPLITS
from tests.conftest import load_task_yaml


def start(board: str, **options: object) -> TicTacToe:
    env = TicTacToe(**options)  # type: ignore[arg-type]
    env.reset(seed=0)
    mark = "XO"[(9 - board.count("_")) % 2]
    env.load_state_dict({**env.state_dict(), "game": {"board": board, "mark": mark, "answer": -1}})
    return env


@pytest.mark.slow
def test_the_contract() -> None:
    check_env(load_task_yaml("tic_tac_toe").make)
    check_env(lambda split: TicTacToe(split=split, plays="O", minimax_share=1, openings=3), episodes=5)


def test_values_known_from_elsewhere() -> None:
    assert _evaluate("_" * 9, "X") == 0
    assert [len(_list_openings(size)) for size in range(5)] == [1, 9, 72, 188, 720]
    assert {_canonicalise(board) for board in _list_openings(1)} == {"X________", "_X_______", "____X____"}
    assert len({_canonicalise(board) for board in _list_openings(2)}) == 12
    assert _list_best("X___O___X", "O") == [1, 3, 5, 7], "a corner would lose"


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_best_play_never_loses(share: float) -> None:
    """Follow every answer of the opponent to every best move, from every opening of the default."""
    reached = {board for size in range(5) for board in _list_openings(size)}
    while reached:
        boards, reached = reached, set()
        for board in boards:
            mark = "XO"[(9 - board.count("_")) % 2]
            opponent = "XO"[mark == "X"]
            after = _put(board, _find_best(board, mark, share, 0.5)[1], mark)
            if _has_won(after, mark):
                continue
            for answer in _list_free(after) if share < 1 else _list_best(after, opponent):
                found = _put(after, answer, opponent)
                assert not _has_won(found, opponent), (board, after)
                if "_" in found:
                    reached.add(found)


def test_openings_of_the_splits_are_no_images_of_each_other() -> None:
    seen: dict[str, set[str]] = {}
    for split in SPLITS:
        env = TicTacToe(split=split)
        seen[split] = set()
        for seed in range(300):
            env.reset(seed=seed)
            board, mark = env._board, env._mark
            assert mark == ("X" if board.count("X") == board.count("O") else "O")
            assert board.count("_") >= 5 and _evaluate(board, mark) >= 0
            seen[split].add(_canonicalise(board))
    assert not seen["train"] & seen["val"] and not seen["test"] & (seen["train"] | seen["val"])
    assert len(seen["val"]) > 5 and len(seen["test"]) > 5
    for plays in "XO":
        env = TicTacToe(plays=plays)
        assert all(env.reset(seed=seed)[0].startswith(f"You are {plays}.") for seed in range(50))
    for plays, least in (("both", 3), ("X", 4), ("O", 3)):
        for split in SPLITS:
            TicTacToe(plays=plays, openings=least, split=split).reset(seed=0)  # no split is empty


def test_what_is_shown_and_paid() -> None:
    env = start("XX_OO____", minimax_share=1)
    assert env.best_thought() == "wins: 3, threats: 6"
    for wrong in ("1", "0", "10", "x", ""):
        seen, reward, terminated, _, info = env.step(wrong)
        assert (reward, terminated, info["action_is_valid"]) == (0.0, False, False)
        assert seen == "You are X.\nX X 3\nO O 6\n7 8 9"
    seen, reward, terminated, _, info = env.step("3")
    assert (seen, reward) == ("You are X.\nX X X\nO O 6\n7 8 9\nYou won.", 1.0)
    assert terminated and info["success"] and info["reward_parts"] == {"win": 1.0}
    assert env.optimal_actions(horizon=1) is None
    env = start("XX_OO____", minimax_share=1)
    seen, reward, terminated, _, info = env.step("9")
    assert seen == "You are X.\nYour opponent took cell 6.\nX X 3\nO O O\n7 8 X\nYou lost."
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    env = start("XOXXOOOX_", draw_reward=0.25)
    assert env.step("9")[:3] == (
        "You are X.\nX O X\nX O O\nO X X\nIt is a draw.",
        0.25,
        True,
    )


@pytest.mark.slow
def test_levels() -> None:
    levels = {
        share: measure(Task("tic_tac_toe", partial(TicTacToe, minimax_share=share), 6, 1, 6), "train", 300, 0)
        for share in (0.0, 1.0)
    }
    assert levels[1.0].oracle_success == 1 and levels[0.0].oracle_return > 0.93  # type: ignore[operator]
    assert levels[1.0].chance_success < 0.4 < levels[0.0].chance_success  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimax_share": 1.5}, "^minimax_share=1.5 must be"),
        ({"plays": "x"}, "^plays=x must be"),
        ({"minimax_share": "half"}, "^minimax_share=half must be"),
        ({"openings": 2}, "^openings=2 must be a whole number from 3 to 6 where plays=both"),
        ({"plays": "X", "openings": 3}, "^openings=3 must be a whole number from 4 to 6 where plays=X"),
        ({"draw_reward": 1}, "^draw_reward=1 must be"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TicTacToe(**options)  # type: ignore[arg-type]
