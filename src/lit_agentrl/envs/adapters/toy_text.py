"""The toy-text games of gymnasium in words: actions, observations, success and best play."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

_TINY = 1e-6  # breaks ties between plans of equal return in favour of one that solves the game


class GameText(ABC):
    """Text description of a game of gymnasium.

    Attributes:
        title: name of the game in the prompt.
        actions: names, in the order of gymnasium's numbers.
        max_solution: largest number of actions of best play; 1 if it is not bounded.
        instances: 1 if every game has the same start, else None.
    """

    title: str
    actions: tuple[str, ...]
    max_solution: int = 1
    instances: int | None = None

    def __init__(self, game: Any) -> None:
        self.game = game

    @property
    @abstractmethod
    def rules(self) -> str:
        """Goal, symbols and rewards."""

    @abstractmethod
    def describe(self, observation: Any) -> str:
        """Return the observation in words."""

    @abstractmethod
    def get_content(self, observation: Any) -> str:
        """Return everything that the future depends on, hidden parts included."""

    def is_solved(self, reward: float) -> bool:
        """Return whether a game that ended with this reward is solved."""
        return reward > 0

    def plan_best(self, horizon: int) -> Sequence[int] | None:
        """Return the best play with ``horizon`` actions left; None: unknown."""
        return None


class Table(GameText):
    """A game with a table of transitions ``P``: ``{state: {action: [(p, next, reward, ends)]}}``."""

    def __init__(self, game: Any) -> None:
        super().__init__(game)
        self._values: list[np.ndarray] = []  # by number of actions left; computed once

    def get_content(self, observation: Any) -> str:
        return str(int(observation))

    def plan_best(self, horizon: int) -> Sequence[int] | None:
        """Return the plan of greatest expected return, along the likeliest outcomes."""
        values, state, plan = self._compute_values(horizon), int(self.game.s), list[int]()
        while len(plan) < horizon:
            plan.append(int(values[horizon - 1 - len(plan)][state].argmax()))
            _, state, _, ends = max(self.game.P[state][plan[-1]], key=lambda outcome: outcome[0])
            if ends:
                break
        return plan

    @functools.cached_property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """Probability, next state, reward and end of each outcome, by state and action."""
        size, width = len(self.game.P), len(self.actions)
        most = max(len(outcomes) for row in self.game.P.values() for outcomes in row.values())
        probability, next_state, reward, ends = np.zeros((4, size, width, most))
        for state, row in self.game.P.items():
            for action, outcomes in row.items():
                for index, (p, following, gain, is_end) in enumerate(outcomes):
                    cell = state, action, index
                    probability[cell], next_state[cell], ends[cell] = p, following, is_end
                    reward[cell] = gain + _TINY * (is_end and self.is_solved(gain))
        return probability, next_state.astype(int), reward, ends

    def _compute_values(self, horizon: int) -> list[np.ndarray]:
        """Return the action values of all states with 1, 2, … actions left."""
        probability, next_state, reward, ends = self._arrays
        while len(self._values) < horizon:
            later = self._values[-1].max(axis=1) if self._values else np.zeros(len(next_state))
            self._values.append((probability * (reward + (1 - ends) * later[next_state])).sum(axis=2))
        return self._values


class Taxi(Table):
    """Taxi: a passenger waits at one of four places and wants to go to another."""

    title, actions = "Taxi", ("South", "North", "East", "West", "Pickup", "Dropoff")
    max_solution = 18
    places = ("red", "green", "yellow", "blue")

    @property
    def rules(self) -> str:
        return (
            "Drive to the passenger, pick the passenger up, drive to the destination and drop the passenger off.\n"
            "Symbols: T taxi, R red, G green, Y yellow, B blue, | a wall between two squares, : an open side.\n"
            f"Actions: {', '.join(self.actions)}. A move into a wall leaves the taxi where it is.\n"
            "Rewards: -1 for an action, -10 for picking up or dropping off where that cannot be, 20 at the end."
        )

    def describe(self, observation: Any) -> str:
        row, column, passenger, destination = (int(value) for value in self.game.decode(int(observation)))
        board = [[cell.decode() for cell in line] for line in self.game.desc]
        board[row + 1][2 * column + 1] = "T"
        where = "in the taxi" if passenger == 4 else f"at {self.places[passenger]}"
        lines = ["".join(line) for line in board]
        return "\n".join([*lines, f"passenger : {where}", f"destination : {self.places[destination]}"])

    def get_content(self, observation: Any) -> str:
        return f"{int(observation)} {bool(self.game.fickle_step)}"

    def plan_best(self, horizon: int) -> Sequence[int] | None:
        # the table has no fickle passengers
        return None if self.game.fickle_passenger else super().plan_best(horizon)


class CliffWalking(Table):
    """CliffWalking: walk along a cliff to the other side."""

    title, actions = "CliffWalking", ("Up", "Right", "Down", "Left")
    max_solution, instances = 13, 1

    @property
    def rules(self) -> str:
        slips = " You often slip to one of the two sides of where you meant to go." * self.game.is_slippery
        return (
            f"Walk to the goal and stay off the cliff, from which you are put back to the start.{slips}\n"
            f"Symbols: P player, _ ground, C cliff, G goal. Actions: {', '.join(self.actions)}.\n"
            "Rewards: -1 for an action, -100 for one onto the cliff."
        )

    def describe(self, observation: Any) -> str:
        rows, columns = self.game.shape
        board = [["_"] * columns for _ in range(rows)]
        board[-1][1:] = ["C"] * (columns - 2) + ["G"]
        row, column = divmod(int(observation), columns)
        board[row][column] = "P"
        return "\n".join(" ".join(line) for line in board)

    def is_solved(self, reward: float) -> bool:
        return True  # only the goal ends the game


class FrozenLake(Table):
    """FrozenLake: gymnasium's map, with its single start."""

    title, actions, instances = "FrozenLake", ("Left", "Down", "Right", "Up"), 1

    @property
    def rules(self) -> str:
        return (
            "Walk over the ice to the goal; a hole ends the game. On slippery ice a move may go to a side.\n"
            f"Symbols: P player, S start, F ice, H hole, G goal. Actions: {', '.join(self.actions)}.\n"
            "Rewards: 1 at the goal."
        )

    def describe(self, observation: Any) -> str:
        board = [[cell.decode() for cell in line] for line in self.game.desc]
        row, column = divmod(int(observation), len(board[0]))
        board[row][column] = "P"
        return "\n".join(" ".join(line) for line in board)


class Blackjack(GameText):
    """Blackjack with replacement; best play knows only what the player sees."""

    title, actions = "Blackjack", ("Stick", "Hit")

    @property
    def rules(self) -> str:
        return (
            "Come nearer to 21 than the dealer without going over it. Hit takes a card. Stick ends your turn; then "
            "the dealer takes cards up to 17. An ace counts 11 where that does not go over 21 (usable), else 1.\n"
            f"Actions: {', '.join(self.actions)}.\nRewards: 1 for a win, 0 for a draw, -1 for a loss."
        )

    def describe(self, observation: Any) -> str:
        total, dealer, usable = (int(value) for value in observation)
        return f"your sum : {total}\nusable ace : {'yes' if usable else 'no'}\ndealer shows : {dealer}"

    def get_content(self, observation: Any) -> str:
        return f"{[int(card) for card in self.game.player]} {[int(card) for card in self.game.dealer]}"

    def plan_best(self, horizon: int) -> Sequence[int] | None:
        cards = [int(card) for card in self.game.player]
        has_ace = 1 in cards
        shown = int(self.game.dealer[0])
        hit = _compute_hit_value(sum(cards), has_ace, shown, horizon)
        stick = _compute_stick_value(_count_total(sum(cards), has_ace), shown)
        return [int(hit > stick)]


# card -> probability to draw it; 10 also stands for jack, queen and king, and 1 for the ace
CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}


def _count_total(hard: int, has_ace: bool) -> int:
    return hard + 10 if has_ace and hard + 10 <= 21 else hard


@functools.cache
def _compute_dealer(hard: int, has_ace: bool) -> dict[int, float]:
    """Return the probabilities of the dealer's final totals; 0 stands for over 21."""
    total = _count_total(hard, has_ace)
    if total >= 17:
        return {total if total <= 21 else 0: 1.0}
    chances: dict[int, float] = {}
    for card, share in CARDS.items():
        for last, chance in _compute_dealer(hard + card, has_ace or card == 1).items():
            chances[last] = chances.get(last, 0.0) + share * chance
    return chances


def _compute_stick_value(total: int, shown: int) -> float:
    """Return the expected reward of sticking with a total."""
    chances = _compute_dealer(shown, shown == 1).items()
    return sum(chance * ((total > last) - (total < last)) for last, chance in chances)


@functools.cache
def _compute_hit_value(hard: int, has_ace: bool, shown: int, left: int) -> float:
    """Return the expected reward of one more card and best play after it.

    A game that is not finished in time counts as lost.
    """
    if left <= 1:
        return -1.0
    value = 0.0
    for card, share in CARDS.items():
        own, ace = hard + card, has_ace or card == 1
        if own > 21:
            value -= share
        else:
            value += share * max(
                _compute_stick_value(_count_total(own, ace), shown),
                _compute_hit_value(own, ace, shown, left - 1),
            )
    return value


GAME_TEXTS: dict[str, type[GameText]] = {
    "Taxi": Taxi,
    "CliffWalking": CliffWalking,
    "CliffWalkingSlippery": CliffWalking,
    "FrozenLake": FrozenLake,
    "FrozenLake8x8": FrozenLake,
    "Blackjack": Blackjack,
}
