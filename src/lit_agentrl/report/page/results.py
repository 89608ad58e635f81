"""What is said about the cells of a report, as plain rows: a page, CSV and Markdown show the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from lit_agentrl.report.page import inference, power
from lit_agentrl.report.page.cells import Cell, Name, group
from lit_agentrl.report.page.inference import Bounds, Difference
from lit_agentrl.report.page.runs import Run

_ALL_PAIRS = 4  # cells up to which each is compared with each; of more, with the first one
STAGES = ("start", "best", "last")


@dataclass(frozen=True)
class Result:
    """A cell on a game.

    Attributes:
        cell: that it is of.
        name: game and split.
        values: success of each run at the stage compared.
        episodes: that each of them rests on; 0 of a run that was lost before.
        stages: mean success at start, best and last over seeds, or of the one run over episodes.
        coverage: how often the interval of the stage compared holds the truth, at this number of runs and episodes.
        normalised: interquartile mean, 0 being chance and 1 the oracle; None where these are not known.
        normalised_coverage: the same of its bootstrap.
        detectable: difference that two such cells would show in 4 of 5 cases, by their seeds.
        by_episodes: the same by the episodes of two runs alone, had seeds no effect.
        same_again: what 95 of 100 differences between two halves of the cell stay below.
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
    """Two cells on a game: A − B.

    Attributes:
        a: first cell.
        b: second cell.
        name: game and split.
        difference: of success, with what it rests on.
        improvement: P(a run of A beats one of B); None with a single run.
        adjusted: p-value, seen beside those of all other comparisons.
    """

    a: Cell
    b: Cell
    name: Name
    difference: Difference
    improvement: Bounds | None
    adjusted: float | None = None


@dataclass(frozen=True)
class Report:
    """All that a report says.

    Attributes:
        stage: that cells are compared at.
        cells: of runs that differ in their seed alone.
        results: of each cell and game.
        comparisons: of pairs of cells on a game.
        overall: cells that may differ in their game too, with the interquartile mean over all of them.
        damaged: a line about each file that could not be read.
        warnings: what a reader must know of the numbers.
    """

    stage: str
    cells: list[Cell]
    results: list[Result]
    comparisons: list[Comparison]
    overall: list[tuple[str, int, Bounds]]
    damaged: list[str]
    warnings: list[str] = field(default_factory=list)


def report(runs: Sequence[Run], damaged: Sequence[str], stage: str = "last") -> Report:
    """Everything that is said about these runs.

    Args:
        runs: of any number of cells.
        damaged: lines about files that could not be read.
        stage: ``last`` or ``best`` weights, by which cells are compared.
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
    """Over seeds; of a single run, the interval over its episodes that its summary has."""
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
    else:  # whoever has a seed alone would be left out
        difference = inference.unpaired(*values)
    improvement = inference.improvement(*([each] for each in values)) if min(map(len, values)) > 1 else None
    return Comparison(a, b, name, difference, improvement)


def _adjusted(comparisons: Sequence[Comparison]) -> list[Comparison]:
    known = [c.difference.p_value for c in comparisons if c.difference.p_value is not None]
    left = iter(inference.adjusted(known))
    return [c if c.difference.p_value is None else replace(c, adjusted=next(left)) for c in comparisons]


def _overall(runs: Sequence[Run], stage: str) -> list[tuple[str, int, Bounds]]:
    """Of cells that may differ in their game: normalised scores of all games, each a stratum."""
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
