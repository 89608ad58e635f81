"""Sokoban rooms: exact shortest solutions, and rooms of a chosen solution length by backward search.

A search state is ``(boxes, player)``: a bit mask over the squares and a square.  Squares are numbered
row by row with one padding column, so that a step off the board never lands on a floor square.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Cell = tuple[int, int]  # (row, column), counted from the top left
State = tuple[int, int]

MOVES: dict[str, Cell] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
# The backward search of large rooms stops here; finished layers are still exact.
_MAX_STATES = 50_000


@dataclass(frozen=True)
class Room:
    """A starting position.  Walls include the border."""

    size: int
    walls: frozenset[Cell]
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell


class Board:
    """The fixed part of a room, in the numbering of the searches."""

    def __init__(self, walls: Collection[Cell], targets: Collection[Cell]) -> None:
        height, width = (1 + max(cell[axis] for cell in walls) for axis in (0, 1))
        self.stride = width + 1
        blocked = {self.to_square(cell) for cell in walls}
        squares = (row * self.stride + column for row in range(height) for column in range(width))
        self.floor = [square for square in squares if square not in blocked]
        self.goal = self.to_mask(targets)
        offsets = {name: row * self.stride + column for name, (row, column) in MOVES.items()}
        floor_squares = frozenset(self.floor)
        # From each square: the action, the square it leads to, and the one a pushed box would move to.
        self.moves = {
            here: [(name, here + d, here + 2 * d) for name, d in offsets.items() if here + d in floor_squares]
            for here in self.floor
        }

    def to_square(self, cell: Cell) -> int:
        """Return the number of a cell."""
        return cell[0] * self.stride + cell[1]

    def to_cell(self, square: int) -> Cell:
        """Return the cell of a number."""
        return divmod(square, self.stride)

    def to_mask(self, cells: Iterable[Cell]) -> int:
        """Return the bit mask of some cells."""
        return sum(1 << self.to_square(cell) for cell in cells)

    def to_cells(self, mask: int) -> frozenset[Cell]:
        """Return the cells of a bit mask."""
        return frozenset(self.to_cell(square) for square in self.floor if mask >> square & 1)

    @cached_property
    def live(self) -> int:
        """Mask of the squares from which a lone box can be pushed to a target.

        The player may stand anywhere.
        """
        floor_squares = frozenset(self.floor)
        live = {square for square in self.floor if self.goal >> square & 1}
        frontier = list(live)
        while frontier:
            box = frontier.pop()
            for _, origin, player in self.moves[box]:  # a player beyond the box pulls it to origin
                if player in floor_squares and origin not in live:
                    live.add(origin)
                    frontier.append(origin)
        return sum(1 << square for square in live)


def solve(
    walls: Collection[Cell], targets: Collection[Cell], boxes: Collection[Cell], player: Cell
) -> list[str] | None:
    """Return a shortest solution as a list of actions; None if there is none.

    Breadth-first search over player and boxes, without squares from which a box can never reach a target.  The search
    is exact.  Its time grows with the number of box placements: 0.3 ms for one box on 6x6, milliseconds for two, and up
    to a second for three on 8x8 if the position cannot be solved.
    """
    board = Board(walls, targets)
    start = (board.to_mask(boxes), board.to_square(player))
    dead = ~board.live
    if start[0] & dead:
        return None
    not_goal = ~board.goal
    if not start[0] & not_goal:
        return []
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    frontier = [start]
    while frontier:
        layer, frontier = frontier, []
        for state in layer:
            mask, square = state
            for name, ahead, beyond in board.moves[square]:
                following = (mask, ahead)
                if mask >> ahead & 1:
                    landing = 1 << beyond if beyond >= 0 else 0
                    # Walls are dead squares too, so one test covers both.
                    if not landing or landing & (dead | mask):
                        continue
                    following = (mask ^ (1 << ahead) ^ landing, ahead)
                if following in came_from:
                    continue
                came_from[following] = (state, name)
                if not following[0] & not_goal:
                    return _trace_path(came_from, following)
                frontier.append(following)
    return None


def _trace_path(came_from: dict[State, tuple[State, str] | None], last: State) -> list[str]:
    actions = []
    step = came_from[last]
    while step is not None:
        state, name = step
        actions.append(name)
        step = came_from[state]
    return actions[::-1]


def search_from_solved(board: Board, depth: int) -> list[list[State]]:
    """Return ``layers[d]``: the states whose shortest solution has exactly ``d`` actions, ``d <= depth``.

    Plays backwards (walking and pulling) from every solved state with one box on each target.
    """
    solved = [(board.goal, square) for square in board.floor if not board.goal >> square & 1]
    layers, seen = [solved], set(solved)
    while len(layers) <= depth and layers[-1]:
        next_layer: list[State] = []
        for mask, square in layers[-1]:
            for _, origin, _ in board.moves[square]:
                if mask >> origin & 1:
                    continue
                ahead = 2 * square - origin  # the square the player faced when stepping from origin to square
                states = [(mask, origin)]
                if ahead >= 0 and mask >> ahead & 1:
                    states.append((mask ^ (1 << ahead) ^ (1 << square), origin))
                for state in states:
                    if state not in seen:
                        seen.add(state)
                        next_layer.append(state)
        if len(seen) > _MAX_STATES:
            break
        layers.append(next_layer)
    return layers


def draw_rooms_of_length(
    rng: np.random.Generator, *, size: int, num_boxes: int, wall_share: float, length: int
) -> list[Room]:
    """Return rooms of one random layout whose shortest solution has ``length`` actions, shuffled.

    No box starts on a target.  Otherwise most rooms with several boxes would need only one of them to be pushed.

    Args:
        rng: generator of this layout.
        size: rows and columns, border included.
        num_boxes: number of boxes, and of targets.
        wall_share: largest share of the inner squares that are walls.
        length: number of actions of the shortest solution.

    Returns:
        Rooms; empty if the layout is disconnected or has no such state.
    """
    inner = [(row, column) for row in range(1, size - 1) for column in range(1, size - 1)]
    num_walls = int(rng.integers(int(wall_share * len(inner)) + 1))
    order = rng.permutation(len(inner)).tolist()
    targets = frozenset(inner[index] for index in order[:num_boxes])
    border = {(row, column) for row in range(size) for column in (0, size - 1)}
    border |= {(column, row) for row, column in border}
    walls = frozenset(border | {inner[index] for index in order[num_boxes : num_boxes + num_walls]})
    board = Board(walls, targets)
    if not _is_connected(board):
        return []
    layers = search_from_solved(board, length)
    layer = layers[length] if len(layers) > length else []
    states = [state for state in layer if not state[0] & board.goal]
    return [
        Room(size, walls, targets, board.to_cells(states[index][0]), board.to_cell(states[index][1]))
        for index in rng.permutation(len(states)).tolist()
    ]


def _is_connected(board: Board) -> bool:
    reached, frontier = {board.floor[0]}, [board.floor[0]]
    while frontier:
        for _, ahead, _ in board.moves[frontier.pop()]:
            if ahead not in reached:
                reached.add(ahead)
                frontier.append(ahead)
    return len(reached) == len(board.floor)
