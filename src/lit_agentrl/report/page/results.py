"""Results and comparisons of the cells of a report.

The page, CSV and Markdown are all made from these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.report.page import inference, power
from lit_agentrl.report.page.cells import (
    ALL_RUNS,
    Cell,
    GameSplit,
    find_unnamed_differences,
    group_runs,
    leave_out_repeats,
)
from lit_agentrl.report.page.held_out import HeldOutResult, are_judged_alike, list_results
from lit_agentrl.report.page.inference import Bounds, Difference
from lit_agentrl.report.page.runs import Run

_MOST_NAMED = 4  # most settings that a warning names
_ALL_PAIRS = 4  # up to this number of cells of a game, all pairs are compared; above it, each with the first
STAGES = ("start", "best", "last")


@dataclass(frozen=True)
class Result:
    """The results of a cell on a game.

    Attributes:
        cell: the cell.
        name: game and split.
        values: success of each run at the stage compared.
        episodes: number of episodes behind each value; 0 if the run failed or collapsed before it was measured.
        stages: mean success at start, best and last: over seeds, or over episodes for a single run.
        chance, oracle: success of random and of best play; None if not known.
        coverage: coverage of the interval at the stage compared, at this number of runs and episodes.
        normalised: interquartile mean scaled to chance 0 and oracle 1; None if these are not known.
        normalised_coverage: coverage of its bootstrap interval.
        detectable: difference that 4 of 5 experiments with two such cells detect, from the std over seeds.
        by_episodes: difference that 4 of 5 experiments with two runs would detect if seeds had no effect.
        split_half: 95 % quantile of the difference between two halves of the cell.
    """

    cell: Cell
    name: GameSplit
    values: tuple[float, ...]
    episodes: tuple[int, ...]
    stages: dict[str, Bounds | None]
    chance: float | None
    oracle: float | None
    coverage: float | None
    normalised: Bounds | None
    normalised_coverage: float | None
    detectable: float | None
    by_episodes: float | None
    split_half: float | None


@dataclass(frozen=True)
class Comparison:
    """The difference A − B between two cells on a game.

    Attributes:
        a: first cell.
        b: second cell.
        name: game and split.
        difference: difference of success, with its test.
        improvement: P(a run of A beats one of B); None if a cell has a single run.
        adjusted: p-value adjusted for all comparisons of the report.
    """

    a: Cell
    b: Cell
    name: GameSplit
    difference: Difference
    improvement: Bounds | None
    adjusted: float | None = None


@dataclass(frozen=True)
class Report:
    """The content of a report.

    Attributes:
        stage: stage at which cells are compared.
        cells: groups of runs that differ only in their seed.
        results: one for each cell and game.
        comparisons: one for each pair of cells and game.
        overall: label, number of games and interquartile mean over all games, of cells that may also differ in their
            game.
        damaged: a line about each file that could not be read.
        warnings: caveats of the numbers.
        held_out: metrics of each cell on held-out data.
    """

    stage: str
    cells: list[Cell]
    results: list[Result]
    comparisons: list[Comparison]
    overall: list[tuple[str, int, Bounds]]
    damaged: list[str]
    warnings: list[str] = field(default_factory=list)
    held_out: list[HeldOutResult] = field(default_factory=list)


def build_report(runs: Sequence[Run], damaged: Sequence[str], stage: str = "last") -> Report:
    """Build the report of these runs.

    Args:
        runs: runs of any number of cells; of those with equal settings and seed, one is kept.
        damaged: lines about files that could not be read.
        stage: ``last`` or ``best``, the weights by which cells are compared.
    """
    runs, repeats = leave_out_repeats(runs)
    cells = group_runs(runs)
    results = [
        _compute_result(cell, name, stage)
        for cell in cells
        for name in cell.games
        if cell.list_scores(name, stage)
    ]
    comparisons = _adjust([
        comparison for name in dict.fromkeys(name for cell in cells for name in cell.games)
        for a, b in _choose_pairs([cell for cell in cells if name in cell.games])
        if are_judged_alike(a, b) and (comparison := _compare(a, b, name, stage)) is not None
    ])  # fmt: skip
    report = Report(
        stage, cells, results, comparisons, _compute_overall(runs, stage), list(damaged), repeats,
        list_results(cells, STAGES),
    )  # fmt: skip
    report.warnings.extend(_list_warnings(report))
    return report


def _compute_result(cell: Cell, name: GameSplit, stage: str) -> Result:
    scores = cell.list_scores(name, stage)
    values = tuple(score.success for score in scores)
    episodes = tuple(score.episodes for score in scores)
    shares = cell.list_normalised(name, stage)
    measured = [score for score in scores if score.episodes]
    coverage = power.estimate_coverage_of_mean(values, episodes)
    if len(values) == 1 and measured:
        coverage = power.compute_coverage_of_wilson(values[0], episodes[0])
    error = float(np.std(values, ddof=1)) * (2 / len(values)) ** 0.5 if len(values) > 1 else 0.0
    return Result(
        cell, name, values, episodes,
        {each: _compute_stage(cell, name, each) for each in STAGES},
        cell.get_reference(name, "chance"), cell.get_reference(name, "oracle"), coverage,
        inference.compute_interquartile_mean([shares]) if shares else None,
        power.estimate_coverage_of_interquartile(values, episodes) if shares else None,
        power.compute_detectable(error, 2 * len(values) - 2),
        power.compute_detectable_by_episodes(values[0], min(score.episodes for score in measured))
        if measured else None,
        power.compute_split_half_difference(values),
    )  # fmt: skip


def _compute_stage(cell: Cell, name: GameSplit, stage: str) -> Bounds | None:
    """Compute the interval over seeds; for a single run, take its summary's interval over episodes."""
    scores = cell.list_scores(name, stage)
    if len(scores) == 1 and scores[0].episodes:
        game = next(g for g in cell.games[name] if g[stage] is not None)  # type: ignore[literal-required]
        success = game[stage]["success"]  # type: ignore[literal-required]
        return Bounds(success["mean"], success["low"], success["high"])
    if not scores:
        return None
    value, *ends = inference.compute_mean([score.success for score in scores])
    return Bounds(value, *(None if end is None else min(max(end, 0.0), 1.0) for end in ends))


def _choose_pairs(cells: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the pairs to compare, each with the later cell first.

    With this order, a gain over the earlier cell is a positive difference.
    """
    return [
        (b, a)
        for a, b in (
            combinations(cells, 2) if len(cells) <= _ALL_PAIRS else ((cells[0], c) for c in cells[1:])
        )
    ]


def _compare(a: Cell, b: Cell, name: GameSplit, stage: str) -> Comparison | None:
    scores_a, scores_b = a.list_scores(name, stage), b.list_scores(name, stage)
    if not scores_a or not scores_b:
        return None
    values = [[score.success for score in scores] for scores in (scores_a, scores_b)]
    seeds = [{score.run.seed: score.success for score in scores} for scores in (scores_a, scores_b)]
    shared = sorted(seed for seed in seeds[0].keys() & seeds[1].keys() if seed is not None)
    if len(scores_a) == len(scores_b) == 1:
        key = (*name, stage)
        difference = inference.compare_tasks(
            scores_a[0].run.solved.get(key, ()), scores_b[0].run.solved.get(key, ())
        )
        difference = difference or inference.compare_unpaired(*values)
    elif len(shared) == len(scores_a) == len(scores_b):
        difference = inference.compare_paired([seeds[0][s] for s in shared], [seeds[1][s] for s in shared])
    else:  # pairing would leave out runs whose seed the other cell lacks
        difference = inference.compare_unpaired(*values)
    improvement = (
        inference.estimate_improvement(*([score] for score in values)) if min(map(len, values)) > 1 else None
    )
    return Comparison(a, b, name, difference, improvement)


def _adjust(comparisons: Sequence[Comparison]) -> list[Comparison]:
    known = [c.difference.p_value for c in comparisons if c.difference.p_value is not None]
    adjusted = iter(inference.adjust(known))
    return [c if c.difference.p_value is None else replace(c, adjusted=next(adjusted)) for c in comparisons]


def _compute_overall(runs: Sequence[Run], stage: str) -> list[tuple[str, int, Bounds]]:
    """Compute the interquartile mean over games, with each game a stratum.

    Cells may differ in their game here; those with a single game are left out.
    """
    overall = []
    for cell in group_runs(runs, ignored=("env",)):
        strata = [shares for name in cell.games if (shares := cell.list_normalised(name, stage))]
        if len(strata) > 1:
            overall.append((cell.label, len(strata), inference.compute_interquartile_mean(strata)))
    return overall


def _list_warnings(report: Report) -> list[str]:
    lines = []
    if len(report.cells) == 1 and len(report.cells[0].runs) > 1:
        lines.append(
            f"the {len(report.cells[0].runs)} runs differ only in their seed, so they are averaged and not compared: "
            "add runs with another option; two runs, one of each option, are compared task by task"
        )
    apart = [f"{a.name} and {b.name}" for a, b in _choose_pairs(report.cells) if not are_judged_alike(a, b)]
    if apart:
        more = f"; {len(apart) - _MOST_NAMED} more pairs" if len(apart) > _MOST_NAMED else ""
        lines.append(
            f"not compared, since other held-out rows judged them: {'; '.join(apart[:_MOST_NAMED])}{more}; give them "
            "the same data and data.held_out"
        )
    lines += _list_coverage(report.results)
    for result in report.results:
        where, runs = f"{result.cell.name} on {result.name.game}", _format_runs(len(result.values))
        if len(result.values) == 1:
            lines.append(f"{where} has one run: its interval is over episodes, not over seeds")
        if lost := sum(1 for episodes in result.episodes if not episodes):
            lines.append(
                f"{lost} of {runs}{_name_owner(result.cell)} on {result.name.game} failed before they were measured, "
                "and count with the success of chance"
            )
    for cell in report.cells:
        if unfinished := sum(
            n for status, n in cell.count_statuses().items() if status in ("unfinished", "not started")
        ):
            some = f"{unfinished} of {_format_runs(len(cell.runs))}{_name_owner(cell)}"
            verb = "is" if unfinished == 1 else "are"
            lines.append(f"{some} {verb} unfinished, and not in the means of best and last")
    if unnamed := find_unnamed_differences(report.cells):
        shown = ", ".join(
            f"{name.removesuffix('._target_')} ({', '.join(_shorten_value(value) for value in values)})"
            for name, values in list(unnamed.items())[:_MOST_NAMED]
        )
        more = f" and {len(unnamed) - _MOST_NAMED} more settings" if len(unnamed) > _MOST_NAMED else ""
        lines.append(
            f"cells differ in settings that no override names, since an option brings others with it: {shown}{more}; "
            "set them alike on the command line to compare the option alone"
        )
    return lines


def _name_owner(cell: Cell) -> str:
    """Return words that name a cell; empty if it has all runs."""
    return "" if cell.name == ALL_RUNS else f" of {cell.name}"


def _list_coverage(results: Sequence[Result]) -> list[str]:
    """List the results whose intervals cover less than they claim, a line per estimate."""
    lines = []
    for estimate in ("mean", "interquartile mean"):
        coverage = {
            f"{result.cell.name} on {result.name.game} ({_format_runs(len(result.values))})": (
                result.coverage if estimate == "mean" else result.normalised_coverage
            )
            for result in results
        }
        low = {
            where: share for where, share in coverage.items() if share is not None and share < power.NOMINAL
        }
        named = [f"{share:.0%} for {where}" for where, share in list(low.items())[:_MOST_NAMED]]
        more = (
            [f"less than {power.NOMINAL:.0%} for {len(low) - _MOST_NAMED} more"]
            if len(low) > _MOST_NAMED
            else []
        )
        if low:
            lines.append(
                f"95 % intervals of the {estimate} cover the true value less often than that: "
                f"{', '.join([*named, *more])}"
            )
    return lines


def _shorten_value(value: str) -> str:
    """Shorten a value to 40 characters, and a code path to its last part."""
    text = value.strip('"')
    return escape_unprintable(text.rpartition(".")[2] if text.startswith("lit_agentrl.") else text)[:40]


def _format_runs(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"
