"""Markdown tables of how early alarm rules predict collapse, and of their false alarms.

    python train.py -m experiment=grid/leading_signal hydra.sweep.dir=outputs/leading_signal
    python scripts/alarm_table.py outputs/leading_signal --test-seeds 2 3 4

These definitions were fixed before the campaign.  **Collapse**: validation success, including the start, is below half
of its peak for three validations in a row; its time is the iteration of the third.  **Hit**: a rule fires before that
time in a run that collapses; its **lead** is the number of iterations in between.  **False alarm**: a rule fires in a
run that does not collapse, counted per 100 iterations of such runs.  **Calibration**: for each signal, choose the rule
of `candidates` with the most hits on the runs of all other seeds, among the rules with at most one false alarm per 100
iterations there; ties go to the longer median lead, then to fewer false alarms, then to the earlier in the list.
**Rival**: success itself is below half of its peak once; it is calibrated in the same way.  All figures are of the
test seeds.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.monitor.rules import Rule, collapse, find_alarms
from lit_agentrl.monitor.signals import reward_gap
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.report.page.runs import Run, load_ended
from lit_agentrl.report.statistics import compute_wilson_interval

RIVAL = {"signal": "val/success", "below": 0.5, "reference": "peak"}
MOST_FALSE = 1.0  # maximum false alarms per 100 iterations for a rule to be chosen
FALLS = (
    "rollout/return_std_within_group", "rollout/entropy", "collapse/entropy_think", "collapse/entropy_answer",
    "collapse/distinct_within", "rollout/distinct_2", "rollout/reply_tokens", "rollout/success", "val/success",
)  # fmt: skip
RISES = (
    "train/grad_norm", "rollout/entropy", "collapse/similarity_within", "collapse/similarity_across",
    "collapse/template_share", "rollout/invalid_share",
)  # fmt: skip
COLUMNS = ("options", "seed", "start", "peak", "last", "collapse_iteration")
Options = Mapping[str, Any]
Rows = Sequence[Mapping[str, float | None]]


def list_candidates() -> Iterator[tuple[str, Options]]:
    """Yield the name of each signal with the options of a rule, most cautious first."""
    patience_window = list(itertools.product((5, 3, 2, 1), (10, 5, 3)))
    for signal in FALLS:
        for below, (patience, window) in itertools.product((0.1, 0.25, 0.5, 0.75), patience_window):
            for reference in ("first", "median"):
                yield f"{signal} falls", {
                    "signal": signal, "below": below, "reference": reference, "patience": patience, "window": window,
                }  # fmt: skip
    for share, patience in itertools.product((0.5, 0.6, 0.7, 0.8, 0.9), (2, 1)):
        yield (
            "val/success falls",
            {"signal": "val/success", "below": share, "reference": "peak", "patience": patience},
        )
    for signal in RISES:
        for above, (patience, window) in itertools.product((10.0, 5.0, 3.0, 2.0, 1.5), patience_window):
            for reference in ("first", "median"):
                yield f"{signal} rises", {
                    "signal": signal, "above": above, "reference": reference, "patience": patience, "window": window,
                }  # fmt: skip
    for above, patience in itertools.product((0.95, 0.75, 0.5), (10, 5, 3, 2, 1)):
        yield "rollout/dead_group_share rises", {
            "signal": "rollout/dead_group_share", "above": above, "patience": patience
        }  # fmt: skip
    for above, patience in itertools.product((0.5, 0.25, 0.1), (5, 3, 2, 1)):
        yield "points without success rise", {"signal": reward_gap, "above": above, "patience": patience}


@dataclass(frozen=True)
class Played:
    """A run: its rows, the start first, and the iteration of its collapse."""

    seed: int
    rows: Rows
    collapse: int | None

    @classmethod
    def of(cls, run: Run) -> Played:
        assert run.seed is not None, "main() has asked"
        return cls(run.seed, run.metrics.rows, next(iter(find_alarms(collapse(), run.metrics.rows)), None))

    @property
    def iterations(self) -> int:
        return len(self.rows) - 1


class Found(NamedTuple):
    """The leads of a rule's hits, the collapses, and false alarms per 100 iterations."""

    leads: list[int]
    collapses: int
    false: float

    @property
    def lead(self) -> float:
        return median(self.leads) if self.leads else 0.0


def judge_runs(runs: Sequence[Played], make: Any) -> Found:
    """Evaluate a rule on runs, with a new instance for each run."""
    leads, false, healthy = [], 0, 0
    for run in runs:
        alarms = find_alarms(make(), run.rows)
        if run.collapse is None:
            false, healthy = false + len(alarms), healthy + run.iterations
        elif early := [at for at in alarms if at < run.collapse]:
            leads.append(run.collapse - early[0])
    collapses = sum(run.collapse is not None for run in runs)
    return Found(leads, collapses, 100 * false / healthy if healthy else 0.0)


def calibrate_rules(runs: Sequence[Played]) -> dict[str, Options]:
    """Choose the best rule of each signal on these runs.

    Signals without a permitted rule are omitted.
    """
    best: dict[str, tuple[tuple[float, ...], Options]] = {}
    for name, options in list_candidates():
        found = judge_runs(runs, lambda options=options: Rule(**options))
        if not found.leads or found.false > MOST_FALSE:
            continue
        value = (len(found.leads), found.lead, -found.false)
        if name not in best or value > best[name][0]:
            best[name] = value, options
    return {name: options for name, (_, options) in best.items()}


def format_row(name: str, found: Found) -> str:
    """Format a row of a table."""
    rate = compute_wilson_interval(len(found.leads), found.collapses) if found.collapses else None
    hits = (
        "–" if rate is None else f"{len(found.leads)} of {found.collapses} [{rate.low:.2f}, {rate.high:.2f}]"
    )
    leads = f"{found.lead:g} ({min(found.leads)} to {max(found.leads)})" if found.leads else "–"
    return f"| {name} | {hits} | {leads} | {found.false:.2f} |"


def describe_rule(options: Options) -> str:
    """Describe a rule in words."""
    side, factor = ("below", options["below"]) if "below" in options else ("above", options["above"])
    kind = options.get("reference", "one")
    of = {
        "one": "",
        "first": " × first {window}",
        "first_plus": " + first {window}",
        "median": " × median of {window}",
        "peak": " × peak",
    }[kind]
    return f"{side} {factor:g}{of.format(**options)}, {options.get('patience', 1)} times"


def format_tables(runs: Sequence[Played], test_seeds: Sequence[int]) -> str:
    """Format counts of runs, and tables of shipped and chosen rules on test seeds."""
    tested = [run for run in runs if run.seed in test_seeds]
    others = [run for run in runs if run.seed not in test_seeds]
    fallen = [sum(run.collapse is not None for run in each) for each in (others, tested)]
    chosen = calibrate_rules(others)
    shipped = OmegaConf.load(CONFIG_DIR / "callbacks" / "collapse" / "default.yaml").rules
    as_shipped = [
        format_row(f"`{name}`", judge_runs(tested, lambda rule=rule: instantiate(rule)))
        for name, rule in shipped.items()
        if name != "validation"
    ]
    as_chosen = [
        format_row(
            f"`{name}`: {describe_rule(options)}", judge_runs(tested, lambda options=options: Rule(**options))
        )
        for name, options in chosen.items()
    ]
    rival = format_row(
        "rival: success below half of its peak, once", judge_runs(tested, lambda: Rule(**RIVAL))
    )
    head = "hits [95 %] | lead, median (range) | false alarms in 100 iterations |\n|---|---|---|---|"
    return "\n".join([
        f"Chosen on {len(others)} runs, {fallen[0]} of them collapsed; tested on {len(tested)}, {fallen[1]} collapsed.",
        "", f"| rule as shipped | {head}", *as_shipped,
        "", f"| rule as chosen | {head}", rival, *as_chosen,
    ])  # fmt: skip


def list_outcome(run: Run) -> list[object]:
    """Return the `COLUMNS` of a run: its options, validation success and time of collapse."""
    success = [value for value in run.metrics["val/success"] if value is not None]
    return [" ".join(run.options), run.seed, success[0], max(success), success[-1], Played.of(run).collapse]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", help="folders of sweeps")
    parser.add_argument("--test-seeds", type=int, nargs="+", required=True, help="that choose no bound")
    parser.add_argument("--csv", type=Path, help="a row for each run")
    arguments = parser.parse_args()
    whole, left_out = load_ended(arguments.folders)
    for line in left_out:
        print(f"{line}\n")
    print(format_tables([Played.of(run) for run in whole], arguments.test_seeds))
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *map(list_outcome, whole)])


if __name__ == "__main__":
    main()
