"""How games of TextArena are won, also by what is hidden: the actions that are left to play."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

Best = Callable[[Any], list[str]]


def hidden_code(game: Any) -> list[str]:
    """The code itself."""
    return [f"[{' '.join(map(str, game.state.game_state['secret_code']))}]"]


def all_lights_out(game: Any) -> list[str]:
    """The fewest presses that put all lights out: linear equations over two values."""
    size, grid = game.size, game.state.game_state["grid"]
    cells = list(itertools.product(range(size), range(size)))
    rows = []
    for row, column in cells:
        near = [(row, column), (row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        bits = sum(1 << cells.index(cell) for cell in near if cell in cells)
        rows.append(bits | int(grid[row][column]) << len(cells))
    pivots: list[int] = []
    for column in range(len(cells)):
        found = next((i for i in range(len(pivots), len(rows)) if rows[i] >> column & 1), None)
        if found is None:
            continue
        here = len(pivots)
        rows[here], rows[found] = rows[found], rows[here]
        rows = [
            each ^ rows[here] if i != here and each >> column & 1 else each for i, each in enumerate(rows)
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
    return [
        f"[{cells[each][0]} {cells[each][1]}]"
        for each in sorted(min(options, key=lambda presses: sum(1 for _ in presses)))
    ]


WAYS = {"[up]": (-1, 0), "[down]": (1, 0), "[left]": (0, -1), "[right]": (0, 1)}


def over_ice(game: Any) -> list[str]:
    """The shortest way that leads into no hole."""
    grid, start = game.state.game_state["grid"], tuple(game.state.game_state["player_pos"])
    ways: dict[tuple[int, ...], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for action, step in WAYS.items():
            there = tuple(a + b for a, b in zip(here, step, strict=True))
            if there in ways or not all(0 <= each < game.size for each in there):
                continue
            cell = grid[there[0]][there[1]]
            if cell != "H":
                ways[there] = [*ways[here], action]
                queue.append(there)
            if cell == "G":
                return ways[there]
    return []


def all_disks_over(game: Any) -> list[str]:
    """The fewest moves to C, from wherever the disks are."""
    place = {disk: name for name, disks in game.state.game_state["towers"].items() for disk in disks}
    moves: list[str] = []

    def bring(disk: int, target: str) -> None:
        if not disk:
            return
        if place[disk] != target:
            (other,) = set("ABC") - {place[disk], target}
            bring(disk - 1, other)
            moves.append(f"[{place[disk]} {target}]")
            place[disk] = target
        bring(disk - 1, target)

    bring(game.num_disks, "C")
    return moves


def all_cells(game: Any) -> list[str]:
    """The solution of every empty cell."""
    board = game.state.game_state["board"]
    return [
        f"[{row + 1} {column + 1} {game.full_grid[row][column]}]"
        for row in range(9) for column in range(9) if not board[row][column]
    ]  # fmt: skip


def greatest(game: Any) -> list[str]:
    """On to the greatest value; nothing once it is gone."""
    draws, here = game.state.game_state["draws"], game.state.game_state["current_idx"] - 1
    skips = draws.index(max(draws)) - here
    return [] if skips < 0 else ["[continue]"] * skips + ["[accept]"] * (skips + here < len(draws))
