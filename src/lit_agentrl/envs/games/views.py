"""Rendering of grid worlds as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lit_agentrl.checks import require

VIEWS = ("grid", "coordinates", "both")

Cell = tuple[int, int]


def render(view: str, rows: Sequence[Sequence[str]], entities: Mapping[str, Sequence[Cell]]) -> str:
    """Render a board as text.

    Args:
        view: ``grid`` (symbols one space apart, so that a cell can be one token), ``coordinates`` (one line
            per kind of entity, as ``row , column`` counted from 0 at the top left) or ``both``.
        rows: symbols of the grid.
        entities: name -> cells, in the order of their lines; a kind without cells shows ``none``.
    """
    grid = "\n".join(" ".join(row) for row in rows)
    lines = [
        f"{name} : " + (" ; ".join(f"{row} , {column}" for row, column in sorted(cells)) or "none")
        for name, cells in entities.items()
    ]
    texts = {"grid": [grid], "coordinates": lines, "both": [grid, *lines]}
    return "\n".join(texts[view])


def check_view(view: str) -> str:
    """Return the view if it is known.

    Raises:
        ValueError: it is unknown.
    """
    require(view in VIEWS, "view", view, f"one of {', '.join(VIEWS)}")
    return view
