"""Results and comparisons of the cells of a report.

The page, CSV and Markdown are all made from these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from lit_agentrl.report.page import inference, power
from lit_agentrl.report.page.cells import Cell, Name, group
from lit_agentrl.report.page.inference import Bounds, Difference
from lit_agentrl.report.page.runs import Run

_ALL_PAIRS = 4  # up to so many cells all pairs are compared; with more, each is compared with the first
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
        coverage: coverage of the interval at the stage compared, at this number of runs and episodes.
        normalised: interquartile mean scaled to chance 0 and oracle 1; None if these are not known.
        normalised_coverage: coverage of its bootstrap interval.
        detectable: difference between two such cells that is detected in 4 of 5 experiments, by the std over seeds.
        by_episodes: difference between two runs that is detected in 4 of 5 experiments if seeds had no effect.
        same_again: 95 % quantile of the difference between two halves of the cell.
    """

    cell: Cell
    name: Name
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
    same_again: float | None


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
    name: Name
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
    """

    stage: str
    cells: list[Cell]
    results: list[Result]
    comparisons: list[Comparison]
    overall: list[tuple[str, int, Bounds]]
    damaged: list[str]
    warnings: list[str] = field(default_factory=list)


def report(runs: Sequence[Run], damaged: Sequence[str], stage: str = "last") -> Report:
    """Build the report of these runs.

    Args:
        runs: runs of any number of cells.
        damaged: lines about files that could not be read.
        stage: ``last`` or ``best``, the weights by which cells are compared.
    """
    cells = group(runs)
    results = [
        _result(cell, name, stage) for cell in cells for name in cell.games if cell.scored(name, stage)
    ]
    comparisons = _adjusted([
        compared for a, b in _pairs(cells) for name in a.games
        if name in b.games and (compared := _compare(a, b, name, stage)) is not None
    ])  # fmt: skip
    found = Report(stage, cells, results, comparisons, _overall(runs, stage), list(damaged))
    found.warnings.extend(_warnings(found))
    return found


def _result(cell: Cell, name: Name, stage: str) -> Result:
    scored = cell.scored(name, stage)
    values = tuple(each.success for each in scored)
    episodes = tuple(each.episodes for each in scored)
    shares = cell.normalised(name, stage)
    measured = [each for each in scored if each.episodes]
    coverage = power.coverage_of_mean(values, episodes)
    if len(values) == 1 and measured:
        coverage = power.coverage_of_wilson(values[0], episodes[0])
    error = float(np.std(values, ddof=1)) * (2 / len(values)) ** 0.5 if len(values) > 1 else 0.0
    return Result(
        cell, name, values, episodes,
        {each: _stage(cell, name, each) for each in STAGES},
        cell.level(name, "chance"), cell.level(name, "oracle"), coverage,
        inference.interquartile([shares]) if shares else None,
        power.coverage_of_interquartile(values, episodes) if shares else None,
        power.detectable(error, 2 * len(values) - 2),
        power.seen_by_episodes(values[0], min(each.episodes for each in measured)) if measured else None,
        power.same_again(values),
    )  # fmt: skip


def _stage(cell: Cell, name: Name, stage: str) -> Bounds | None:
    """Compute the interval over seeds; for a single run, take its summary's interval over episodes."""
    scored = cell.scored(name, stage)
    if len(scored) == 1 and scored[0].episodes:
        game = next(g for g in cell.games[name] if g[stage] is not None)  # type: ignore[literal-required]
        success = game[stage]["success"]  # type: ignore[literal-required]
        return Bounds(success["mean"], success["low"], success["high"])
    if not scored:
        return None
    value, *ends = inference.mean([each.success for each in scored])
    return Bounds(value, *(None if end is None else min(max(end, 0.0), 1.0) for end in ends))


def _pairs(cells: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    return [
        (b, a)
        for a, b in (
            combinations(cells, 2) if len(cells) <= _ALL_PAIRS else ((cells[0], c) for c in cells[1:])
        )
    ]


def _compare(a: Cell, b: Cell, name: Name, stage: str) -> Comparison | None:
    of_a, of_b = a.scored(name, stage), b.scored(name, stage)
    if not of_a or not of_b:
        return None
    values = [[each.success for each in scored] for scored in (of_a, of_b)]
    seeds = [{each.run.seed: each.success for each in scored} for scored in (of_a, of_b)]
    shared = sorted(seed for seed in seeds[0].keys() & seeds[1].keys() if seed is not None)
    if len(of_a) == len(of_b) == 1:
        key = (*name, stage)
        difference = inference.instances(of_a[0].run.solved.get(key, ()), of_b[0].run.solved.get(key, ()))
        difference = difference or inference.unpaired(*values)
    elif len(shared) == len(of_a) == len(of_b):
        difference = inference.paired([seeds[0][s] for s in shared], [seeds[1][s] for s in shared])
    else:  # pairing would leave out runs whose seed the other cell lacks
        difference = inference.unpaired(*values)
    improvement = inference.improvement(*([each] for each in values)) if min(map(len, values)) > 1 else None
    return Comparison(a, b, name, difference, improvement)


def _adjusted(comparisons: Sequence[Comparison]) -> list[Comparison]:
    known = [c.difference.p_value for c in comparisons if c.difference.p_value is not None]
    left = iter(inference.adjusted(known))
    return [c if c.difference.p_value is None else replace(c, adjusted=next(left)) for c in comparisons]


def _overall(runs: Sequence[Run], stage: str) -> list[tuple[str, int, Bounds]]:
    """Compute the interquartile mean over games, with each game a stratum.

    Cells may differ in their game here; those with a single game are left out.
    """
    found = []
    for cell in group(runs, but=("env",)):
        strata = [shares for name in cell.games if (shares := cell.normalised(name, stage))]
        if len(strata) > 1:
            found.append((cell.label, len(strata), inference.interquartile(strata)))
    return found


def _warnings(found: Report) -> list[str]:
    lines = []
    for result in found.results:
        where, runs = f"{result.cell.letter} on {result.name.game}", _runs(len(result.values))
        if len(result.values) == 1:
            lines.append(
                f"{where} has one run: its interval is over episodes, and says nothing about other seeds"
            )
        for what, covered in (("mean", result.coverage), ("interquartile mean", result.normalised_coverage)):
            if covered is not None and covered < power.NOMINAL:
                lines.append(
                    f"the 95 % interval of the {what} of {where} holds the truth in {covered:.0%} of cases ({runs})"
                )
        if lost := sum(1 for each in result.episodes if not each):
            lines.append(
                f"{lost} of {runs} of {where} failed before they were measured, and count with chance"
            )
    for cell in found.cells:
        if unfinished := sum(
            n for status, n in cell.counts().items() if status in ("unfinished", "not begun")
        ):
            lines.append(
                f"{unfinished} of {_runs(len(cell.runs))} of {cell.letter} are unfinished, and are in no mean"
            )
    return lines


def _runs(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"
