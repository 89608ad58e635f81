"""The results of a league: win rates, ratings, and rules that choose an opponent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.report.ratings import compute_expected_score

Payoffs = NDArray[np.float64]
K = 32.0  # Elo points for the whole score of an iteration
FIRST_RATING = 1500.0
_ROUNDS = 2000  # of fictitious play


def solve_meta_game(payoffs_NN: Payoffs, rounds: int = _ROUNDS) -> Payoffs:
    """Compute the mixture that fictitious play reaches in a symmetric zero-sum game.

    Brown, Iterative Solution of Games by Fictitious Play, 1951.  ``n`` counts the choices of earlier rounds, which both
    sides share by symmetry.  Each round adds the best response ``argmax_i sum_j P_ij n_j``, the first of equal ones;
    the mixture after t rounds is ``n / t``.  It converges to a Nash equilibrium of the table, the meta-strategy of PSRO
    (arXiv 1711.00832).  Example: rock, paper and scissors have probability 1/3 each; a player that beats all others
    has probability 1.

    Args:
        payoffs_NN: win rates of row against column, ``P_ij + P_ji = 1``.
        rounds: number of rounds.

    Returns:
        Probabilities (N,), which sum to 1.
    """
    counts_N = np.zeros(len(payoffs_NN))
    values_N = np.zeros(len(payoffs_NN))
    for _ in range(rounds):
        best = int(np.argmax(values_N))
        counts_N[best] += 1
        values_N += payoffs_NN[:, best]
    return counts_N / rounds


def compute_uniform(rates_N: Payoffs, payoffs_NN: Payoffs) -> Payoffs:
    """Return equal weights."""
    return np.full(len(rates_N), 1 / len(rates_N))


def compute_hard(rates_N: Payoffs, payoffs_NN: Payoffs) -> Payoffs:
    """Compute weights ``(1 - p)^2``, p the policy's win rate against a member.

    Prioritised fictitious self-play of AlphaStar (Vinyals et al. 2019), f_hard.  Weights are normalised to sum to 1.
    Example: p = (0.5, 0, 1) gives (0.2, 0.8, 0).  If all p are 1, weights are equal.
    """
    return _normalise((1 - rates_N) ** 2)


def compute_even(rates_N: Payoffs, payoffs_NN: Payoffs) -> Payoffs:
    """Compute weights ``p (1 - p)``, p the policy's win rate against a member.

    Prioritised fictitious self-play of AlphaStar, f_var.  Weights are normalised to sum to 1.  Example: p =
    (0.5, 0.25, 1) gives (4/7, 3/7, 0).
    """
    return _normalise(rates_N * (1 - rates_N))


def compute_nash(rates_N: Payoffs, payoffs_NN: Payoffs) -> Payoffs:
    """Compute the equilibrium of the members' table: PSRO; see `solve_meta_game`."""
    return solve_meta_game(payoffs_NN)


RULES: dict[str, Callable[[Payoffs, Payoffs], Payoffs]] = {
    "uniform": compute_uniform, "hard": compute_hard, "even": compute_even, "nash": compute_nash,
}  # fmt: skip


def _normalise(weights_N: Payoffs) -> Payoffs:
    total = float(weights_N.sum())
    return weights_N / total if total > 0 else np.full(len(weights_N), 1 / len(weights_N))


class Table:
    """Wins of the policy against members, win rates between members, and Elo ratings.

    The policy's win rate against a member is ``p = (wins + 1/2) / (games + 1)``; both numbers are multiplied by
    ``memory`` before each iteration's results are added, since the policy changes.  When the policy joins as member n,
    its win rates become a row of the table: ``P_nj = p_j``, ``P_jn = 1 - p_j``, which is 1/2 where they never met.
    After an iteration in which the policy wins the share s of its duels, ``32 (s - E)`` is added to its Elo rating and
    subtracted from the opponent's; E is the expected score.  A member joins with the rating of the policy.

    Args:
        memory: see above, in [0, 1].
    """

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self.names: list[int] = []  # iteration after which each member joined
        self.payoffs: list[list[float]] = []
        self.wins: list[float] = []
        self.games: list[float] = []
        self.ratings: list[float] = []
        self.rating = FIRST_RATING

    @property
    def rates(self) -> list[float]:
        """The policy's win rates against the members."""
        return [(wins + 0.5) / (games + 1) for wins, games in zip(self.wins, self.games, strict=True)]

    def add_member(self, name: int, most: int) -> int | None:
        """Add the policy as a member, and return the index of a removed member.

        If there are more than ``most`` members, the oldest except the first is removed; otherwise None is returned.
        """
        for row, rate in zip(self.payoffs, self.rates, strict=True):
            row.append(1 - rate)
        self.payoffs.append([*self.rates, 0.5])
        self.names.append(name)
        self.wins.append(0.0)
        self.games.append(0.0)
        self.ratings.append(self.rating)
        if len(self.names) <= most:
            return None
        columns: tuple[list[Any], ...] = (self.names, self.wins, self.games, self.ratings, *self.payoffs)
        for values in (self.payoffs, *columns):
            del values[1]
        return 1

    def record(self, member: int, wins: float, games: float) -> None:
        """Record the duels of an iteration against a member; ties are half a win."""
        self.wins = [self._memory * value for value in self.wins]
        self.games = [self._memory * value for value in self.games]
        if not games:
            return
        self.wins[member] += wins
        self.games[member] += games
        change = K * (wins / games - compute_expected_score(self.rating, self.ratings[member]))
        self.rating += change
        self.ratings[member] -= change

    def compute_weights(self, rule: str) -> list[float]:
        """Return the probability of each member to be the next opponent."""
        rates_N, payoffs_NN = np.array(self.rates), np.array(self.payoffs)
        return [float(weight) for weight in RULES[rule](rates_N, payoffs_NN)]

    def choose(self, rule: str, uniform: float) -> int:
        """Return the member that is drawn by a uniform number in [0, 1)."""
        cumulated = np.cumsum(self.compute_weights(rule))
        return min(
            int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right")), len(self.names) - 1
        )

    def format(self) -> str:
        """Return the table as text: a line for each member, and one for the policy."""
        rows: Sequence[tuple[str, float, Sequence[float]]] = [
            *((str(n), r, p) for n, r, p in zip(self.names, self.ratings, self.payoffs, strict=True)),
            ("policy", self.rating, self.rates),
        ]
        head = "member rating " + " ".join(map(str, self.names))
        return "\n".join(
            [
                head,
                *(f"{name} {rating:.1f} {' '.join(f'{p:.3f}' for p in row)}" for name, rating, row in rows),
            ]
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state in plain values."""
        return {name: copy.deepcopy(getattr(self, name)) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in _STATE:
            setattr(self, name, copy.deepcopy(state[name]))


_STATE = ("names", "payoffs", "wins", "games", "ratings", "rating")
