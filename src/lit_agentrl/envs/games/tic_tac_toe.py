"""Tic-tac-toe against an opponent that plays best, at random, or a mixture of both."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lit_agentrl.checks import require_number, require_one_of, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

SIDES = ("both", "X", "O")
_OPENING = 103  # purpose key
_FREE = "_"
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_TURNED, _MIRRORED = (6, 3, 0, 7, 4, 1, 8, 5, 2), (2, 1, 0, 5, 4, 3, 8, 7, 6)


class TicTacToe(TextEnv):
    """Tic-tac-toe from an opening of a few random moves, against a program.

    The task is the opening: a position with none to ``openings`` moves of random play, where the policy moves next and
    can avoid a loss.  Positions that are rotations or mirror images of each other are in the same split.  The
    opponent's moves are noise: each is the best one (by minimax, equal ones equally often) with probability
    ``minimax_share``, else any.

    A win earns 1, a draw ``draw_reward`` and a loss 0; with 0.5 for a draw these are the usual 1, 0 and -1, rescaled
    to 0 to 1 as in the other worlds.  A game is solved if it is not lost.  A move onto a taken cell is invalid and
    changes nothing.  Random play marks any empty cell; best play maximises the expected reward against this very
    opponent (expectimax).

    Args:
        minimax_share: Share of the opponent's moves that are best; 0: a random opponent, 1: minimax.
        plays: Mark of the policy; X begins.  ``both``: each of them in its own tasks.
        openings: Most moves of an opening, both sides counted: 3 to 6, and 4 to 6 for X.
        draw_reward: Reward of a draw.
        split: ``train``, ``val`` or ``test``, by the hash of the opening.

    Raises:
        ValueError: An option is out of range.
    """

    max_solution = 5

    def __init__(
        self,
        *,
        minimax_share: float = 0.5,
        plays: str = "both",
        openings: int = 4,
        draw_reward: float = 0.5,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_number("minimax_share", minimax_share, "a number from 0 to 1", lambda share: 0 <= share <= 1)
        require_one_of("plays", plays, SIDES)
        least = 4 if plays == "X" else 3
        require_whole("openings", openings, least, 6, f" where plays={plays}: each split needs openings")
        require_number(
            "draw_reward",
            draw_reward,
            "a number from 0 to below 1, what a win earns",
            lambda reward: 0 <= reward < 1,
        )
        self._minimax_share, self._draw_reward = float(minimax_share), float(draw_reward)
        self._sizes = [size for size in range(openings + 1) if plays in ("both", "XO"[size % 2])]
        self._board, self._mark = _FREE * 9, "X"
        self._answer = -1  # cell of the opponent's last move; -1: there is none

    @property
    def rules(self) -> str:
        return (
            "Tic-tac-toe. You and an opponent take turns to put X and O into cells from 1 to 9; X begins. Three marks "
            "of your own in a row, a column or a diagonal win. An empty cell shows its number.\n"
            f"Actions: the number of an empty cell.\nRewards: 1 for a win, {self._draw_reward:g} for a draw."
        )

    def action_names(self) -> list[str]:
        """Return the cells, empty or not."""
        return list("123456789")

    def random_action(self, rng: np.random.Generator) -> str:
        """Return an empty cell."""
        cells = _list_free(self._board) or [0]
        return str(cells[int(rng.integers(len(cells)))] + 1)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the move of the highest expected reward; None after the end."""
        require_whole("horizon", horizon, 1)
        if self._is_over():
            return None
        _, cell = _find_best(self._board, self._mark, self._minimax_share, self._draw_reward)
        return [str(cell + 1)]

    def best_thought(self) -> str:
        """Return the cells that win at once, and those where the opponent would win."""
        wins, threats = (
            [
                str(cell + 1)
                for cell in _list_free(self._board)
                if _has_won(_put(self._board, cell, mark), mark)
            ]
            for mark in (self._mark, _get_other(self._mark))
        )
        return f"wins: {' '.join(wins) or 'none'}, threats: {' '.join(threats) or 'none'}"

    def _is_over(self) -> bool:
        return _FREE not in self._board or _has_won(self._board, "X") or _has_won(self._board, "O")

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[str]:
            rng = keyed_rng(seed, attempt, _OPENING)
            size = self._sizes[int(rng.integers(len(self._sizes)))]
            positions = _list_openings(size)
            yield positions[int(rng.integers(len(positions)))]

        self._board = draw_for_split(propose, _canonicalise, split=self.split)
        self._mark, self._answer = "XO"[(9 - self._board.count(_FREE)) % 2], -1
        return self._board

    def _observe(self) -> str:
        shown = [str(cell + 1) if mark == _FREE else mark for cell, mark in enumerate(self._board)]
        lines = [f"You are {self._mark}."]
        lines += [f"Your opponent took cell {self._answer + 1}."] * (self._answer >= 0)
        lines += [" ".join(shown[start : start + 3]) for start in (0, 3, 6)]
        if self._is_over():
            is_won, is_lost = _has_won(self._board, self._mark), _has_won(self._board, _get_other(self._mark))
            lines.append("You won." if is_won else "You lost." if is_lost else "It is a draw.")
        return "\n".join(lines)

    def _play(self, action: str) -> Outcome:
        cell, opponent = int(action) - 1, _get_other(self._mark)
        if self._board[cell] != _FREE:
            return Outcome(action_is_valid=False)
        self._board, self._answer = _put(self._board, cell, self._mark), -1
        if not self._is_over():
            self._answer = self._choose_answer(opponent)
            self._board = _put(self._board, self._answer, opponent)
        if not self._is_over():
            return Outcome()
        if _has_won(self._board, self._mark):
            return Outcome({"win": 1.0}, terminated=True, success=True)
        if _has_won(self._board, opponent):
            return Outcome(terminated=True)
        return Outcome({"draw": self._draw_reward}, terminated=True, success=True)

    def _choose_answer(self, mark: str) -> int:
        is_best = self._noise.random() < self._minimax_share
        cells = _list_best(self._board, mark) if is_best else _list_free(self._board)
        return cells[int(self._noise.integers(len(cells)))]

    def _get_state(self) -> dict[str, Any]:
        return {"board": self._board, "mark": self._mark, "answer": self._answer}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._board, self._mark = str(state["board"]), str(state["mark"])
        self._answer = int(state["answer"])


def _get_other(mark: str) -> str:
    return "O" if mark == "X" else "X"


def _put(board: str, cell: int, mark: str) -> str:
    return board[:cell] + mark + board[cell + 1 :]


def _list_free(board: str) -> list[int]:
    return [cell for cell, mark in enumerate(board) if mark == _FREE]


@functools.cache
def _has_won(board: str, mark: str) -> bool:
    return any(all(board[cell] == mark for cell in line) for line in _LINES)


def _canonicalise(board: str) -> str:
    """Return the first of the eight rotations and mirror images in the order of texts."""
    images = [board]
    for order in (_TURNED, _TURNED, _TURNED, _MIRRORED, _TURNED, _TURNED, _TURNED):
        images.append("".join(images[-1][cell] for cell in order))
    return min(images)


@functools.cache
def _evaluate(board: str, mark: str) -> int:
    """Return the minimax value for the mark that moves.

    It is 0 for a draw, positive for a win and negative for a loss; its size is larger the earlier the game ends.
    """
    if _has_won(board, _get_other(mark)):
        return -1 - board.count(_FREE)
    cells = _list_free(board)
    return max((-_evaluate(_put(board, cell, mark), _get_other(mark)) for cell in cells), default=0)


def _list_best(board: str, mark: str) -> list[int]:
    """Return all best moves by minimax."""
    best = _evaluate(board, mark)
    return [
        cell for cell in _list_free(board) if -_evaluate(_put(board, cell, mark), _get_other(mark)) == best
    ]


@functools.lru_cache(maxsize=100_000)
def _find_best(board: str, mark: str, minimax_share: float, draw_reward: float) -> tuple[float, int]:
    """Return the highest expected reward of the mark that moves, and its first best cell."""
    opponent, best = _get_other(mark), (-1.0, -1)
    for cell in _list_free(board):
        after = _put(board, cell, mark)
        if _has_won(after, mark):
            return 1.0, cell
        answers, expected = _list_free(after), 0.0 if _FREE in after else draw_reward
        likely = _list_best(after, opponent)
        for answer in answers:
            share = (1 - minimax_share) / len(answers) + (answer in likely) * minimax_share / len(likely)
            reached = _put(after, answer, opponent)
            if not share or _has_won(reached, opponent):
                continue
            is_full = _FREE not in reached
            expected += share * (
                draw_reward if is_full else _find_best(reached, mark, minimax_share, draw_reward)[0]
            )
        if expected > best[0] + 1e-12:  # rounding can make equal rewards differ
            best = expected, cell
    return best


@functools.cache
def _list_openings(size: int) -> list[str]:
    """Return the positions after ``size`` moves where the next mark need not lose."""
    boards = {_FREE * 9}
    for move in range(size):
        boards = {_put(board, cell, "XO"[move % 2]) for board in boards for cell in _list_free(board)}
        boards = {board for board in boards if not _has_won(board, "XO"[move % 2])}
    return sorted(board for board in boards if _evaluate(board, "XO"[size % 2]) >= 0)
