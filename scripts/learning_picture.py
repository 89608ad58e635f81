"""A picture of learning: docs/images/learning.svg, drawn from recorded runs.

    python scripts/learning_picture.py

The left side shows the untrained policy, the right side the policy after 60 iterations of GRPO with
``filter.ratio=0.5``, on 256 test tasks at temperature 1.  Each thin line is a seed of ``docs/findings/sharpening.csv``;
the thick line is their mean, with Student's 95 % interval.  The dashed lines are the chance and oracle levels of
``docs/findings/played.csv``.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from claim_pictures import standalone

from lit_agentrl.report.page.drawing import FAINT, INK, SERIES, open_drawing
from lit_agentrl.report.page.inference import compute_mean

DOCS = Path(__file__).resolve().parent.parent / "docs"
GAMES = ("sokoban", "frozen_lake")
STAGES = ("start", "last")


def successes(game: str) -> list[tuple[float, float]]:
    """Read each seed's success at the start and after training."""
    with (DOCS / "findings" / "sharpening.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["options"] == f"env={game}"]
    return [(float(row["start"]), float(row["last"])) for row in rows]


def levels(game: str) -> tuple[float, float]:
    """Read the chance and oracle levels on the test split."""
    with (DOCS / "findings" / "played.csv").open(newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if row["env"] == game and row["split"] == "test"]
    return float(row["chance_success"]), float(row["reference_success"])


def picture() -> str:
    """Draw the SVG, which follows the reader's light or dark mode."""
    title = "success of five seeds before and after 60 iterations of GRPO, between chance and oracle"
    with open_drawing("learning", title, height=3.6) as made:
        (axes,) = made.axes
        for place, game in enumerate(GAMES):
            left = 3 * place
            seeds = successes(game)
            for level, name in zip(levels(game), ("chance", "oracle"), strict=True):
                axes.plot([left - 0.4, left + 1.4], [level] * 2, "--", color=FAINT, linewidth=1.6)
                axes.text(left + 0.5, level + 0.02, f"{name} {level:.2f}", ha="center", fontsize=9)
            for seed in seeds:
                axes.plot([left, left + 1], seed, color=SERIES[0], linewidth=0.8, alpha=0.5)
            middle = [compute_mean(values) for values in zip(*seeds, strict=True)]
            axes.plot([left, left + 1], [each.value for each in middle], color=SERIES[0], linewidth=2.4)
            for at, (value, low, high) in enumerate(middle):
                axes.plot([left + at] * 2, [low, high], color=INK, linewidth=2.0)
                axes.plot([left + at], [value], "o", color=SERIES[0], markersize=6)
                axes.text(left + at + (0.15 if at else -0.15), value, f"{value:.2f}", va="center",
                          ha="left" if at else "right", fontsize=9)  # fmt: skip
            axes.text(left + 0.5, 1.13, game, ha="center", color=INK, fontsize=11)
        axes.set_xticks([0, 1, 3, 4], ["start", "60 iterations"] * 2)
        axes.set_xlim(-0.8, 4.8)
        axes.set_ylim(0.0, 1.2)
        axes.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
        axes.set_ylabel("success on 256 test tasks", fontsize=10)
        axes.tick_params(labelsize=9)
    return standalone(made.svg, title)


if __name__ == "__main__":
    (DOCS / "images" / "learning.svg").write_text(picture(), encoding="utf-8")
