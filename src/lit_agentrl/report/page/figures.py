"""Figures of a report: curves over seeds, scores between chance and oracle, differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lit_agentrl.report.page import inference
from lit_agentrl.report.page.cells import LOST, Cell, Name
from lit_agentrl.report.page.drawing import DASHES, FAINT, INK, SERIES, Drawing, drawing
from lit_agentrl.report.page.plane import MARKS, planes
from lit_agentrl.report.page.results import STAGES, Comparison, Report
from lit_agentrl.report.page.runs import Run

SIGNALS = {  # metric -> title, and the range of its values
    "rollout/success": ("success in training", (0.0, 1.0)),
    "rollout/return_std_within_group": ("spread within a group", (0.0, np.inf)),
    "rollout/dead_group_share": ("dead groups", (0.0, 1.0)),
    "rollout/entropy": ("entropy (nats a token)", (0.0, np.inf)),
    "rollout/distinct_2": ("distinct pairs of tokens", (0.0, 1.0)),
    "train/grad_norm": ("gradient norm", (0.0, np.inf)),
    "reward/model_score": ("score of the reward model", (-np.inf, np.inf)),
    "reward/model_gap": ("what it takes for success, less success", (-1.0, 1.0)),
    "rollout/cost": ("cost of an episode", (-np.inf, np.inf)),
    "train/cost_multiplier": ("multiplier of costs", (0.0, np.inf)),
}


@dataclass(frozen=True)
class Figure:
    """A drawing with its caption and the cells it shows."""

    drawing: Drawing
    caption: str
    cells: list[Cell]


def figures(report: Report) -> list[Figure]:
    """Draw all figures that the runs provide, in the order of the page."""
    found: list[Figure] = []
    names = list(dict.fromkeys(result.name for result in report.results))
    for number, name in enumerate(names):
        cells = [result.cell for result in report.results if result.name == name]
        curve = _curves(f"curve{number}", cells, name)
        found += [curve] if curve is not None else []
        found.append(_stages(f"stages{number}", report, name))
    known = [each for each in report.comparisons if each.difference.bounds.low is not None]
    found += [_differences(known)] if known else []
    found += [Figure(*plane) for plane in planes(report.cells)]
    signals = _signals(report.cells)
    return [*found, *([signals] if signals is not None else [])]


def _look(number: int) -> dict[str, Any]:
    return {"color": SERIES[number % len(SERIES)], "linestyle": DASHES[number % len(DASHES)]}


def _points(run: Run, metric: str) -> dict[float, float]:
    rows = ((row["iteration"], row.get(metric)) for row in run.metrics.rows)
    return {at: value for at, value in rows if at is not None and value is not None and np.isfinite(value)}


def _metric(cell: Cell, name: Name) -> str:
    """Return the name of the cell's metric of validation success on the game."""
    of_game = f"val/{name.game}/success"
    return of_game if any(of_game in run.metrics.columns for run in cell.runs) else "val/success"


def _banded(cell: Cell, metric: str, lost: float | None = None) -> list[tuple[float, inference.Bounds]]:
    """Compute the mean and interval over seeds at each iteration.

    With ``lost`` given, a run that collapsed continues with its last value after its end, and a run that failed
    continues with ``lost``.
    """
    curves = [(run, points) for run in cell.runs if (points := _points(run, metric))]
    found = []
    for at in sorted({at for _, points in curves for at in points}):
        values = []
        for run, points in curves:
            if at in points:
                values.append(points[at])
            elif run.status in LOST and at > max(points) and lost is not None:
                values.append(points[max(points)] if run.status == "collapsed" else lost)
        found.append((at, inference.mean(values)))
    return found


def _draw(
    axes: Any,
    number: int,
    cell: Cell,
    curve: Sequence[tuple[float, inference.Bounds]],
    limits: tuple[float, float],
) -> None:
    at = [each for each, _ in curve]
    axes.plot(at, [each.value for _, each in curve], marker="." if len(at) < 30 else None, **_look(number))
    low = [each.value if each.low is None else each.low for _, each in curve]
    high = [each.value if each.high is None else each.high for _, each in curve]
    low, high = np.clip(low, *limits).tolist(), np.clip(high, *limits).tolist()
    axes.fill_between(at, low, high, color=SERIES[number % len(SERIES)], alpha=0.15, linewidth=0)
    axes.annotate(
        cell.letter, (at[-1], curve[-1][1].value), xytext=(5 + 11 * (number % 3), 0), textcoords="offset points",
        va="center", color=SERIES[number % len(SERIES)], weight="bold", annotation_clip=False,
    )  # fmt: skip


def _curves(label: str, cells: Sequence[Cell], name: Name) -> Figure | None:
    curves = [
        (n, c, _banded(c, _metric(c, name), c.level(name, "chance") or 0.0)) for n, c in enumerate(cells)
    ]
    curves = [each for each in curves if each[2]]
    if not curves:
        return None
    with drawing(
        label, f"Success in validation on {name.game} over the iterations, a curve for each cell"
    ) as drawn:
        (axes,) = drawn.axes
        for number, cell, curve in curves:
            _draw(axes, number, cell, curve, (0.0, 1.0))
        _levels(axes, cells[0], name, is_upright=False)
        axes.set(xlabel="iteration", ylabel="success in validation", ylim=(-0.03, 1.07))
        axes.locator_params(axis="x", integer=True)
    caption = (
        f"{name.game}: success in validation, mean over seeds with its 95 % interval. A run that failed goes on with "
        "chance after its end, one that collapsed with its last value."
    )
    return Figure(drawn, caption, list(cells))


def _levels(axes: Any, cell: Cell, name: Name, *, is_upright: bool) -> None:
    for which in ("chance", "oracle"):
        level = cell.level(name, which)
        if level is None:
            continue
        (axes.axvline if is_upright else axes.axhline)(level, color=INK, linestyle=(0, (2, 3)), linewidth=1)
        at, turn = ((level, 1.0), "x") if is_upright else ((0.01, level), "y")
        axes.annotate(
            which, at, xycoords=("data", "axes fraction") if turn == "x" else ("axes fraction", "data"),
            xytext=(0, 3), textcoords="offset points", fontsize=10, ha="center" if is_upright else "left", va="bottom",
        )  # fmt: skip


def _stages(label: str, report: Report, name: Name) -> Figure:
    results = [result for result in report.results if result.name == name]
    height = 1.2 + 0.55 * len(results)
    with drawing(
        label, f"Success on {name.game} at start, best and last, a row for each cell", height=height
    ) as drawn:
        (axes,) = drawn.axes
        for row, result in enumerate(results):
            for shift, stage in zip((-0.2, 0.0, 0.2), STAGES, strict=True):
                bounds = result.stages[stage]
                if bounds is None:
                    continue
                is_first = row == 0
                span = [[bounds.value - (bounds.low if bounds.low is not None else bounds.value)],
                        [(bounds.high if bounds.high is not None else bounds.value) - bounds.value]]  # fmt: skip
                axes.errorbar(
                    [bounds.value], [row + shift], xerr=np.maximum(span, 0), fmt=MARKS[stage], capsize=3,
                    color=INK if stage == "start" else SERIES[0] if stage == "best" else SERIES[1],
                    markerfacecolor="none" if stage == "start" else None, label=stage if is_first else None,
                )  # fmt: skip
        _levels(axes, results[0].cell, name, is_upright=True)
        axes.set(yticks=range(len(results)), yticklabels=[r.cell.letter for r in results], xlim=(-0.03, 1.05))
        axes.set(ylim=(len(results) - 0.5, -0.5), xlabel=f"success on {name.split}")
        axes.grid(axis="y", visible=False)
        axes.figure.legend(loc="outside lower center", ncols=3, frameon=False)
    caption = (
        f"{name.game}, split {name.split}: success with its 95 % interval, over seeds, or over episodes where a cell "
        "has one run. Circle: start. Triangle: best. Square: last."
    )
    return Figure(drawn, caption, [result.cell for result in results])


def _signals(cells: Sequence[Cell]) -> Figure | None:
    shown = {m: t for m, t in SIGNALS.items() if any(_points(run, m) for cell in cells for run in cell.runs)}
    if not shown:
        return None
    with drawing(
        "signals",
        "Signals of training: " + ", ".join(title for title, _ in shown.values()),
        panels=len(shown),
        height=1.9,
    ) as drawn:
        for axes, (metric, (title, limits)) in zip(drawn.axes, shown.items(), strict=True):
            for number, cell in enumerate(cells):
                if curve := _banded(cell, metric):
                    _draw(axes, number, cell, curve, limits)
            axes.set_title(title, loc="left", fontsize=11, color=INK)
            axes.locator_params(axis="x", integer=True)
        drawn.axes[-1].set_xlabel("iteration")
    caption = "Signals of training: mean over seeds with its 95 % interval, of the runs that still went on."
    return Figure(drawn, caption, list(cells))


def _differences(comparisons: Sequence[Comparison]) -> Figure:
    with drawing(
        "differences", "Differences of success between cells", height=1.2 + 0.4 * len(comparisons)
    ) as drawn:
        (axes,) = drawn.axes
        for row, each in enumerate(comparisons):
            value, low, high = each.difference.bounds
            assert low is not None and high is not None
            axes.errorbar(
                [value], [row], xerr=[[value - low], [high - value]], fmt="D", capsize=3, color=SERIES[0]
            )
        axes.axvline(0, color=FAINT, linewidth=1.5)
        games = {each.name.game for each in comparisons}
        labels = [
            f"{c.a.letter} − {c.b.letter}" + (f" ({c.name.game})" if len(games) > 1 else "")
            for c in comparisons
        ]
        axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5))
        axes.set_xlabel("difference of success")
        axes.locator_params(axis="x", nbins=5)
        axes.grid(axis="y", visible=False)
    cells = list({id(cell): cell for each in comparisons for cell in (each.a, each.b)}.values())
    return Figure(
        drawn, "Differences of success with their 95 % intervals; one that crosses 0 decides nothing.", cells
    )
