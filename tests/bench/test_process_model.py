"""A process model against the number of the turn: its figures by hand."""

from __future__ import annotations

import pytest

from scripts.bench.campaigns.process_model import (
    average_by_number,
    average_models,
    compute_errors,
    compute_gap,
    format_table,
    list_outcomes,
    predict_by_number,
)
from tests.rewards.conftest import episode, turn


def test_the_baseline_is_the_mean_label_of_the_number() -> None:
    given = [[0.5, 0.25, 1.0], [0.0, 0.0], [1.0]]
    assert average_by_number(given) == {0: 0.25, 1: 0.25, -1: 0.25}, (
        "what an episode came to in the end is no forecast"
    )
    assert average_by_number([[0.5, 0.0, 1.0], [0.0, 1.0]]) == {0: 0.25, 1: 0.0, -1: pytest.approx(1 / 6)}
    assert predict_by_number([[0.0, 0.0, 0.0]], {0: 0.25, -1: 0.1}) == [[0.25, 0.1, 0.1]]


def test_an_outcome_is_the_label_of_every_turn() -> None:
    played = [episode([turn(), turn()], success=True), episode([turn(), turn(), turn()])]
    assert list_outcomes(played) == [[1.0, 1.0], [0.0, 0.0, 0.0]]
    assert average_by_number(list_outcomes(played)) == {0: 0.5, 1: 0.0, -1: pytest.approx(1 / 3)}


def test_errors_are_means_over_the_turns_of_an_episode() -> None:
    assert compute_errors([[0.5, 1.0, 0.3], [0.9]], [[0.0, 0.5, 1.0], [1.0]]) == [0.25]


def test_the_gap_is_of_the_mean_over_seeds() -> None:
    """Differences of two episodes: (0.1 + 0.3) / 2 - 0.4 = -0.2 and 0: mean -0.1, s = 0.1414, 12.706 s / sqrt 2."""
    found = compute_gap([[0.1, 0.2], [0.3, 0.2]], [0.4, 0.2])
    assert (found.mean, found.n) == (pytest.approx(-0.1), 2)
    assert found.high == pytest.approx(-0.1 + 12.7062 * 0.141421 / 2**0.5, abs=1e-4)
    lines = format_table({0: [0.1, 0.2], 1: [0.3, 0.2]}, [0.4, 0.2]).splitlines()
    assert lines[2] == "| mean label of the turn's number | 0.3000 |"
    assert lines[-1].startswith("| difference, mean over seeds (n = 2 episodes) | -0.1000 [")


def test_several_models_say_their_mean_together() -> None:
    assert average_models([[[0.2, 0.4], [1.0]], [[0.6, 0.0], [0.0]]]) == [[0.4, 0.2], [0.5]]
    lines = format_table({0: [0.3, 0.3]}, [0.4, 0.2], [0.1, 0.3]).splitlines()
    assert (
        lines[-2] == "| their mean | 0.2000 |" and "of their mean (n = 2 episodes) | -0.1000 [" in lines[-1]
    )
