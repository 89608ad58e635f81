"""Task and scenario goal completion: are all tasks of a scenario solved?"""

from __future__ import annotations

from collections.abc import Iterable

from lit_agentrl.episode import Outcome


def list_solved_scenarios(outcomes: Iterable[Outcome]) -> list[bool]:
    """Return whether all tasks were solved, for each scenario that was played whole.

    Scenario goal completion (AppWorld, Trivedi et al. 2024, arXiv 2407.18901) is the mean of this list, and task goal
    completion the mean success:

        TGC = mean over tasks of 1[solved],   SGC = mean over scenarios of min over their tasks of 1[solved]

    A task that was played several times must be solved each time.  Episodes that failed, and games that name no
    scenarios, are left out.

    Args:
        outcomes: outcomes of one game.
    """
    solved_by_scenario: dict[str, dict[str, bool]] = {}
    num_tasks: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.failed or not outcome.scenario:
            continue
        solved = solved_by_scenario.setdefault(outcome.scenario, {})
        solved[outcome.instance_id] = solved.get(outcome.instance_id, True) and outcome.success
        num_tasks[outcome.scenario] = outcome.scenario_tasks
    return [
        all(solved.values()) for name, solved in solved_by_scenario.items() if len(solved) == num_tasks[name]
    ]
