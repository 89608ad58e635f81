"""Drawing with matplotlib, which is imported only here.

It makes pixel images, and SVG drawings that take their colours from the light or dark page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError(
        "figures need the package matplotlib; install it with: pip install 'lit-agentrl[figures]'"
    ) from error

INK, FAINT = (
    "#01fe01",
    "#02fe02",
)  # placeholders that `_extract_svg` replaces with the CSS variables of the page
SERIES = tuple(f"#03fe{number:02x}" for number in range(8))
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
    """

    def __init__(self, name: str, title: str) -> None:
        self.name, self.title, self.svg = name, title, ""
        self.axes: list[Any] = []

    def _close(self, figure: Any) -> None:
        FigureCanvasSVG(figure)
        file = io.StringIO()
        figure.savefig(
            file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
        self.svg = _extract_svg(file.getvalue(), self.name)


@contextmanager
def open_drawing(name: str, title: str, *, panels: int = 1, height: float = 3.1) -> Iterator[Drawing]:
    """Open a drawing of stacked panels, which is finished when the block ends."""
    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(5.2, height * panels), layout="constrained")
        drawing = Drawing(name, title)
        drawing.axes = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
        yield drawing
        drawing._close(figure)


def _extract_svg(svg: str, name: str) -> str:
    """Extract the ``<svg>`` element, with the page's colours and ids unique to this figure."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    colours = {INK: "var(--ink)", FAINT: "var(--faint)"}
    colours |= {colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)}
    for sentinel, variable in colours.items():
        svg = svg.replace(sentinel, variable)
    return svg.replace("<svg ", '<svg aria-hidden="true" ', 1)
