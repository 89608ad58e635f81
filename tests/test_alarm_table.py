"""The table of alarms: when a run has collapsed, what counts as seen before, and on whose runs bounds are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lit_agentrl.monitor.rules import Rule
from lit_agentrl.report.page.runs import Run
from lit_agentrl.report.table import Metrics
from tests.conftest import load_script

script = load_script("alarm_table")

FALLS = [0.8, 0.8, 0.7, 0.3, 0.3, 0.3, 0.1]  # below half of its peak in iterations 3, 4 and 5
HOLDS = [0.8, 0.7, 0.3, 0.3, 0.7, 0.8, 0.8]  # only twice in a row
EARLY = [1.0, 1.0, 0.05, 0.05, 0.05, 0.05]  # of iterations 1 to 6
LATE = [1.0, 1.0, 1.0, 1.0, 0.05, 0.05]


def played(success: Sequence[float], entropy: Sequence[float], seed: int = 0) -> Any:
    rows: list[dict[str, float | None]] = [
        {"iteration": 0.0, "val/success": success[0], "rollout/entropy": None}
    ]
    pairs = enumerate(zip(success[1:], entropy, strict=True), start=1)
    rows += [{"iteration": float(at), "val/success": s, "rollout/entropy": e} for at, (s, e) in pairs]
    scores: Any = {"seed": seed}
    return script.Played.of(Run(None, "run", "completed", scores=scores, metrics=Metrics(rows)))  # type: ignore[arg-type]


def test_hits_come_before_the_collapse_and_false_alarms_where_there_is_none() -> None:
    runs = [played(FALLS, EARLY), played(FALLS, LATE), played(HOLDS, EARLY), played(HOLDS, LATE)]
    assert [run.collapse for run in runs] == [5, 5, None, None]
    found = script.judge_runs(runs, lambda: Rule("rollout/entropy", below=0.1, reference="first", window=2))
    assert found.leads == [2] and found.collapses == 2  # iteration 3; the other alarm comes with the collapse
    assert found.false == 100 * 2 / 12
    assert script.judge_runs(runs[2:], lambda: Rule("rollout/entropy", below=0.01)).false == 0.0


def test_bounds_are_chosen_by_the_other_seeds_alone() -> None:
    known = [played(FALLS, EARLY), played(HOLDS, [1.0] * 6)]
    assert script.calibrate_rules(known)["rollout/entropy falls"] == {
        "signal": "rollout/entropy", "below": 0.1, "reference": "first", "patience": 1, "window": 3
    }  # fmt: skip
    shown = script.format_tables([*known, played(FALLS, LATE, 1), played(HOLDS, EARLY, 1)], [1])
    assert shown.startswith("Chosen on 2 runs, 1 of them collapsed; tested on 2, 1 collapsed.")
    rival = next(line for line in shown.splitlines() if line.startswith("| rival"))
    assert (
        rival == "| rival: success below half of its peak, once | 1 of 1 [0.21, 1.00] | 2 (2 to 2) | 16.67 |"
    )
    mine = next(line for line in shown.splitlines() if line.startswith("| `rollout/entropy falls`"))
    assert mine.endswith("below 0.1 × first 3, 1 times | 0 of 1 [0.00, 0.79] | – | 16.67 |")
