"""The table of an evaluation: one row per game, model, shots and temperature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from lit_agentrl.config.overrides import VARIANT
from lit_agentrl.evaluate import baselines
from lit_agentrl.evaluate.diagnostics import list_scores
from lit_agentrl.report.episodes import COUNTED
from lit_agentrl.report.summary import Estimate, format_usage

_EXTRA = ("pass@", "best@", "gain@", "TGC", "SGC", COUNTED, "rating")


def build_table(
    cfg: DictConfig, records: Sequence[dict[str, Any]], used: Mapping[str, float]
) -> RenderableType:
    """Build the table of scores, which fits 80 columns.

    Where there are baselines, pass@k, diagnostics, scenarios or counts, a second table follows, with one line per
    score.

    Args:
        cfg: the options of ``conf/evaluate.yaml``.
        records: what `scores.make_record` returned, of one model or several.
        used: a server's usage counts.
    """
    games = list(dict.fromkeys(record["env"] for record in records))
    ordered = sorted(records, key=lambda record: games.index(record["env"]))
    models = list(dict.fromkeys(record["model"] for record in records))
    tables = [_build_rows(cfg, ordered, models)]
    if any(list(_list_extra(record)) for record in ordered):
        tables.append(_build_details(ordered, models))
    if used:
        tables[-1].caption = "\n".join(
            filter(None, [str(tables[-1].caption or ""), f"engine: {format_usage(used)}"])
        )
    return Group(*tables)


def _build_rows(cfg: DictConfig, records: Sequence[dict[str, Any]], models: Sequence[str]) -> Table:
    """Build the table of all records; a row has values, and intervals below."""
    group_note = "" if cfg.members == 1 else f", {cfg.members} episodes of each task"
    variant = "".join(f", {option}" for option in cfg.get(VARIANT, ()))
    title = f"{models[0]}, split {cfg.split}" if len(models) == 1 else f"split {cfg.split}"
    table = Table(
        title=escape(f"{title}{group_note}{variant}"),  # options may have square brackets
        caption="n: tasks; cut: replies cut at their limit; tokens: of a reply; "
        "norm.: 0 is chance, 1 is the oracle; brackets: 95 % intervals",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    has_shots = any(record["shots"] for record in records)
    table.add_column("game" if len(models) == 1 else "game\nmodel")
    for column in (*(["shots"] if has_shots else []), "T", "n", "success", "reward"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("chance\noracle", "norm.", "cut\ntokens"):
        table.add_column(column, justify="right", no_wrap=True)
    previous = None
    for record in records:
        if previous is not None and record["env"] != previous["env"]:
            table.add_section()
        names = [record["env"], *([record["model"]] if len(models) > 1 else [])]
        levels, tokens = record["levels"], record["reply_tokens"]
        table.add_row(
            escape("\n".join(names)),
            *([str(record["shots"])] if has_shots else []),
            f"{record['temperature']:g}",
            str(record["success"]["n"]),
            _stack(record["success"]),
            _stack(record["return"]),
            f"{_number(levels['chance_success'], 3)}\n{_number(levels['oracle_success'], 3)}",
            _number(record["normalised"], 2),
            f"{record['cut_share']:.0%}\n{_number(tokens, 1)}",
        )
        previous = record
    return table


def _build_details(records: Sequence[dict[str, Any]], models: Sequence[str]) -> Table:
    """Build the table of all other scores, one line each."""
    table = Table()
    for column in ("game", "T", "n", "score", "value", "95 % interval"):
        table.add_column(column, justify="left" if column in ("game", "score") else "right")
    for record in records:
        shots = f"\n{record['shots']} shots" if record["shots"] else ""
        model = f"\n{record['model']}" if len(models) > 1 else ""
        names = [escape(f"{record['env']}{model}{shots}"), f"{record['temperature']:g}"]
        for score, (n, value, interval) in _list_extra(record):
            table.add_row(*names, n, score, value, interval)
            names = ["", ""]
        table.add_section()
    return table


def _list_extra(record: dict[str, Any]) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each further score: its name, and its formatted n, value and interval."""
    for score in (key for key in record if key.startswith(_EXTRA)):
        yield score, _format_estimate(record[score])
    for name, played, _ in baselines.list_scores(record.get("baselines", {})):
        yield name, _format_estimate(played)
    for name, value, n in list_scores(record["thoughts"]) if "thoughts" in record else ():
        yield name, (str(n), _number(value, 3), "") if isinstance(value, float) else _format_estimate(value)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _stack(scored: Estimate) -> str:
    """Format a mean over its interval."""
    low, high = scored["low"], scored["high"]
    bounds = "" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"
    return f"{scored['mean']:.3f}\n{bounds}".rstrip("\n")


def _format_estimate(scored: Estimate | None) -> tuple[str, str, str]:
    if scored is None:
        return "0", "–", ""
    low, high = scored["low"], scored["high"]
    bounds = "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
    return str(scored["n"]), f"{scored['mean']:.3f}", bounds
