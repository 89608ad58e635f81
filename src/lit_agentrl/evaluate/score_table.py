"""The table of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from rich.markup import escape
from rich.table import Table

from lit_agentrl.config.overrides import VARIANT
from lit_agentrl.evaluate import baselines
from lit_agentrl.evaluate.diagnostics import list_scores
from lit_agentrl.report.summary import Estimate, format_usage


def build_table(
    stage: str, cfg: DictConfig, records: Sequence[dict[str, Any]], used: Mapping[str, float]
) -> Table:
    """Build the table of scores, one line per score so that it fits 80 columns.

    ``stage`` names the model or the weights.  ``used`` holds a server's usage counts.
    """
    group_note = "" if cfg.members == 1 else f", {cfg.members} episodes of each task"
    variant = "".join(f", {option}" for option in cfg.get(VARIANT, ()))
    table = Table(
        title=escape(f"{stage}, split {cfg.split}{group_note}{variant}"),  # options may have square brackets
        caption="n: tasks; normalised: 0 is chance, 1 is the oracle"
        + (f"\nengine: {format_usage(used)}" if used else ""),
    )
    for column in ("game", "T", "n", "score", "value", "95 % interval"):
        table.add_column(column, justify="left" if column in ("game", "score") else "right")
    for record in records:
        names = [record["env"], f"{record['temperature']:g}"]
        for score, cells in _list_scores(record):
            table.add_row(*names, *cells[:1], score, *cells[1:])
            names = ["", ""]
        table.add_section()
    return table


def _list_scores(record: dict[str, Any]) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each score of a record: its name, and its formatted n, value and interval."""
    levels = record["levels"]
    yield "success", _format_estimate(record["success"])
    for level in ("chance", "oracle"):
        yield f"  {level}", ("", _number(levels[f"{level}_success"], 3), "")
    yield "  normalised", ("", _number(record["normalised"], 2), "")
    for score in ("return", *(key for key in record if key.startswith(("pass@", "best@", "gain@")))):
        yield score, _format_estimate(record[score])
    for name, played, _ in baselines.list_scores(record.get("baselines", {})):
        yield name, _format_estimate(played)
    for name, value, n in list_scores(record["thoughts"]) if "thoughts" in record else ():
        yield name, (str(n), _number(value, 3), "") if isinstance(value, float) else _format_estimate(value)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _format_estimate(scored: Estimate | None) -> tuple[str, str, str]:
    if scored is None:
        return "0", "–", ""
    low, high = scored["low"], scored["high"]
    bounds = "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
    return str(scored["n"]), f"{scored['mean']:.3f}", bounds
