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
    rows = []
    for row, column in cells:
        near = [(row, column), (row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        bits = sum(1 << cells.index(cell) for cell in near if cell in cells)
        rows.append(bits | int(grid[row][column]) << len(cells))
    pivots: list[int] = []
    for column in range(len(cells)):
        pivot = next((i for i in range(len(pivots), len(rows)) if rows[i] >> column & 1), None)
        if pivot is None:
            continue
        position = len(pivots)
        rows[position], rows[pivot] = rows[pivot], rows[position]
        rows = [
            values ^ rows[position] if i != position and values >> column & 1 else values
            for i, values in enumerate(rows)
        ]
        pivots.append(column)
    free = [column for column in range(len(cells)) if column not in pivots]
    options: list[set[int]] = []
    for chosen in itertools.product((0, 1), repeat=len(free)):
        presses = {column for column, is_on in zip(free, chosen, strict=True) if is_on}
        for i, column in enumerate(pivots):
            value = rows[i] >> len(cells) & 1
            value ^= sum(rows[i] >> other & 1 for other in presses if other in free) & 1
            presses |= {column} if value else set()
        options.append(presses)
    fewest = min(options, key=len)
    return [f"[{cells[index][0]} {cells[index][1]}]" for index in sorted(fewest)]


WAYS = {"[up]": (-1, 0), "[down]": (1, 0), "[left]": (0, -1), "[right]": (0, 1)}


def find_path(game: Any) -> list[str]:
    """Return the shortest path without a hole."""
    grid, start = game.state.game_state["grid"], tuple(game.state.game_state["player_pos"])
    paths: dict[tuple[int, ...], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        position = queue.popleft()
        for action, step in WAYS.items():
            there = tuple(a + b for a, b in zip(position, step, strict=True))
            if there in paths or not all(0 <= coordinate < game.size for coordinate in there):
                continue
            cell = grid[there[0]][there[1]]
            if cell != "H":
                paths[there] = [*paths[position], action]
                queue.append(there)
            if cell == "G":
                return paths[there]
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
