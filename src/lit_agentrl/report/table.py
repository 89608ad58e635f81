"""``metrics.csv`` as a table, and rich tables as plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table

Row = dict[str, float | None]  # None: not measured in that iteration

SHOWN = (  # columns that are printed if a run has them; all others are available by name
    "iteration", "rollout/success", "rollout/return_mean", "rollout/entropy", "train/grad_norm", "val/success",
)  # fmt: skip
_MAX_ROWS = 20  # rows of a printed table


def as_text(renderable: RenderableType, width: int = 80) -> str:
    """Render what ``rich`` would print, as text without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


class Printed:
    """An object that ``rich`` can show, and whose text is the same without colours.

    Its text begins with a line break, because `print` writes a space between objects: printed tables then stand one
    below the other.
    """

    def __repr__(self) -> str:
        return as_text(self)  # type: ignore[arg-type]  # the classes have __rich__

    def __str__(self) -> str:
        return f"\n{self!r}"


class Metrics(Printed):
    """The metrics of a run: a row for each iteration; row 0 is the start.

    ``metrics["val/success"]`` is a column; ``pandas.DataFrame(metrics.rows)`` makes a data frame of all columns.

    Attributes:
        rows: values by name; None for a value that was not measured.
        columns: the names of all values.

    Examples:
        >>> Metrics([{"iteration": 0.0, "val/success": 0.2}, {"iteration": 1.0}])["val/success"]
        [0.2, None]
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self.columns = list(dict.fromkeys(name for row in self.rows for name in row))

    @classmethod
    def read(cls, path: str | Path) -> Metrics:
        """Read the table from a file; a missing file gives no rows."""
        if not Path(path).exists():
            return cls([])
        with open(path, encoding="utf-8", newline="") as file:
            return cls([
                {name: float(text) if text else None for name, text in row.items()} for row in csv.DictReader(file)
            ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> list[float | None]:
        """Return one metric over the iterations.

        Raises:
            KeyError: there is no metric of that name.
        """
        if column not in self.columns:
            raise KeyError(f"{column} is not a metric of this run; valid: {', '.join(self.columns)}")
        return [row.get(column) for row in self.rows]

    def __rich__(self) -> Table:
        shown = [name for name in SHOWN if name in self.columns]
        left = len(self.rows) - _MAX_ROWS
        more = f"the last {_MAX_ROWS} of {len(self.rows)} rows; " if left > 0 else ""
        table = Table(caption=f"{more}{len(shown)} of {len(self.columns)} columns")
        for name in shown:
            table.add_column(name.replace("/", "\n"), justify="right")
        for row in self.rows[max(left, 0) :]:
            table.add_row(*("–" if (value := row.get(name)) is None else f"{value:.4g}" for name in shown))
        return table


def iterate_rows(path: Path, iterations: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the iteration and the values of each row up to ``iterations``."""
    for row in Metrics.read(path).rows:
        values = {name: value for name, value in row.items() if value is not None}
        step = int(values.pop("iteration"))
        if step <= iterations:
            yield step, values
