"""Sokoban: push every box onto a target; boxes cannot be pulled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.games.sokoban_rooms import MOVES, Board, Cell, Room, draw_rooms_of_length, solve
from lit_agentrl.envs.games.views import check_view, render
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

STEP_COST = -0.1
BOX_ON_REWARD = 1.0
BOX_OFF_REWARD = -1.0
COMPLETION_REWARD = 10.0

_ROOM, _LENGTH = 11, 12  # purpose keys
LENGTHS = {"falling": 2, "uniform": 1}  # number of uniform draws; their smallest is the length
_ATTEMPTS_PER_LENGTH = 20  # layouts tried for one solution length before another length is drawn

KINDS = ("wall", "floor", "target", "box on target", "box", "player", "player on target")
VOCABULARIES: dict[str, dict[str, str]] = {
    "symbols": dict(zip(KINDS, "#_O√XPS", strict=True)),
    "letters": dict(zip(KINDS, "WFTDBAY", strict=True)),
}


class Sokoban(TextEnv):
    """Sokoban with generated, solvable rooms of controlled difficulty.

    Reward of an action: ``step`` -0.1, ``box_on`` +1 for a box moved onto a target, ``box_off`` -1 for one moved
    off, ``completion`` +10 when all are on.  A blocked move is valid and costs its step.  The length of the shortest
    solution is drawn from ``min_solution`` … ``max_solution``, as far as such rooms exist (several boxes need more
    actions).  No box starts on a target.

    ``info["deadlock"]`` is True when a box stands where no push can bring it to a target; the episode does not end.
    With several boxes, some deadlocks are not detected.

    Args:
        split: ``train``, ``val`` or ``test``.
        size: rows and columns, border included.
        num_boxes: boxes, and as many targets.
        min_solution: fewest actions of a shortest solution.
        max_solution: most actions of a shortest solution.
        lengths: ``falling``: the smaller of two uniform draws, so that short rooms are the most frequent, as in most
            collections; or ``uniform``.
        wall_share: largest share of the inner squares that is wall.
        view: ``grid``, ``coordinates`` or ``both``.
        vocab: ``symbols``, or ``letters`` (which shares none of the symbols, for transfer tests).
    """

    def __init__(
        self,
        *,
        split: str = "train",
        size: int = 6,
        num_boxes: int = 1,
        min_solution: int = 3,
        max_solution: int = 10,
        lengths: str = "falling",
        wall_share: float = 0.25,
        view: str = "grid",
        vocab: str = "symbols",
    ) -> None:
        super().__init__(split=split)
        require_whole("size", size, 5)
        require_whole("num_boxes", num_boxes, 1, (size - 2) ** 2 // 3)
        require_whole("min_solution", min_solution, 1)
        require_whole("max_solution", max_solution, min_solution)
        require(lengths in LENGTHS, "lengths", lengths, f"one of {', '.join(LENGTHS)}")
        require(0 <= wall_share <= 0.5, "wall_share", wall_share, "a number in [0, 0.5]")
        require(vocab in VOCABULARIES, "vocab", vocab, f"one of {', '.join(VOCABULARIES)}")
        self.size, self.num_boxes, self.wall_share = size, num_boxes, wall_share
        self.min_solution, self.max_solution, self.lengths = min_solution, max_solution, lengths
        self.view, self.vocab = check_view(view), vocab
        self._place(Room(size, frozenset({(0, 0)}), frozenset(), frozenset(), (1, 1)))

    @property
    def rules(self) -> str:
        """Goal, symbols, actions and rewards."""
        legend = ", ".join(f"{symbol} {kind}" for kind, symbol in VOCABULARIES[self.vocab].items())
        symbols = "" if self.view == "coordinates" else f"Symbols: {legend}.\n"
        places = "" if self.view == "grid" else "Places are row , column, counted from 0 at the top left.\n"
        return (
            "You are solving a Sokoban puzzle: push every box onto a target. Walking into a box pushes it "
            "one square ahead if that square is free of walls and boxes; boxes cannot be pulled.\n"
            f"{symbols}{places}Actions: {', '.join(MOVES)}.\n"
            f"Rewards: {STEP_COST} for each action, +{BOX_ON_REWARD:g} for a box moved onto a target, "
            f"{BOX_OFF_REWARD:g} for a box moved off one, +{COMPLETION_REWARD:g} when all boxes are on one."
        )

    def action_names(self) -> list[str]:
        """Return the four directions."""
        return list(MOVES)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return a shortest solution, cut to ``horizon``; None if there is no solution."""
        require_whole("horizon", horizon, 1)
        actions = solve(self._walls, self._targets, self._boxes, self._player)
        return None if actions is None else actions[:horizon]

    def best_thought(self) -> str | None:
        """Return the places of player, box and target, and best play's next push; see ``build_nano.py``.

        None for rooms that the embedded policy has not learnt to write about.
        """
        if self.view != "grid" or self.vocab != "symbols" or len(self._boxes) != 1:
            return None
        (box,), (target,), player = self._boxes, self._targets, self._player
        places = zip("PXO", (player, box, target), strict=True)
        thought = " ".join(f"{symbol} {row} {column}" for symbol, (row, column) in places)
        for action in self.optimal_actions(horizon=self.max_solution) or ():
            ahead = player[0] + MOVES[action][0], player[1] + MOVES[action][1]
            if ahead == box:
                return f"{thought} go {player[0]} {player[1]} push {action}"
            player = ahead
        return thought

    def _draw_instance(self, seed: int) -> str:
        room = draw_for_split(lambda attempt: self._propose(seed, attempt), _get_content, split=self.split)
        self._place(room)
        return _get_content(room)

    def _propose(self, seed: int, attempt: int) -> Iterable[Room]:
        # draw the length apart from the room, so that short solutions, which are easier to find, are not favoured
        length_rng = keyed_rng(seed, attempt // _ATTEMPTS_PER_LENGTH, _LENGTH)
        return draw_rooms_of_length(
            keyed_rng(seed, attempt, _ROOM),
            size=self.size,
            num_boxes=self.num_boxes,
            wall_share=self.wall_share,
            length=int(
                min(length_rng.integers(self.min_solution, self.max_solution + 1, LENGTHS[self.lengths]))
            ),
        )

    def _place(self, room: Room) -> None:
        self._size, self._walls, self._targets = room.size, room.walls, room.targets
        self._boxes, self._player = set(room.boxes), room.player
        board = Board(room.walls, room.targets)
        self._live = board.to_cells(board.live)

    def _observe(self) -> str:
        symbols = VOCABULARIES[self.vocab]
        span = range(self._size)
        rows = [[symbols[self._classify((row, column))] for column in span] for row in span]
        entities = {
            "player": [self._player],
            "boxes": sorted(self._boxes),
            "targets": sorted(self._targets),
            "walls": sorted(self._walls),
        }
        return render(self.view, rows, entities)

    def _classify(self, cell: Cell) -> str:
        is_target = cell in self._targets
        if cell == self._player:
            return "player on target" if is_target else "player"
        if cell in self._boxes:
            return "box on target" if is_target else "box"
        if cell in self._walls:
            return "wall"
        return "target" if is_target else "floor"

    def _play(self, action: str) -> Outcome:
        parts = {"step": STEP_COST, "box_on": 0.0, "box_off": 0.0, "completion": 0.0}
        down, right = MOVES[action]
        row, column = self._player
        ahead, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
        is_stuck = ahead in self._boxes and (beyond in self._walls or beyond in self._boxes)
        if ahead in self._walls or is_stuck:
            return Outcome(parts)
        self._player = ahead
        if ahead not in self._boxes:
            return Outcome(parts)
        self._boxes ^= {ahead, beyond}
        parts["box_on"] = BOX_ON_REWARD if beyond in self._targets else 0.0
        parts["box_off"] = BOX_OFF_REWARD if ahead in self._targets else 0.0
        is_solved = self._boxes <= self._targets
        parts["completion"] = COMPLETION_REWARD if is_solved else 0.0
        return Outcome(parts, terminated=is_solved, success=is_solved)

    def _get_state(self) -> dict[str, Any]:
        cells = {"walls": self._walls, "targets": self._targets, "boxes": self._boxes}
        sorted_cells = {name: [list(cell) for cell in sorted(group)] for name, group in cells.items()}
        return {"size": self._size, "player": list(self._player), **sorted_cells}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        walls, targets, boxes = (
            frozenset((int(row), int(column)) for row, column in state[name])
            for name in ("walls", "targets", "boxes")
        )
        row, column = state["player"]
        self._place(Room(int(state["size"]), walls, targets, boxes, (int(row), int(column))))

    def _extra_info(self) -> dict[str, Any]:
        return {"deadlock": not self._live.issuperset(self._boxes)}


def _get_content(room: Room) -> str:
    groups = (room.walls, room.targets, room.boxes)
    return f"sokoban {room.size} {[sorted(group) for group in groups]} {room.player}"


gymnasium.register(
    "lit_agentrl/Sokoban-v0", entry_point="lit_agentrl.envs.games.sokoban:Sokoban", disable_env_checker=True
)
