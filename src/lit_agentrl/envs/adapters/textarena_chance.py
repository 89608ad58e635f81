"""How games of TextArena are played at random."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

Chance = Callable[[Any, np.random.Generator], str]


def one_of(*actions: str) -> Chance:
    """Each of these actions, equally often."""
    return lambda game, rng: actions[int(rng.integers(len(actions)))]


def _number(low: int, high: int, rng: np.random.Generator) -> int:
    return int(rng.integers(low, high + 1))


def code(game: Any, rng: np.random.Generator) -> str:
    """Any code."""
    digits = rng.choice(
        np.arange(1, game.num_numbers + 1), size=game.code_length, replace=game.duplicate_numbers
    )
    return f"[{' '.join(str(int(digit)) for digit in digits)}]"


def light(game: Any, rng: np.random.Generator) -> str:
    """Any light."""
    return f"[{_number(0, game.size - 1, rng)} {_number(0, game.size - 1, rng)}]"


def disk(game: Any, rng: np.random.Generator) -> str:
    """Any legal move."""
    towers = game.state.game_state["towers"]
    legal = [
        f"[{a} {b}]" for a, b in itertools.permutations("ABC", 2)
        if towers[a] and (not towers[b] or towers[b][-1] > towers[a][-1])
    ]  # fmt: skip
    return legal[int(rng.integers(len(legal)))]


def field(game: Any, rng: np.random.Generator) -> str:
    """Any closed field."""
    closed = [
        (row, column) for row in range(game.rows) for column in range(game.cols)
        if not game.revealed[row][column]
    ]  # fmt: skip
    row, column = closed[int(rng.integers(len(closed)))]
    return f"[{row} {column}]"


def cell(game: Any, rng: np.random.Generator) -> str:
    """Any number in any empty cell."""
    board = game.state.game_state["board"]
    empty = [(row, column) for row in range(9) for column in range(9) if not board[row][column]]
    row, column = empty[int(rng.integers(len(empty)))]
    return f"[{row + 1} {column + 1} {_number(1, 9, rng)}]"
