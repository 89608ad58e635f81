"""A picture of learning: docs/images/learning.svg, drawn from recorded runs.

    python scripts/learning_picture.py

The first two panels show the embedded policy at the start and after 60 iterations of GRPO with ``filter.ratio=0.5``,
at temperature 1 (``docs/findings/sharpening.csv``).  The third shows SmolLM2-135M at the start, after imitation and
after GRPO, each at its best temperature (``docs/findings/real_model.csv``).  All play 256 test tasks.  Each thin line
is a seed; the thick line is their mean, with Student's 95 % interval.  The dashed lines are chance and oracle
(``docs/findings/played.csv``).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

sys.path.insert(0, str(Path(__file__).resolve().parent))
from claim_pictures import make_standalone

from lit_agentrl.report.page.drawing import FAINT, INK, SERIES, open_drawing
from lit_agentrl.report.page.inference import compute_mean

DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Panel:
    """The success of several seeds at the stages of their training.

    Attributes:
        title: game and policy.
        stages: labels of the stages.
        seeds: of each seed, the success at each stage.
        chance: success of random play.
        oracle: success of best play.
    """

    title: str
    stages: tuple[str, ...]
    seeds: tuple[tuple[float, ...], ...]
    chance: float
    oracle: float


def read_csv(name: str) -> list[dict[str, str]]:
    """Read a table of the findings."""
    with (DOCS / "findings" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def read_embedded(game: str) -> Panel:
    """Read what the embedded policy learnt in a game."""
    rows = [row for row in read_csv("sharpening.csv") if row["options"] == f"env={game}"]
    (levels,) = [row for row in read_csv("played.csv") if row["env"] == game and row["split"] == "test"]
    return Panel(
        f"{game}\n1M parameters", ("start", "GRPO"), tuple((float(row["start"]), float(row["last"])) for row in rows),
        float(levels["chance_success"]), float(levels["reference_success"]),
    )  # fmt: skip


def read_pretrained(game: str) -> Panel:
    """Read what SmolLM2 learnt in a game, each stage at its best temperature."""
    rows = [row for row in read_csv("real_model.csv") if row["game"] == game]
    success = {(row["seed"], row["policy"]): float(row["success"]) for row in rows}
    seeds = dict.fromkeys(row["seed"] for row in rows)
    stages = {"start": "start, best T", "imitation": "imitation, best T", "GRPO": "RL, best T"}
    return Panel(
        f"{game}\nSmolLM2-135M", tuple(stages),
        tuple(tuple(success[seed, policy] for policy in stages.values()) for seed in seeds),
        success[rows[0]["seed"], "chance"], success[rows[0]["seed"], "oracle"],
    )  # fmt: skip


def draw_panel(axes: Axes, panel: Panel, left: int) -> None:
    """Draw a panel that begins at this place of the horizontal axis."""
    right = left + len(panel.stages) - 1
    for level, name in ((panel.chance, "chance"), (panel.oracle, "oracle")):
        axes.plot([left - 0.4, right + 0.4], [level] * 2, "--", color=FAINT, linewidth=1.6)
        axes.text(right + 0.4, level + 0.02, f"{name} {level:.2f}", ha="right", fontsize=9)
    places = range(left, right + 1)
    for seed in panel.seeds:
        axes.plot(places, seed, color=SERIES[0], linewidth=0.8, alpha=0.5)
    means = [compute_mean(values) for values in zip(*panel.seeds, strict=True)]
    axes.plot(places, [mean.value for mean in means], color=SERIES[0], linewidth=2.4)
    for place, (value, low, high) in zip(places, means, strict=True):
        axes.plot([place] * 2, [low, high], color=INK, linewidth=2.0)
        axes.plot([place], [value], "o", color=SERIES[0], markersize=6)
        is_last = place == right
        axes.text(place + (0.15 if is_last else -0.15), value + 0.02, f"{value:.2f}",
                  ha="left" if is_last else "right", fontsize=9)  # fmt: skip
    axes.text((left + right) / 2, 1.11, panel.title, ha="center", color=INK, fontsize=10)


def draw(panels: Sequence[Panel]) -> str:
    """Draw the SVG, which follows the reader's light or dark mode."""
    title = f"success of {len(panels[0].seeds)} seeds before and after training, between chance and oracle"
    with open_drawing("learning", title, width=8.2, height=3.8) as made:
        (axes,) = made.axes
        left, ticks, labels = 0, [], []
        for panel in panels:
            draw_panel(axes, panel, left)
            ticks += range(left, left + len(panel.stages))
            labels += panel.stages
            left += len(panel.stages) + 1
        axes.set_xticks(ticks, labels)
        axes.set_xlim(-0.8, left - 1.2)
        axes.set_ylim(0.0, 1.28)
        axes.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
        axes.set_ylabel("success on 256 test tasks", fontsize=10)
        axes.tick_params(labelsize=9)
    return make_standalone(made.svg, title)


def read_panels() -> list[Panel]:
    """Read the panels of the picture."""
    return [read_embedded("sokoban"), read_embedded("frozen_lake"), read_pretrained("reverse_text")]


if __name__ == "__main__":
    (DOCS / "images" / "learning.svg").write_text(draw(read_panels()), encoding="utf-8")
