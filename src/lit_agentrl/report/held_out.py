"""Tables of what a run measured on held-out data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = {
    "loss": "loss", "reward_accuracy": "accuracy", "reward_margin": "margin", "nll": "NLL (nats a token)",
    "perplexity": "perplexity",
}  # fmt: skip


def list_rows(measured: Mapping[str, Mapping[str, float]], stages: Sequence[str]) -> list[list[str]]:
    """List the names of the columns, then the cells of each stage.

    Args:
        measured: metrics by stage, with the iteration.
        stages: the stages that get a row, in order; one that was not measured has dashes.
    """
    known = {name for metrics in measured.values() for name in metrics}
    names = [name for name in COLUMNS if name in known]
    rows = [["policy", "iter.", *(COLUMNS[name] for name in names)]]
    for stage in stages:
        metrics = measured.get(stage, {})
        iteration = f"{metrics['iteration']:.0f}" if "iteration" in metrics else "–"
        rows.append(
            [stage, iteration, *(f"{metrics[name]:.4g}" if name in metrics else "–" for name in names)]
        )
    return rows


def format_markdown(measured: Mapping[str, Mapping[str, float]], stages: Sequence[str]) -> list[str]:
    """Format the lines of a Markdown table; none if nothing was measured."""
    if not measured:
        return []
    head, *rows = list_rows(measured, stages)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def find_start(summary: Mapping[str, Any], name: str) -> float | None:
    """Return the start's score of a metric; None if unknown, or of several games."""
    if name != "val/success":
        measured: Mapping[str, float] = summary["held_out"].get("start", {})
        return measured.get(name.removeprefix("val/data_"))
    starts = [game["start"] for game in summary["games"] if game["split"] == "val" and game["start"]]
    return float(starts[0]["success"]["mean"]) if len(starts) == 1 else None
