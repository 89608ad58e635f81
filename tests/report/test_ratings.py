"""Elo and Glicko-2 against published examples, and players rated on the same tasks."""

from __future__ import annotations

import math

import pytest

from lit_agentrl.report.ratings import (
    Glicko,
    compute_expected_score,
    compute_ratings,
    update_elo,
    update_glicko2,
)


def test_elo_of_five_games() -> None:
    """The example of a player of 1613 points, with k = 32: 2.5 points where 2.88 were expected."""
    games = [(1609, 0.0), (1477, 0.5), (1388, 1.0), (1586, 1.0), (1720, 0.0)]
    expected = [compute_expected_score(1613, opponent) for opponent, _ in games]
    assert [round(value, 2) for value in expected] == [0.51, 0.69, 0.79, 0.54, 0.35]
    assert update_elo(1613, games) == pytest.approx(1613 + 32 * (2.5 - sum(expected)))
    assert round(update_elo(1613, games)) == 1601
    assert update_elo(1500, [(1500, 1.0)], k=10) == 1505 and update_elo(1500, []) == 1500


def test_glicko_2_of_glickmans_example() -> None:
    games = [(Glicko(1400, 30), 1.0), (Glicko(1550, 100), 0.0), (Glicko(1700, 300), 0.0)]
    rated = update_glicko2(Glicko(1500, 200, 0.06), games, tau=0.5)
    assert rated.rating == pytest.approx(1464.06, abs=0.01)
    assert rated.deviation == pytest.approx(151.52, abs=0.01)
    assert rated.volatility == pytest.approx(0.05999, abs=1e-5)


def test_glicko_2_without_games_and_with_a_surprise() -> None:
    rested = update_glicko2(Glicko(1600, 50, 0.06), [])
    assert rested.rating == 1600 and rested.deviation == pytest.approx(math.hypot(50, 0.06 * 173.7178))
    favourite = Glicko(2200, 40, 0.06)
    surprised = update_glicko2(favourite, [(Glicko(1400, 40), 0.0)] * 10)
    assert surprised.volatility > favourite.volatility and surprised.rating < favourite.rating


def test_players_of_the_same_tasks() -> None:
    rated = compute_ratings({"best": [1.0, 1.0, 0.5], "start": [0.0, None, 0.5], "last": [0.0, 1.0, 0.0]})
    by_hand = update_glicko2(Glicko(), [(Glicko(), s) for s in (1.0, 0.5, 1.0, 0.5, 1.0)])  # of best
    assert rated["best"] == by_hand and rated["best"].rating > rated["start"].rating > rated["last"].rating
    assert compute_ratings({"alone": [1.0]})["alone"].rating == 1500
    with pytest.raises(ValueError, match="different numbers"):
        compute_ratings({"a": [1.0], "b": []})


@pytest.mark.parametrize("score", [-0.1, 2.0])
def test_scores_outside_of_a_game_are_refused(score: float) -> None:
    with pytest.raises(ValueError, match="score="):
        update_elo(1500, [(1500, score)])
    with pytest.raises(ValueError, match="score="):
        update_glicko2(Glicko(), [(Glicko(), score)])
