"""Scores of cells on held-out data, and their result in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from lit_agentrl.report import held_out
from lit_agentrl.report.page import inference
from lit_agentrl.report.page.cells import Cell
from lit_agentrl.report.page.inference import Bounds
from lit_agentrl.report.page.runs import Run

_RANKED = {"reward_accuracy": ("highest accuracy", 1), "nll": ("lowest NLL", -1)}  # losses may differ in kind
_SHOWN = 3  # most cells whose scores a sentence names


class HeldOutResult(NamedTuple):
    """A metric of a cell on held-out data: its runs and mean, by stage."""

    cell: Cell
    metric: str
    runs: dict[str, int]
    stages: dict[str, Bounds]

    @property
    def title(self) -> str:
        """The name of the metric in tables."""
        return held_out.COLUMNS[self.metric]


def list_results(cells: Sequence[Cell], stages: Sequence[str]) -> list[HeldOutResult]:
    """List the metrics of each cell that measured any on held-out data."""
    results = []
    for cell in cells:
        for metric in held_out.COLUMNS:
            values_by_stage = {stage: list(_list_values(cell, metric, stage).values()) for stage in stages}
            means = {
                stage: _compute_mean(values, metric) for stage, values in values_by_stage.items() if values
            }
            if means:
                runs = {stage: len(values) for stage, values in values_by_stage.items()}
                results.append(HeldOutResult(cell, metric, runs, means))
    return results


def count_groups(cell: Cell) -> str:
    """Return the number of held-out groups that judged its runs; empty if unknown."""
    rows = [run.scores.get("held_out_rows") for run in _list_measured(cell)]
    return " and ".join(dict.fromkeys(str(each["groups"]) for each in rows if each))


def group_by_data(results: Sequence[HeldOutResult]) -> list[list[Cell]]:
    """Group the cells of results whose runs were all judged by the same held-out rows.

    If a run does not record its rows, file and share of the held-out data identify them for all cells.
    """
    cells = {result.cell.name: result.cell for result in results}
    has_hashes = all("held_out_rows" in run.scores for cell in cells.values() for run in _list_measured(cell))
    cells_by_data: dict[object, list[Cell]] = {}
    for name, cell in cells.items():
        data = {_identify_data(run, has_hashes) for run in _list_measured(cell)}
        cells_by_data.setdefault(data.pop() if len(data) == 1 else (name, "several"), []).append(cell)
    return list(cells_by_data.values())


def are_judged_alike(a: Cell, b: Cell) -> bool:
    """Return whether reward models of two cells were judged by the same rows.

    Cells that played games, or whose runs record no rows, count as judged alike.
    """
    rows = [
        {
            run.scores["held_out_rows"]["fingerprint"]
            for run in cell.runs
            if run.scores is not None and "held_out_rows" in run.scores and not run.scores["held_out"]
        }
        for cell in (a, b)
    ]
    return not all(rows) or bool(rows[0] & rows[1])


def state_held_out(results: Sequence[HeldOutResult], stage: str) -> str:
    """State which cell is best on held-out data; empty if no cell was measured."""
    measured = [result for result in results if stage in result.stages]
    if not measured:
        return ""
    comparable = group_by_data(measured)
    introduction = f"On held-out data ({stage} weights)"
    texts = []
    for cells in comparable:
        names = {cell.name for cell in cells}
        texts.append(_state_comparable([result for result in measured if result.cell.name in names], stage))
    if len(comparable) == 1:
        return f"{introduction}{texts[0]}."
    judged = "; ".join(map(_describe_data, comparable[:_SHOWN]))
    num_more = len(comparable) - _SHOWN
    more = f" {num_more} more sets of data are in the table." if num_more > 0 else ""
    parts = " ".join(
        f"{cells[0].name if len(cells) == 1 else ''}{text}.".removeprefix(": ").strip()
        for cells, text in zip(comparable[:_SHOWN], texts[:_SHOWN], strict=True)
    )
    return f"{introduction}, cells judged by different data are not compared: {judged}. {parts}{more}"


def _state_comparable(results: Sequence[HeldOutResult], stage: str) -> str:
    """State which cell is best of those judged by the same data."""
    cells = list(dict.fromkeys(result.cell.name for result in results))
    for metric, (title, sign) in _RANKED.items():
        ranked = sorted(
            (result for result in results if result.metric == metric),
            key=lambda result: -sign * result.stages[stage].value,
        )
        if len(ranked) == len(cells) > 1:
            return f" {_state_best(ranked, stage, title)}"
    parts = []
    for name in cells[:_SHOWN]:
        scores = ", ".join(_describe(result, stage) for result in results if result.cell.name == name)
        parts.append(f"{name} {scores}" if len(cells) > 1 else scores)
    more = f"; and {len(cells) - _SHOWN} more cells" if len(cells) > _SHOWN else ""
    runs = {result.cell.name: result.runs[stage] for result in results}
    counts = list(runs.values()) if len(set(runs.values())) > 1 else [*runs.values()][:1]
    over = (
        f"mean over {' and '.join(map(str, counts[:_SHOWN]))} runs"
        if max(counts) > 1
        else "one run, one seed"
    )
    return f": {'; '.join(parts)}{more} ({over})"


def _list_measured(cell: Cell) -> list[Any]:
    """List the runs that measured anything on held-out data."""
    return [run for run in cell.runs if run.scores is not None and run.scores["held_out"]]


def _identify_data(run: Run, has_hashes: bool) -> object:
    """Return the hash of the held-out rows, or their file and share."""
    if has_hashes and run.scores is not None:
        return run.scores["held_out_rows"]["fingerprint"]
    settings = run.settings or {}
    return tuple(
        (name, value) for name, value in settings.items()
        if name == "data.held_out" or name == "data.path" or name.startswith("data.path.")
    )  # fmt: skip


def _describe_data(cells: Sequence[Cell]) -> str:
    groups = " and ".join(dict.fromkeys(filter(None, map(count_groups, cells))))
    names = ", ".join(cell.name for cell in cells[:_SHOWN]) + (" and more" if len(cells) > _SHOWN else "")
    return f"{names} ({groups} group{'s' * (groups != '1')})" if groups else names


def _compute_mean(values: Sequence[float], metric: str) -> Bounds:
    """Compute the interval over runs; that of a share stays within 0 and 1."""
    value, *ends = inference.compute_mean(values)
    if metric == "reward_accuracy":
        ends = [None if end is None else min(max(end, 0.0), 1.0) for end in ends]
    return Bounds(value, *ends)


def _list_values(cell: Cell, metric: str, stage: str) -> dict[str, float]:
    """Return the values of the runs by folder; runs without one are left out."""
    values = {
        str(run.folder): run.scores["held_out"].get(stage, {}).get(metric)
        for run in cell.runs
        if run.scores is not None
    }
    return {folder: float(value) for folder, value in values.items() if isinstance(value, int | float)}


def _state_best(ranked: Sequence[HeldOutResult], stage: str, title: str) -> str:
    best, second, *_ = ranked
    value = best.stages[stage].value
    tied = [each.cell.name for each in ranked if math.isclose(each.stages[stage].value, value, rel_tol=1e-9)]
    if len(tied) > 1:
        return f"{', '.join(tied[:-1])} and {tied[-1]} tie at the {title}, {value:.4g}"
    values_by_seed = []
    for result in (best, second):
        values = _list_values(result.cell, result.metric, stage)
        values_by_seed.append(
            {run.seed: values[str(run.folder)] for run in result.cell.runs if str(run.folder) in values}
        )
    best_values, second_values = values_by_seed
    difference = (
        inference.compare_paired(
            [best_values[seed] for seed in best_values], [second_values[seed] for seed in best_values]
        )
        if best_values.keys() == second_values.keys()
        else inference.compare_unpaired(list(best_values.values()), list(second_values.values()))
    )
    value, low, high = difference.bounds
    interval, doubt = "", "; undecided: play more seeds"
    if low is not None and high is not None and low < high:
        interval = f" [{low:.3g}, {high:.3g}]"
        doubt = "; undecided: the interval contains 0" if low <= 0 <= high else ""
    return (
        f"{best.cell.name} has the {title}, {best.stages[stage].value:.4g} against {second.stages[stage].value:.4g} of "
        f"{second.cell.name}: a difference of {value:.3g}{interval} over {difference.units}{doubt}"
    )


def _describe(result: HeldOutResult, stage: str) -> str:
    # a run that has not ended has a start but no score: leave its start out too
    ended = _list_values(result.cell, result.metric, stage)
    starts = [v for key, v in _list_values(result.cell, result.metric, "start").items() if key in ended]
    before = f" (start {sum(starts) / len(starts):.4g})" if starts else ""
    return f"{result.title} {result.stages[stage].value:.4g}{before}"
