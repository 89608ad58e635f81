"""Ratings of players from the results of their games: Elo and Glicko-2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from lit_agentrl.checks import require_number

_SCALE = 173.7178  # points of Glicko for 1 of Glicko-2, 400 / ln 10
_CENTRE = 1500.0
_NARROW = 1e-6  # width of the bracket at which the search for the volatility stops


def compute_expected_score(rating: float, opponent: float) -> float:
    """Compute the expected score of a player by Elo's model.

    E = 1 / (1 + 10^((R_opponent - R) / 400)): the chance of a win plus half the chance of a draw.  Ratings are in
    points.
    """
    return 1 / (1 + 10 ** ((opponent - rating) / 400))


def update_elo(rating: float, games: Sequence[tuple[float, float]], *, k: float = 32.0) -> float:
    """Compute the Elo rating of a player after the games of a period.

    R' = R + k sum_j (s_j - E_j), E_j as in `compute_expected_score` (Elo, The Rating of Chessplayers, 1978).

    Args:
        rating: before the games, points.
        games: rating of the opponent, points, and score: 1 for a win, 0.5 for a draw, 0 for a loss.
        k: points for one score.

    Raises:
        ValueError: a score is outside [0, 1], or ``k`` is not positive.
    """
    require_number("k", k, "a number > 0", lambda value: value > 0)
    _check_scores([score for _, score in games])
    return rating + k * sum(score - compute_expected_score(rating, opponent) for opponent, score in games)


@dataclass(frozen=True)
class Glicko:
    """A rating of Glicko-2.

    Attributes:
        rating: r, points.
        deviation: RD, the standard deviation of the rating, points: r ± 1.96 RD holds 95 %.
        volatility: sigma, the expected fluctuation of the rating.
    """

    rating: float = _CENTRE
    deviation: float = 350.0
    volatility: float = 0.06


def update_glicko2(player: Glicko, games: Sequence[tuple[Glicko, float]], *, tau: float = 0.5) -> Glicko:
    """Compute the Glicko-2 rating of a player after the games of a period.

    Glickman, Example of the Glicko-2 system, 2013, with mu = (r - 1500) / 173.7178 and phi = RD / 173.7178:

        g(phi) = 1 / sqrt(1 + 3 phi^2 / pi^2)          E_j = 1 / (1 + exp(-g(phi_j) (mu - mu_j)))
        v = 1 / sum_j g(phi_j)^2 E_j (1 - E_j)         delta = v sum_j g(phi_j) (s_j - E_j)
        phi'^2 = 1 / (1 / (phi^2 + sigma'^2) + 1 / v)  mu' = mu + phi'^2 sum_j g(phi_j) (s_j - E_j)

    ``sigma'`` solves equation 5 of the paper by its Illinois algorithm.  Without games only the deviation grows.

    Args:
        player: before the games.
        games: the opponent, as before the games, and the score: 1, 0.5 or 0.
        tau: how fast the volatility may change, about 0.3 to 1.2.

    Raises:
        ValueError: a score is outside [0, 1], or ``tau`` is not positive.
    """
    require_number("tau", tau, "a number > 0", lambda value: value > 0)
    _check_scores([score for _, score in games])
    mu, phi = (player.rating - _CENTRE) / _SCALE, player.deviation / _SCALE
    precision = gain = 0.0
    for opponent, score in games:
        weight = 1 / math.sqrt(1 + 3 * (opponent.deviation / _SCALE / math.pi) ** 2)
        expected = 1 / (1 + math.exp(-weight * (mu - (opponent.rating - _CENTRE) / _SCALE)))
        precision += weight**2 * expected * (1 - expected)
        gain += weight * (score - expected)
    if not precision:
        return Glicko(player.rating, math.hypot(phi, player.volatility) * _SCALE, player.volatility)
    variance = 1 / precision
    sigma = _solve_volatility(phi, player.volatility, variance, variance * gain, tau)
    new_phi = 1 / math.sqrt(1 / (phi**2 + sigma**2) + precision)
    return Glicko((mu + new_phi**2 * gain) * _SCALE + _CENTRE, new_phi * _SCALE, sigma)


def _solve_volatility(phi: float, sigma: float, variance: float, delta: float, tau: float) -> float:
    """Solve equation 5 of Glickman for the new volatility."""
    start = math.log(sigma**2)

    def compute_equation(x: float) -> float:
        total = phi**2 + variance + math.exp(x)
        return math.exp(x) * (delta**2 - total) / (2 * total**2) - (x - start) / tau**2

    low = start
    if delta**2 > phi**2 + variance:
        high = math.log(delta**2 - phi**2 - variance)
    else:
        step = 1
        while compute_equation(start - step * tau) < 0:
            step += 1
        high = start - step * tau
    value_at_low, value_at_high = compute_equation(low), compute_equation(high)
    while abs(high - low) > _NARROW:
        middle = low + (low - high) * value_at_low / (value_at_high - value_at_low)
        value_at_middle = compute_equation(middle)
        if value_at_middle * value_at_high <= 0:
            low, value_at_low = high, value_at_high
        else:
            value_at_low /= 2
        high, value_at_high = middle, value_at_middle
    return math.exp(low / 2)


def compute_ratings(scores: Mapping[str, Sequence[float | None]], *, tau: float = 0.5) -> dict[str, Glicko]:
    """Compute ratings of players that played the same tasks.

    Each pair on a task is a game: the larger score wins, equal ones are a draw, and a task that one of them has not
    played is no game.  All games are one period of Glicko-2, in which every player begins with 1500, 350 and 0.06.

    Args:
        scores: the scores of each player, in the order of tasks; None: the player has not played the task.
        tau: see `update_glicko2`.

    Raises:
        ValueError: the players have different numbers of tasks.
    """
    if len({len(each) for each in scores.values()}) > 1:
        raise ValueError("players must have played the same tasks, but these have different numbers of tasks")
    games: dict[str, list[tuple[Glicko, float]]] = {name: [] for name in scores}
    for first, second in combinations(scores, 2):
        for first_score, second_score in zip(scores[first], scores[second], strict=True):
            if first_score is None or second_score is None:
                continue
            score = 0.5 + 0.5 * (first_score > second_score) - 0.5 * (first_score < second_score)
            games[first].append((Glicko(), score))
            games[second].append((Glicko(), 1 - score))
    return {name: update_glicko2(Glicko(), games[name], tau=tau) for name in scores}


def _check_scores(scores: Sequence[float]) -> None:
    for score in scores:
        require_number("score", score, "a number from 0 to 1", lambda value: 0 <= value <= 1)
