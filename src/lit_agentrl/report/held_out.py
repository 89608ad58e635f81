"""Tables of what a run measured on held-out data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

COLUMNS = {
    "loss": "loss", "reward_accuracy": "accuracy (chance 0.5)", "reward_margin": "margin",
    "nll": "NLL (nats a token)", "perplexity": "perplexity",
}  # fmt: skip
NOTES = {
    "loss": "loss: what the algorithm minimises, in nats if it is a log-likelihood or a log-sigmoid",
    "reward_accuracy": "accuracy: share of pairs with a margin above 0; ties, as at the start, count half",
    "reward_margin": "margin: implicit reward of the chosen reply less that of the rejected one, in nats times beta",
}


class HeldOutRows(TypedDict):
    """The number of held-out groups, and a hash of their texts and returns."""

    groups: int
    fingerprint: str


class HasHeldOutRows(TypedDict, total=False):
    """A summary that may say which held-out rows judged the run; older ones do not."""

    held_out_rows: HeldOutRows


def describe_columns(measured: Mapping[str, Mapping[str, float]]) -> str:
    """Describe the columns whose names do not say what they are; may be empty."""
    return "; ".join(NOTES[name] for name in _choose_columns(measured) if name in NOTES)


def _choose_columns(measured: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return the names of columns by metric; a loss equal to the NLL has none."""
    known = {name for metrics in measured.values() for name in metrics}
    columns = {metric: name for metric, name in COLUMNS.items() if metric in known}
    pairs = [(metrics.get("loss"), metrics.get("nll")) for metrics in measured.values()]
    if pairs and all(
        loss is not None and nll is not None and math.isclose(loss, nll, rel_tol=1e-4) for loss, nll in pairs
    ):
        del columns["loss"]
        columns["nll"] = f"loss = {COLUMNS['nll']}"
    return columns


def list_rows(measured: Mapping[str, Mapping[str, float]], stages: Sequence[str]) -> list[list[str]]:
    """List the names of the columns, then the cells of each stage.

    Args:
        measured: metrics by stage, with the iteration.
        stages: the stages that get a row, in order; one that was not measured has dashes.
    """
    names = _choose_columns(measured)
    rows = [["policy", "iter.", *names.values()]]
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
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    note = describe_columns(measured)
    return [*lines, "", f"{note[0].upper()}{note[1:]}."] if note else lines


def find_start_score(summary: Mapping[str, Any], name: str) -> float | None:
    """Return a metric's score at the start; None if unknown, or if games are several."""
    if name != "val/success":
        measured: Mapping[str, float] = summary["held_out"].get("start", {})
        return measured.get(name.removeprefix("val/data_"))
    starts = [game["start"] for game in summary["games"] if game["split"] == "val" and game["start"]]
    return float(starts[0]["success"]["mean"]) if len(starts) == 1 else None
