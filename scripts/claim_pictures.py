"""A picture of each campaign's claims from its committed runs: docs/findings/NAME.svg.

    python scripts/claim_pictures.py [NAME ...]

Each row shows a claim for one set of options: the difference and its 95 % interval, from ``scripts/claims.py``.  The
shape of the mark shows the verdict: a disc means *reproduced*, a cross *not reproduced*, a ring *undecided*.  The grey
dashes mark the smallest difference that matters, on the side that the claim expects.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from typing import NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from claims import CLAIMS, Claim, Played, compute_gaps, find_place, state_verdict

from lit_agentrl.report.page.drawing import FAINT, INK, SERIES, open_drawing
from lit_agentrl.report.page.inference import compare_paired

MARKS = {"reproduced": ("o", SERIES[0]), "not reproduced": ("x", SERIES[0]), "undecided": ("o", "none")}
COLOURS = {
    "--ink": ("#1a1a1a", "#e8e8e8"),
    "--faint": ("#8a8a8a", "#7d8590"),
    "--series-0": ("#0060a8", "#6db8f2"),
}


class Row(NamedTuple):
    """A claim for one set of options."""

    says: str
    where: str
    mean: float
    low: float
    high: float
    least: float
    verdict: str


def read(file: Path) -> list[Played]:
    """Read the runs that ``scripts/claims.py --csv`` wrote."""
    with file.open(newline="") as opened:
        return [
            Played(
                tuple(row["options"].split(" ")), int(row["seed"]),
                *(float(row.get(name, nan)) for name in ("start", "last", "kept", "sharp")),
            )
            for row in csv.DictReader(opened)
        ]  # fmt: skip


def list_rows(claims: Sequence[Claim], runs: Sequence[Played]) -> Iterator[Row]:
    """Yield the rows that have an interval."""
    for claim in claims:
        for where in dict.fromkeys(find_place(claim, run) for run in runs):
            own = compute_gaps(claim, [run for run in runs if find_place(claim, run) == where])
            found = compare_paired(own, [0.0] * len(own)) if own else None
            if found is None or found.bounds.low is None or found.bounds.high is None:
                continue
            mean, low, high = found.bounds
            least = -claim.least if claim.expected == "below" else claim.least
            short = ", ".join(each.split("=", 1)[1] for each in where)
            yield Row(claim.says, short, mean, low, high, least, state_verdict(claim, found))


def draw_picture(name: str, found: Sequence[Row]) -> str:
    """Draw the SVG, which follows the reader's light or dark mode."""
    title = f"claims of {name}: differences with 95 % intervals"
    says = list(dict.fromkeys(row.says for row in found))
    lines = len(found) + len(says)
    with open_drawing(name, title, height=0.6 + 0.27 * lines) as made:
        (axes,) = made.axes
        at = lines
        for claim in says:
            axes.text(
                0.0, at, claim, transform=axes.get_yaxis_transform(), va="center", color=INK, fontsize=10
            )
            at -= 1
            for row in (row for row in found if row.says == claim):
                mark, fill = MARKS[row.verdict]
                axes.plot([row.low, row.high], [at, at], color=SERIES[0], linewidth=1.6)
                axes.plot([row.mean], [at], mark, color=SERIES[0], markerfacecolor=fill, markersize=7)
                axes.plot([row.least] * 2, [at - 0.35, at + 0.35], color=FAINT, linewidth=2.0)
                axes.text(1.01, at, row.where, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
                at -= 1
        axes.axvline(0.0, color=INK, linewidth=1.0)
        axes.set_yticks([])
        axes.set_ylim(0.2, lines + 0.8)
        axes.spines["left"].set_visible(False)
        axes.tick_params(labelsize=9)
        axes.set_xlabel("difference in success, or in the share of iterations", fontsize=10)
    return make_standalone(made.svg, title)


def make_standalone(svg: str, title: str) -> str:
    """Convert a drawing of a page into a separate SVG file."""
    light, dark = (";".join(f"{name}:{pair[k]}" for name, pair in COLOURS.items()) for k in (0, 1))
    head, _, rest = svg.partition(">")
    head = head.replace(' aria-hidden="true"', ' role="img"')
    style = f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{head}><title>{title}</title><style>{style}</style>{rest.rstrip()}\n"


def main() -> None:
    claims_by_name = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    for name in sys.argv[1:] or claims_by_name:
        claims = [Claim(**each) for each in claims_by_name[name]]
        found = list(list_rows(claims, read(CLAIMS.with_name(f"{name}.csv"))))
        CLAIMS.with_name(f"{name}.svg").write_text(draw_picture(name, found), encoding="utf-8")


if __name__ == "__main__":
    main()
