"""Random play of TextArena's games."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

Chance = Callable[[Any, np.random.Generator], str]


def choose_action(*actions: str) -> Chance:
    """Choose uniformly among these actions."""
    return lambda game, rng: actions[int(rng.integers(len(actions)))]


def _draw_number(low: int, high: int, rng: np.random.Generator) -> int:
    return int(rng.integers(low, high + 1))


def choose_code(game: Any, rng: np.random.Generator) -> str:
    """Choose any code."""
    digits = rng.choice(
        np.arange(1, game.num_numbers + 1), size=game.code_length, replace=game.duplicate_numbers
    )
    return f"[{' '.join(str(int(digit)) for digit in digits)}]"


def choose_light(game: Any, rng: np.random.Generator) -> str:
    """Choose any light."""
    return f"[{_draw_number(0, game.size - 1, rng)} {_draw_number(0, game.size - 1, rng)}]"


def choose_move(game: Any, rng: np.random.Generator) -> str:
    """Choose any legal move."""
    towers = game.state.game_state["towers"]
    legal = [
        f"[{a} {b}]" for a, b in itertools.permutations("ABC", 2)
        if towers[a] and (not towers[b] or towers[b][-1] > towers[a][-1])
    ]  # fmt: skip
    return legal[int(rng.integers(len(legal)))]


def choose_field(game: Any, rng: np.random.Generator) -> str:
    """Choose any closed field."""
    closed = [
        (row, column) for row in range(game.rows) for column in range(game.cols)
        if not game.revealed[row][column]
    ]  # fmt: skip
    row, column = closed[int(rng.integers(len(closed)))]
    return f"[{row} {column}]"


def choose_cell(game: Any, rng: np.random.Generator) -> str:
    """Choose any number in any empty cell."""
    board = game.state.game_state["board"]
    empty = [(row, column) for row in range(9) for column in range(9) if not board[row][column]]
    row, column = empty[int(rng.integers(len(empty)))]
    return f"[{row + 1} {column + 1} {_draw_number(1, 9, rng)}]"
