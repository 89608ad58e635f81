"""The table of early and late iterations: what is paired, and when the Echo Trap counts as reproduced."""

from __future__ import annotations

from typing import Any

from lit_agentrl.report.page.runs import Run
from lit_agentrl.report.table import Metrics
from tests.conftest import load_script

script = load_script("early_late")


def run(seed: int, distinct: list[float], template: list[float], env: str = "bandit") -> Any:
    rows: list[dict[str, float | None]] = [{"iteration": 0.0, "collapse/distinct_within": None}]
    rows += [
        {"iteration": at, "collapse/distinct_within": d, "collapse/template_share": t}
        for at, (d, t) in enumerate(zip(distinct, template, strict=True), start=1)
    ]
    scores: Any = {"seed": seed}
    overrides = (f"seed={seed}", f"env={env}", "experiment=grid/echo_trap")
    return Run(None, "run", "completed", overrides=overrides, scores=scores, metrics=Metrics(rows))  # type: ignore[arg-type]


def test_late_iterations_are_paired_with_the_early_ones_of_the_same_run() -> None:
    falls, rises = [0.9, 0.7, 0.5, 0.3], [0.1, 0.1, 0.2, 0.4]
    pairs = script.list_pairs(run(3, falls, rises), 2)
    assert [(each.cell, each.seed, each.signal) for each in pairs] == [
        ("env=bandit", 3, "collapse/distinct_within"), ("env=bandit", 3, "collapse/template_share")
    ]  # fmt: skip
    assert [round(each.late - each.early, 9) for each in pairs] == [-0.4, 0.2]
    assert script.list_pairs(run(3, falls, rises), 3) == []  # the windows would overlap


def test_verdicts() -> None:
    def told(*runs: Any) -> str:
        return str(
            script.state_verdict([pair for each in runs for pair in script.list_pairs(each, 1)], "env=bandit")
        )

    one, two = run(0, [0.9, 0.5], [0.1, 0.4]), run(1, [0.9, 0.49], [0.1, 0.41])
    other_way = run(0, [0.5, 0.9], [0.1, 0.4]), run(1, [0.49, 0.9], [0.1, 0.41])
    assert told(one, two) == "reproduced"
    assert told(*other_way) == "not reproduced"
    assert told(one, run(1, [0.5, 0.9], [0.1, 0.1])) == "undecided"
    shown = script.format_table([pair for each in (one, two) for pair in script.list_pairs(each, 1)])
    assert (
        "| env=bandit | `collapse/distinct_within` | 0.900 | 0.495 | -0.405 [-0.469, -0.341] (n = 2) | falls |"
        in shown
    )
