"""Drawing with matplotlib, which is imported only here.

The module makes pixel images, and SVG drawings that take their colours from the light or dark page.  A drawing can be
saved as a file of its own, as SVG or PNG in the colours of the light page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

try:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.colors import to_hex, to_rgba_array
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
except ImportError as error:
    raise ImportError(
        "figures need the package matplotlib; install it with: pip install 'lit-agentrl[figures]'"
    ) from error

# placeholders that `_extract_svg` replaces with the CSS variables of the page
INK, FAINT = (
    "#01fe01",
    "#02fe02",
)
SERIES = tuple(f"#03fe{number:02x}" for number in range(8))
LIGHT = {  # colours of the light page, by the name of their CSS variable
    "ink": "#1a1a1a", "faint": "#8a8a8a", "series-0": "#0060a8", "series-1": "#b34700", "series-2": "#00735c",
    "series-3": "#94307a", "series-4": "#6b5900", "series-5": "#23597a", "series-6": "#8a1c1c", "series-7": "#4a4a9c",
}  # fmt: skip
_VARIABLES = dict(zip((INK, FAINT, *SERIES), LIGHT, strict=True))  # placeholder -> CSS variable
_COLOURS = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")  # of an artist
_DPI = 200  # of a PNG
_LONG_NAME = 18  # characters; longer names have a row of the legend each
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (8, 3)))
_STYLE: Any = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 12.0, "font.family": "sans-serif",
    "text.color": INK, "axes.edgecolor": FAINT, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": FAINT, "grid.alpha": 0.35,
    "grid.linewidth": 0.6, "axes.facecolor": "none", "figure.facecolor": "none", "lines.linewidth": 1.8,
}  # fmt: skip


def create_pixel_figure(size: tuple[float, float], dpi: int) -> tuple[Any, Any]:
    """Create an empty figure of this size (inches), and its canvas."""
    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    return figure, FigureCanvasAgg(figure)


def render_pixels(canvas: Any) -> NDArray[np.uint8]:
    """Render the canvas as bytes of shape (height, width, 3 colours)."""
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


class Drawing:
    """A figure of one or more panels that becomes the SVG of a page.

    Attributes:
        name: name of the figure; it is the prefix of all names inside the SVG.
        title: description of the figure, for screen readers.
        axes: one for each panel.
        svg: the finished drawing; empty until then.
        files: the drawing as a file of its own, by ``svg`` and ``png``.
    """

    def __init__(self, name: str, title: str) -> None:
        self.name, self.title, self.svg = name, title, ""
        self.axes: list[Any] = []
        self.files: dict[Literal["svg", "png"], bytes] = {}

    def _close(self, figure: Any) -> None:
        FigureCanvasSVG(figure)
        file = io.StringIO()
        figure.savefig(
            file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
        self.svg = _extract_svg(file.getvalue(), self.name)
        _replace_colours(figure)
        FigureCanvasAgg(figure)
        for kind in ("svg", "png"):
            page = io.BytesIO()
            metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
            figure.savefig(page, format=kind, dpi=_DPI, facecolor="white", metadata=metadata)
            self.files[kind] = page.getvalue()


@contextmanager
def open_drawing(
    name: str, title: str, *, panels: int = 1, height: float = 3.1, width: float = 5.2
) -> Iterator[Drawing]:
    """Open a drawing of stacked panels, which is finished when the block ends."""
    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height * panels), layout="constrained")
        drawing = Drawing(name, title)
        drawing.axes = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
        yield drawing
        drawing._close(figure)


def get_style(number: int) -> dict[str, Any]:
    """Return colour and dashes of the lines of a cell."""
    return {"color": SERIES[number % len(SERIES)], "linestyle": DASHES[number % len(DASHES)]}


def add_legend(drawn: Drawing, names: Mapping[int, str]) -> None:
    """Name the lines of the cells below the panels, if there are several.

    Args:
        drawn: the open drawing.
        names: the name of each cell, by the number of its style.
    """
    if len(names) < 2:
        return
    lines = [Line2D([], [], **get_style(number)) for number in names]
    columns = 1 if max(map(len, names.values())) > _LONG_NAME else min(len(names), 3)
    drawn.axes[0].figure.legend(
        lines,
        list(names.values()),
        loc="outside lower center",
        frameon=False,
        handlelength=3.2,
        ncols=columns,
    )


def _extract_svg(svg: str, name: str) -> str:
    """Extract the ``<svg>`` element, with the page's colours and ids unique to this figure."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for placeholder, variable in _VARIABLES.items():
        svg = svg.replace(placeholder, f"var(--{variable})")
    return svg.replace("<svg ", '<svg aria-hidden="true" ', 1)


def _replace_colours(figure: Any) -> None:
    """Replace the placeholders in a figure by the colours of the light page."""
    for artist in figure.findobj():
        for name in _COLOURS:
            read, write = (getattr(artist, f"{verb}_{name}", None) for verb in ("get", "set"))
            if read is None or write is None:
                continue
            colours = to_rgba_array(read())
            variables = [_VARIABLES.get(to_hex(colour)) for colour in colours]
            if any(variables):
                replaced = [
                    colour if variable is None else (LIGHT[variable], float(colour[3]))
                    for colour, variable in zip(colours, variables, strict=True)
                ]
                write(replaced if len(replaced) > 1 else replaced[0])
