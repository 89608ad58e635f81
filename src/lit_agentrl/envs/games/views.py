"""How a grid world is put into text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lit_agentrl.checks import require

VIEWS = ("grid", "coordinates", "both")

Cell = tuple[int, int]


def render(view: str, rows: Sequence[Sequence[str]], things: Mapping[str, Sequence[Cell]]) -> str:
    """Text of a board.

    Args:
        view: ``grid`` (symbols one space apart, so that a cell can be a token), ``coordinates`` (one line
            for each kind of thing, as ``row , column`` counted from 0 at the top left) or ``both``.
        rows: symbols of the grid.
        things: name -> cells, in the order they are told; kinds without a cell are told as ``none``.
    """
    grid = "\n".join(" ".join(row) for row in rows)
    lines = [
        f"{name} : " + (" ; ".join(f"{row} , {column}" for row, column in sorted(cells)) or "none")
        for name, cells in things.items()
    ]
    texts = {"grid": [grid], "coordinates": lines, "both": [grid, *lines]}
    return "\n".join(texts[view])


def check_view(view: str) -> str:
    """The view itself, if it is known.

    Raises:
        ValueError: names the option otherwise.
    """
    require(view in VIEWS, "view", view, f"one of {', '.join(VIEWS)}")
    return view
