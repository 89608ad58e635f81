"""Compute the actions that win TextArena's games, with knowledge of hidden parts."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

Best = Callable[[Any], list[str]]


def reveal_code(game: Any) -> list[str]:
    """Return the code itself."""
    return [f"[{' '.join(map(str, game.state.game_state['secret_code']))}]"]


def press_lights(game: Any) -> list[str]:
    """Return the fewest presses that put all lights out, by linear equations modulo 2."""
    size, grid = game.size, game.state.game_state["grid"]
    cells = list(itertools.product(range(size), range(size)))
    # one equation for each light, as bits: the presses that switch it, then whether it is on
    equations = []
    for row, column in cells:
        near = [(row, column), (row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        bits = sum(1 << cells.index(cell) for cell in near if cell in cells)
        equations.append(bits | int(grid[row][column]) << len(cells))
    equations, pivots = _solve_equations(equations, len(cells))
    free = [column for column in range(len(cells)) if column not in pivots]
    solutions: list[set[int]] = []
    for values in itertools.product((0, 1), repeat=len(free)):
        free_presses = {column for column, is_pressed in zip(free, values, strict=True) if is_pressed}
        presses = set(free_presses)
        for equation, column in zip(equations, pivots, strict=False):
            parity = sum(equation >> press & 1 for press in free_presses) + (equation >> len(cells))
            presses |= {column} if parity & 1 else set()
        solutions.append(presses)
    fewest = min(solutions, key=len)
    return [f"[{cells[index][0]} {cells[index][1]}]" for index in sorted(fewest)]


def _solve_equations(equations: list[int], num_unknowns: int) -> tuple[list[int], list[int]]:
    """Solve equations modulo 2 by Gauss-Jordan elimination; return them and the unknowns they determine."""
    pivots: list[int] = []
    for column in range(num_unknowns):
        pivot = next((i for i in range(len(pivots), len(equations)) if equations[i] >> column & 1), None)
        if pivot is None:
            continue
        position = len(pivots)
        equations[position], equations[pivot] = equations[pivot], equations[position]
        equations = [
            bits ^ equations[position] if i != position and bits >> column & 1 else bits
            for i, bits in enumerate(equations)
        ]
        pivots.append(column)
    return equations, pivots


STEPS = {"[up]": (-1, 0), "[down]": (1, 0), "[left]": (0, -1), "[right]": (0, 1)}


def find_path(game: Any) -> list[str]:
    """Return the shortest path without a hole."""
    grid, start = game.state.game_state["grid"], tuple(game.state.game_state["player_pos"])
    paths: dict[tuple[int, ...], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        position = queue.popleft()
        for action, step in STEPS.items():
            target = tuple(a + b for a, b in zip(position, step, strict=True))
            if target in paths or not all(0 <= coordinate < game.size for coordinate in target):
                continue
            cell = grid[target[0]][target[1]]
            if cell != "H":
                paths[target] = [*paths[position], action]
                queue.append(target)
            if cell == "G":
                return paths[target]
    return []


def move_disks(game: Any) -> list[str]:
    """Return the fewest moves that bring all disks to C, from any position."""
    tower_of = {disk: name for name, disks in game.state.game_state["towers"].items() for disk in disks}
    moves: list[str] = []

    def move_disk(disk: int, target: str) -> None:
        if not disk:
            return
        if tower_of[disk] != target:
            (other,) = set("ABC") - {tower_of[disk], target}
            move_disk(disk - 1, other)
            moves.append(f"[{tower_of[disk]} {target}]")
            tower_of[disk] = target
        move_disk(disk - 1, target)

    move_disk(game.num_disks, "C")
    return moves


def fill_cells(game: Any) -> list[str]:
    """Return the solution of every empty cell."""
    board = game.state.game_state["board"]
    return [
        f"[{row + 1} {column + 1} {game.full_grid[row][column]}]"
        for row in range(9) for column in range(9) if not board[row][column]
    ]  # fmt: skip


def accept_greatest(game: Any) -> list[str]:
    """Continue to the greatest value and accept it; return nothing once it is gone."""
    draws, position = game.state.game_state["draws"], game.state.game_state["current_idx"] - 1
    skips = draws.index(max(draws)) - position
    return [] if skips < 0 else ["[continue]"] * skips + ["[accept]"]
