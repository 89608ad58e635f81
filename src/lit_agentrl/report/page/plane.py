"""Drawing of the four regimes of thoughts, from start to last, for each game."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lit_agentrl.report.page.cells import Cell
from lit_agentrl.report.page.drawing import FAINT, INK, Drawing, add_legend, get_style, open_drawing
from lit_agentrl.report.page.regimes import STAGES, Setting, ThoughtInformation, classify_regime
from lit_agentrl.report.page.runs import Run

MARKS = {"start": "o", "best": "^", "last": "s"}
_Path = Mapping[str, ThoughtInformation]  # by stage


def draw_planes(cells: Sequence[Cell]) -> Iterator[tuple[Drawing, str, list[Cell]]]:
    """Yield a drawing with its caption and cells for each setting measured."""
    keys = sorted({setting for cell in cells for run in cell.runs for setting, _ in run.thoughts})
    for number, setting in enumerate(keys):
        paths = [
            (row, cell, path)
            for row, cell in enumerate(cells)
            for run in cell.runs
            if (path := _select_path(run, setting))
        ]
        shown = list({cell.name: cell for _, cell, _ in paths}.values())
        drawn, caption = _draw_plane(f"plane{number}", setting, paths)
        yield drawn, caption, shown


def _select_path(run: Run, setting: Setting) -> _Path:
    return {stage: run.thoughts[setting, stage] for stage in STAGES if (setting, stage) in run.thoughts}


def _compute_bounds(paths: Sequence[_Path]) -> tuple[float, float]:
    """Compute the bounds of entropy and mutual information between the regimes.

    The first is half of the mean entropy at the start, or half of the largest entropy if no start was measured; the
    second is half of the largest mutual information possible.
    """
    starts = [path["start"].entropy for path in paths if "start" in path]
    points = [point for path in paths for point in path.values()]
    entropy = sum(starts) / len(starts) if starts else max(point.entropy for point in points)
    return entropy / 2, max(point.max_mutual for point in points) / 2


def _draw_plane(
    label: str, setting: Setting, paths: Sequence[tuple[int, Cell, _Path]]
) -> tuple[Drawing, str]:
    game = " ".join([setting.game, *setting.variant])
    entropy, mutual = _compute_bounds([path for _, _, path in paths])
    points = [point for _, _, path in paths for point in path.values()]
    right = 1.15 * max(2 * entropy, *(point.entropy for point in points), 1e-3)
    top = 1.1 * max(2 * mutual, *(point.mutual for point in points), 1e-3)
    bottom = min(0.0, *(point.mutual for point in points)) - 0.05 * top
    with open_drawing(
        label, f"Four regimes of thoughts on {game}: information against entropy", height=4.2
    ) as drawn:
        (axes,) = drawn.axes
        axes.axvline(entropy, color=FAINT, linewidth=1)
        axes.axhline(mutual, color=FAINT, linewidth=1)
        for name, (x, y), ha, va in (
            ("compressed", (0.01, 0.99), "left", "top"),
            ("diverse", (0.99, 0.99), "right", "top"),
            ("low entropy", (0.01, 0.01), "left", "bottom"),
            ("template", (0.99, 0.01), "right", "bottom"),
        ):
            axes.text(
                x, y, name, transform=axes.transAxes, ha=ha, va=va, fontsize=10, style="italic", color=INK
            )
        for row, _, path in paths:
            _draw_arrow(axes, row, path)
        axes.set(xlim=(-0.05 * right, right), ylim=(bottom, top))
        axes.set(xlabel="H(Z|X), nats per thought", ylabel="I(X;Z), nats per thought")
        add_legend(drawn, {row: cell.name for row, cell, _ in paths})
    paths_by_cell: dict[str, Counter[str]] = {}
    for _, cell, path in paths:
        regimes = [
            classify_regime(
                conditional_entropy=point.entropy,
                mutual=point.mutual,
                entropy_bound=entropy,
                mutual_bound=mutual,
            )
            for point in path.values()
        ]
        paths_by_cell.setdefault(cell.name, Counter())[" → ".join(dict.fromkeys(regimes))] += 1
    summary = "; ".join(
        f"{name}: " + ", ".join(f"{n} × {route}" for route, n in sorted(regimes.items()))
        for name, regimes in paths_by_cell.items()
    )
    caption = (
        f"{game}, split {setting.split}, temperature {setting.temperature:g}: mutual information of thoughts and "
        "observations, against the entropy of thoughts given the observation. Circle: start. Triangle: best. "
        "Square: last. Lines: half of the largest possible information, half of the entropy at the start (half of "
        f"the largest entropy if no start was measured). Runs by regime: {summary}."
    )
    return drawn, caption


def _draw_arrow(axes: Any, row: int, path: _Path) -> None:
    style = get_style(row)
    colour = style["color"]
    if "start" in path and "last" in path:
        (begin, end) = ((path[stage].entropy, path[stage].mutual) for stage in ("start", "last"))
        arrow = {"arrowstyle": "->", **style, "shrinkA": 4, "shrinkB": 4}
        axes.annotate("", end, xytext=begin, arrowprops=arrow)
    for stage, point in path.items():
        face = "none" if stage == "start" else colour
        axes.plot(point.entropy, point.mutual, MARKS[stage], color=colour, markerfacecolor=face, markersize=7)
