"""Scores of cells on held-out data, and their result in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lit_agentrl.report import held_out
from lit_agentrl.report.page import inference
from lit_agentrl.report.page.cells import Cell
from lit_agentrl.report.page.inference import Bounds

_RANKED = {"reward_accuracy": ("highest accuracy", 1), "nll": ("lowest NLL", -1)}  # losses may differ in kind
_SHOWN = 3  # most cells whose scores a sentence names


class HeldOutResult(NamedTuple):
    """A metric of a cell on held-out data: its mean over runs, by stage."""

    cell: Cell
    metric: str
    runs: int
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
            values = {stage: list(_list_values(cell, metric, stage).values()) for stage in stages}
            means = {stage: _compute_mean(found, metric) for stage, found in values.items() if found}
            if means:
                results.append(HeldOutResult(cell, metric, max(map(len, values.values())), means))
    return results


def state_held_out(results: Sequence[HeldOutResult], stage: str) -> str:
    """State which cell is best on held-out data; empty if no cell was measured."""
    known = [result for result in results if stage in result.stages]
    if not known:
        return ""
    cells = list(dict.fromkeys(result.cell.name for result in known))
    where = f"On held-out data ({stage} weights)"
    for metric, (title, sign) in _RANKED.items():
        ranked = sorted(
            (result for result in known if result.metric == metric),
            key=lambda result: -sign * result.stages[stage].value,
        )
        if len(ranked) == len(cells) > 1:
            return f"{where} {_state_best(ranked[0], ranked[1], stage, title)}."
    parts = []
    for name in cells[:_SHOWN]:
        scores = ", ".join(_describe(result, stage) for result in known if result.cell.name == name)
        parts.append(f"{name} {scores}" if len(cells) > 1 else scores)
    more = f"; and {len(cells) - _SHOWN} more cells" if len(cells) > _SHOWN else ""
    runs = max(result.runs for result in known)
    return f"{where}: {'; '.join(parts)}{more} ({f'mean over {runs} runs' if runs > 1 else 'one run, one seed'})."


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


def _state_best(best: HeldOutResult, second: HeldOutResult, stage: str, title: str) -> str:
    seeds = []
    for result in (best, second):
        values = _list_values(result.cell, result.metric, stage)
        seeds.append(
            {run.seed: values[str(run.folder)] for run in result.cell.runs if str(run.folder) in values}
        )
    first, other = seeds
    difference = (
        inference.compare_paired([first[seed] for seed in first], [other[seed] for seed in first])
        if first.keys() == other.keys()
        else inference.compare_unpaired(list(first.values()), list(other.values()))
    )
    value, low, high = difference.bounds
    interval = f" [{low:.3g}, {high:.3g}]" if low is not None and high is not None and low < high else ""
    doubt = "" if interval and not low <= 0 <= high else "; undecided: "  # type: ignore[operator]
    if doubt:
        doubt += "the interval contains 0" if interval else "play more seeds"
    return (
        f"{best.cell.name} has the {title}, {best.stages[stage].value:.4g} against {second.stages[stage].value:.4g} of "
        f"{second.cell.name}: a difference of {value:.3g}{interval} over {difference.units}{doubt}"
    )


def _describe(result: HeldOutResult, stage: str) -> str:
    start = result.stages.get("start")
    before = "" if start is None else f" (start {start.value:.4g})"
    return f"{result.title} {result.stages[stage].value:.4g}{before}"
