"""Drawing of the four regimes of thoughts, from start to last, for each game."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lit_agentrl.report.page.cells import Cell
from lit_agentrl.report.page.drawing import DASHES, FAINT, INK, SERIES, Drawing, drawing
from lit_agentrl.report.page.regimes import STAGES, Played, Thinking, regime
from lit_agentrl.report.page.runs import Run

MARKS = {"start": "o", "best": "^", "last": "s"}
_Path = Mapping[str, Thinking]  # by stage


def planes(cells: Sequence[Cell]) -> Iterator[tuple[Drawing, str, list[Cell]]]:
    """Yield a drawing with its caption and cells for each setting measured."""
    keys = sorted({played for cell in cells for run in cell.runs for played, _ in run.thoughts})
    for number, played in enumerate(keys):
        paths = [
            (row, cell, path)
            for row, cell in enumerate(cells)
            for run in cell.runs
            if (path := _path(run, played))
        ]
        shown = list({cell.letter: cell for _, cell, _ in paths}.values())
        drawn, told = _plane(f"plane{number}", played, paths)
        yield drawn, told, shown


def _path(run: Run, played: Played) -> _Path:
    return {stage: run.thoughts[played, stage] for stage in STAGES if (played, stage) in run.thoughts}


def _bounds(paths: Sequence[_Path]) -> tuple[float, float]:
    """Compute the bounds of entropy and mutual information between the regimes.

    The first is half of the mean entropy at the start, or half of the largest entropy if no start was measured; the
    second is half of the largest mutual information possible.
    """
    starts = [path["start"].entropy for path in paths if "start" in path]
    every = [each for path in paths for each in path.values()]
    entropy = sum(starts) / len(starts) if starts else max(each.entropy for each in every)
    return entropy / 2, max(each.most for each in every) / 2


def _plane(label: str, played: Played, paths: Sequence[tuple[int, Cell, _Path]]) -> tuple[Drawing, str]:
    of = " ".join([played.game, *played.variant])
    entropy, mutual = _bounds([path for _, _, path in paths])
    every = [each for _, _, path in paths for each in path.values()]
    right = 1.15 * max(2 * entropy, *(each.entropy for each in every), 1e-3)
    top = 1.1 * max(2 * mutual, *(each.mutual for each in every), 1e-3)
    bottom = min(0.0, *(each.mutual for each in every)) - 0.05 * top
    with drawing(
        label, f"Four regimes of thoughts on {of}: information against entropy", height=4.2
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
        for row, cell, path in paths:
            _arrow(axes, row, cell, path)
        axes.set(xlim=(-0.05 * right, right), ylim=(bottom, top))
        axes.set(xlabel="H(Z|X), nats a thought", ylabel="I(X;Z), nats a thought")
    moved: dict[str, Counter[str]] = {}
    for _, cell, path in paths:
        ways = [
            regime(
                conditional_entropy=at.entropy, mutual=at.mutual, entropy_bound=entropy, mutual_bound=mutual
            )
            for at in path.values()
        ]
        moved.setdefault(cell.letter, Counter())[" → ".join(dict.fromkeys(ways))] += 1
    told = "; ".join(
        f"{letter}: " + ", ".join(f"{n} × {way}" for way, n in sorted(ways.items()))
        for letter, ways in moved.items()
    )
    caption = (
        f"{of}, split {played.split}, temperature {played.temperature:g}: mutual information of thoughts and what is "
        "seen, against the entropy of thoughts where the same is seen. Circle: start. Triangle: best. Square: last. "
        "Lines: half of the most information possible, half of the entropy of the start (of the largest one where no "
        f"start was measured). Runs by regime: {told}."
    )
    return drawn, caption


def _arrow(axes: Any, row: int, cell: Cell, path: _Path) -> None:
    colour, line = SERIES[row % len(SERIES)], DASHES[row % len(DASHES)]
    if "start" in path and "last" in path:
        (begin, end) = ((path[stage].entropy, path[stage].mutual) for stage in ("start", "last"))
        arrow = {"arrowstyle": "->", "color": colour, "linestyle": line, "shrinkA": 4, "shrinkB": 4}
        axes.annotate("", end, xytext=begin, arrowprops=arrow)
    for stage, at in path.items():
        face = "none" if stage == "start" else colour
        axes.plot(at.entropy, at.mutual, MARKS[stage], color=colour, markerfacecolor=face, markersize=7)
    last = list(path.values())[-1]
    axes.annotate(
        cell.letter, (last.entropy, last.mutual), xytext=(7, 4), textcoords="offset points", color=colour,
        weight="bold", annotation_clip=False,
    )  # fmt: skip
