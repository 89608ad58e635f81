"""Figures of a report: curves over seeds, scores between chance and oracle, differences."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lit_agentrl.report.page import inference
from lit_agentrl.report.page.cells import LOST_STATUSES, Cell, GameSplit
from lit_agentrl.report.page.drawing import FAINT, INK, SERIES, Drawing, add_legend, get_style, open_drawing
from lit_agentrl.report.page.plane import MARKS, draw_planes
from lit_agentrl.report.page.results import STAGES, Comparison, Report
from lit_agentrl.report.page.runs import Run

SIGNALS = {  # metric -> title, and the range of its values
    "rollout/success": ("success in training", (0.0, 1.0)),
    "rollout/return_std_within_group": ("return std within a group", (0.0, np.inf)),
    "rollout/dead_group_share": ("dead groups", (0.0, 1.0)),
    "rollout/entropy": ("entropy (nats per token)", (0.0, np.inf)),
    "rollout/distinct_2": ("distinct token pairs", (0.0, 1.0)),
    "train/grad_norm": ("gradient norm", (0.0, np.inf)),
    "reward/model_score": ("score of the reward model", (-np.inf, np.inf)),
    "reward/model_gap": ("predicted success − success", (-1.0, 1.0)),
    "rollout/cost": ("cost per episode", (-np.inf, np.inf)),
    "train/cost_multiplier": ("cost multiplier", (0.0, np.inf)),
}


_MAX_LINE = 22  # characters of a line of a name beside a figure


@dataclass(frozen=True)
class Figure:
    """A drawing with its caption and the cells it shows."""

    drawing: Drawing
    caption: str
    cells: list[Cell]


def draw_figures(report: Report) -> list[Figure]:
    """Draw all figures that the runs provide, in the order of the page."""
    drawn: list[Figure] = []
    names = list(dict.fromkeys(result.name for result in report.results))
    for number, name in enumerate(names):
        cells = [result.cell for result in report.results if result.name == name]
        curve = _draw_curves(f"curve{number}", cells, name)
        drawn += [curve] if curve is not None else []
        drawn.append(_draw_stages(f"stages{number}", report, name))
    tested = [comparison for comparison in report.comparisons if comparison.difference.bounds.low is not None]
    drawn += [_draw_differences(tested)] if tested else []
    drawn += [Figure(*plane) for plane in draw_planes(report.cells)]
    signals = _draw_signals(report.cells)
    return [*drawn, *([signals] if signals is not None else [])]


def _fold(name: str) -> str:
    """Break a name into lines that leave room for the figure."""
    return "\n".join(textwrap.wrap(name, _MAX_LINE, break_on_hyphens=False)) or name


def _get_points(run: Run, metric: str) -> dict[float, float]:
    rows = ((row["iteration"], row.get(metric)) for row in run.metrics.rows)
    return {
        iteration: value
        for iteration, value in rows
        if iteration is not None and value is not None and np.isfinite(value)
    }


def _get_metric_name(cell: Cell, name: GameSplit) -> str:
    """Return the name of the cell's metric of validation success on the game."""
    game_metric = f"val/{name.game}/success"
    return game_metric if any(game_metric in run.metrics.columns for run in cell.runs) else "val/success"


def _compute_band(
    cell: Cell, metric: str, failed_score: float | None = None
) -> list[tuple[float, inference.Bounds]]:
    """Compute the mean and interval over seeds at each iteration.

    With ``failed_score`` given, runs continue after their end: one that collapsed with its last value, one that failed
    with ``failed_score``.
    """
    curves = [(run, points) for run in cell.runs if (points := _get_points(run, metric))]
    band = []
    for iteration in sorted({iteration for _, points in curves for iteration in points}):
        values = []
        for run, points in curves:
            if iteration in points:
                values.append(points[iteration])
            elif run.status in LOST_STATUSES and iteration > max(points) and failed_score is not None:
                values.append(points[max(points)] if run.status == "collapsed" else failed_score)
        band.append((iteration, inference.compute_mean(values)))
    return band


def _draw_band(
    axes: Any,
    number: int,
    curve: Sequence[tuple[float, inference.Bounds]],
    limits: tuple[float, float],
) -> None:
    iterations = [iteration for iteration, _ in curve]
    axes.plot(
        iterations,
        [bounds.value for _, bounds in curve],
        marker="." if len(iterations) < 30 else None,
        **get_style(number),
    )
    low = [bounds.value if bounds.low is None else bounds.low for _, bounds in curve]
    high = [bounds.value if bounds.high is None else bounds.high for _, bounds in curve]
    low, high = np.clip(low, *limits).tolist(), np.clip(high, *limits).tolist()
    axes.fill_between(iterations, low, high, color=SERIES[number % len(SERIES)], alpha=0.15, linewidth=0)


def _draw_curves(label: str, cells: Sequence[Cell], name: GameSplit) -> Figure | None:
    curves = []
    for number, cell in enumerate(cells):
        failed_score = cell.get_reference(name, "chance") or 0.0
        if band := _compute_band(cell, _get_metric_name(cell, name), failed_score):
            curves.append((number, cell, band))
    if not curves:
        return None
    with open_drawing(
        label, f"Success in validation on {name.game} over the iterations, one curve per cell"
    ) as drawn:
        (axes,) = drawn.axes
        for number, _, curve in curves:
            _draw_band(axes, number, curve, (0.0, 1.0))
        _draw_references(axes, cells[0], name, is_upright=False)
        axes.set(xlabel="iteration", ylabel="success in validation", ylim=(-0.03, 1.07))
        axes.locator_params(axis="x", integer=True)
        add_legend(drawn, {number: cell.name for number, cell, _ in curves})
    caption = (
        f"{name.game}: success in validation, mean over seeds with its 95 % interval. After its end, "
        "a run that failed counts with chance, one that collapsed with its last value."
    )
    return Figure(drawn, caption, list(cells))


def _draw_references(axes: Any, cell: Cell, name: GameSplit, *, is_upright: bool) -> None:
    for reference in ("chance", "oracle"):
        level = cell.get_reference(name, reference)
        if level is None:
            continue
        (axes.axvline if is_upright else axes.axhline)(level, color=INK, linestyle=(0, (2, 3)), linewidth=1)
        position, axis = ((level, 1.0), "x") if is_upright else ((0.01, level), "y")
        axes.annotate(
            reference, position, xycoords=("data", "axes fraction") if axis == "x" else ("axes fraction", "data"),
            xytext=(0, 3), textcoords="offset points", fontsize=10, ha="center" if is_upright else "left", va="bottom",
        )  # fmt: skip


def _draw_stages(label: str, report: Report, name: GameSplit) -> Figure:
    results = [result for result in report.results if result.name == name]
    height = 1.2 + 0.55 * len(results)
    with open_drawing(
        label, f"Success on {name.game} at start, best and last, one row per cell", height=height
    ) as drawn:
        (axes,) = drawn.axes
        labelled = set[str]()  # stages that are in the legend
        for row, result in enumerate(results):
            for shift, stage in zip((-0.2, 0.0, 0.2), STAGES, strict=True):
                bounds = result.stages[stage]
                if bounds is None:
                    continue
                label_of_stage = None if stage in labelled else stage
                labelled.add(stage)
                span = [[bounds.value - (bounds.low if bounds.low is not None else bounds.value)],
                        [(bounds.high if bounds.high is not None else bounds.value) - bounds.value]]  # fmt: skip
                axes.errorbar(
                    [bounds.value], [row + shift], xerr=np.maximum(span, 0), fmt=MARKS[stage], capsize=3,
                    color=INK if stage == "start" else SERIES[0] if stage == "best" else SERIES[1],
                    markerfacecolor="none" if stage == "start" else None, label=label_of_stage,
                )  # fmt: skip
        _draw_references(axes, results[0].cell, name, is_upright=True)
        axes.set(
            yticks=range(len(results)), yticklabels=[_fold(r.cell.name) for r in results], xlim=(-0.03, 1.05)
        )
        axes.set(ylim=(len(results) - 0.5, -0.5), xlabel=f"success on {name.split}")
        axes.grid(axis="y", visible=False)
        axes.figure.legend(loc="outside lower center", ncols=3, frameon=False)
    caption = (
        f"{name.game}, split {name.split}: success with its 95 % interval, over seeds, or over episodes if a cell "
        "has one run. Circle: start. Triangle: best. Square: last."
    )
    return Figure(drawn, caption, [result.cell for result in results])


def _draw_signals(cells: Sequence[Cell]) -> Figure | None:
    shown = {
        metric: title_and_limits
        for metric, title_and_limits in SIGNALS.items()
        if any(_get_points(run, metric) for cell in cells for run in cell.runs)
    }
    if not shown:
        return None
    with open_drawing(
        "signals",
        "Signals of training: " + ", ".join(title for title, _ in shown.values()),
        panels=len(shown),
        height=1.9,
    ) as drawn:
        for axes, (metric, (title, limits)) in zip(drawn.axes, shown.items(), strict=True):
            for number, cell in enumerate(cells):
                if curve := _compute_band(cell, metric):
                    _draw_band(axes, number, curve, limits)
            axes.set_title(title, loc="left", fontsize=11, color=INK)
            axes.locator_params(axis="x", integer=True)
        drawn.axes[-1].set_xlabel("iteration")
        add_legend(drawn, {number: cell.name for number, cell in enumerate(cells)})
    caption = (
        "Signals of training: mean over seeds with its 95 % interval, over the runs that were still training."
    )
    return Figure(drawn, caption, list(cells))


def _draw_differences(comparisons: Sequence[Comparison]) -> Figure:
    with open_drawing(
        "differences", "Differences of success between cells", height=1.2 + 0.6 * len(comparisons)
    ) as drawn:
        (axes,) = drawn.axes
        for row, comparison in enumerate(comparisons):
            value, low, high = comparison.difference.bounds
            assert low is not None and high is not None
            axes.errorbar(
                [value], [row], xerr=[[value - low], [high - value]], fmt="D", capsize=3, color=SERIES[0]
            )
        axes.axvline(0, color=FAINT, linewidth=1.5)
        games = {comparison.name.game for comparison in comparisons}
        labels = [
            _fold(f"{c.a.name} − {c.b.name}" + (f" ({c.name.game})" if len(games) > 1 else ""))
            for c in comparisons
        ]
        axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5))
        axes.set_xlabel("difference of success")
        axes.locator_params(axis="x", nbins=5)
        axes.grid(axis="y", visible=False)
    cells = list(
        {id(cell): cell for comparison in comparisons for cell in (comparison.a, comparison.b)}.values()
    )
    return Figure(
        drawn,
        "Differences of success with their 95 % intervals; an interval that contains 0 is inconclusive.",
        cells,
    )
