"""Scenario goal completion, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lit_agentrl.episode import EndReason, Episode, Outcome
from lit_agentrl.report.completion import list_solved_scenarios
from lit_agentrl.report.episodes import EpisodeMetrics

PLAYED = Episode(0, 0, 0, 0, "phone", 0, end=EndReason.FAILURE).outcome


def played(scenario: str, task: int, success: bool) -> Outcome:
    return replace(
        PLAYED, scenario=scenario, scenario_tasks=3, instance_id=f"{scenario}_{task}", success=success
    )


def test_a_scenario_counts_when_all_of_its_tasks_were_played_and_solved() -> None:
    outcomes = [played("a", task, True) for task in range(3)] + [
        played("b", task, task > 0) for task in range(3)
    ]
    assert list_solved_scenarios(outcomes) == [True, False]
    assert list_solved_scenarios([*outcomes, played("c", 0, True), played("c", 1, True)]) == [True, False]
    assert list_solved_scenarios([*outcomes, played("a", 2, False)]) == [
        False,
        False,
    ]  # solved once of two times
    assert list_solved_scenarios([replace(played("a", 0, True), end=EndReason.ERROR), *outcomes[1:]]) == [
        False
    ]
    assert list_solved_scenarios([PLAYED]) == []


def test_it_is_a_metric_of_evaluations_alone() -> None:
    outcomes = [played(name, task, name != "b") for name in "abc" for task in range(3)]
    results = []
    for is_shared in (False, True):
        metrics = EpisodeMetrics(is_shared=is_shared)
        metrics.update(outcomes[:5])
        metrics.update(outcomes[5:])
        results.append(metrics.compute())
    assert results[0]["scenario_success"] == pytest.approx(2 / 3) == results[0]["success"]
    assert "scenario_success" not in results[1]
