"""The table of docs/findings/parity.md."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "findings" / "parity.md"


@lru_cache
def rows() -> list[list[str]]:
    """The cells of each row whose first one names a function."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@lru_cache
def pairs() -> set[tuple[str, str]]:
    """Every pair of our function and the oracle's that has a row."""
    return {pair for row in rows() for pair in product(names(row[0]), names(row[1]))}
