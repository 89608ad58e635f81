"""The tables of an evaluation: success as a training prints it, and all other scores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from lit_agentrl.config.overrides import VARIANT
from lit_agentrl.evaluate import baselines
from lit_agentrl.evaluate.diagnostics import list_scores
from lit_agentrl.report.episodes import GAME_COUNT_PREFIX
from lit_agentrl.report.statistics import compute_wilson_interval
from lit_agentrl.report.summary import (
    LEGEND,
    Estimate,
    add_game,
    format_estimate,
    format_usage,
    make_score_table,
    to_estimate,
)

_EXTRA = ("pass@", "best@", "gain@", "TGC", "SGC", GAME_COUNT_PREFIX, "rating")


def build_table(
    cfg: DictConfig, records: Sequence[dict[str, Any]], used: Mapping[str, float]
) -> RenderableType:
    """Build the tables of success, of other players, and of all other scores.

    All fit 80 columns.  The last has one line per score.

    Args:
        cfg: the options of ``conf/evaluate.yaml``.
        records: what `scores.make_record` returned, of one model or several.
        used: a server's usage counts.
    """
    games = list(dict.fromkeys(record["env"] for record in records))
    ordered = sorted(records, key=lambda record: games.index(record["env"]))
    models = list(dict.fromkeys(record["model"] for record in records))
    others = [_build_baselines(ordered, models)] if any("baselines" in record for record in ordered) else []
    tables = [_build_rows(cfg, ordered, models), *others, _build_details(ordered, models)]
    if used:
        tables[-1].caption = "\n".join(
            filter(None, [str(tables[-1].caption or ""), f"engine: {format_usage(used)}"])
        )
    return Group(*tables)


def _build_rows(cfg: DictConfig, records: Sequence[dict[str, Any]], models: Sequence[str]) -> Table:
    """Build the table of success as a training does, with temperatures for iterations."""
    group_note = "" if cfg.members == 1 else f", {cfg.members} episodes of each task"
    variant = "".join(f", {option}" for option in cfg.get(VARIANT, ()))
    title = f"{models[0]}, split {cfg.split}" if len(models) == 1 else f"split {cfg.split}"
    table = make_score_table(
        escape(f"{title}{group_note}{variant}"),  # options may have square brackets
        f"{LEGEND}; T: temperature; n: tasks",
        "T",
    )
    for game, listed in itertools.groupby(records, key=lambda record: record["env"]):
        of_game = list(listed)
        chance, oracle = (
            _estimate_level(of_game[0]["levels"], level) for level in ("chance_success", "oracle_success")
        )
        rows = [
            (escape(_name_policy(record)), f"{record['temperature']:g}", record["success"])
            for record in of_game
        ]
        rows = [("chance", "–", chance), *rows, ("oracle", "–", oracle)]
        add_game(table, (escape(game), cfg.split), rows, chance, oracle)
    return table


def _name_policy(record: Mapping[str, Any]) -> str:
    shots = record["shots"]
    name = record["model"] or "policy"
    return f"{name}, {_count_shots(shots)}" if shots else name


def _count_shots(shots: int) -> str:
    return f"{shots} shot{'s' * (shots != 1)}"


def _estimate_level(levels: Mapping[str, Any], name: str) -> Estimate | None:
    """Return the success of random or best play with its interval, if it is known."""
    share, n = levels[name], levels.get("episodes") or 0
    if share is None:
        return None
    if not n:  # of an earlier version, which did not record it
        return {"mean": share, "low": None, "high": None, "n": 0}
    return to_estimate(compute_wilson_interval(round(share * n), n))


def _build_baselines(records: Sequence[dict[str, Any]], models: Sequence[str]) -> Table:
    """Build the table of other players of the same tasks, with the policy's lead."""
    table = Table(
        title="who else played the same tasks",
        caption="success: share of tasks solved; lead: success of the first line less that of this one, paired by "
        "task; both with 95 % interval; T: temperature; n: tasks; chance and oracle above are of their own tasks",
    )
    table.add_column("player")
    for column in ("n", "success", "lead of the policy"):
        table.add_column(column, justify="right", no_wrap=True)
    for record in records:
        shots = record["shots"]
        game = record["env"] if len(models) == 1 else f"{record['env']}, {record['model']}"
        place = f"{game}, T {record['temperature']:g}" + (f", {_count_shots(shots)}" if shots else "")
        success = record["success"]
        table.add_row(escape(place), str(success["n"]), format_estimate(success), "", style="bold")
        for name, scores in record.get("baselines", {}).items():
            lead = scores["difference"]
            interval = _format_estimate(lead)
            table.add_row(
                f"  {baselines.SHOWN.get(name, name)}",
                str(lead["n"]),
                format_estimate(scores["success"]),
                " ".join(filter(None, interval[1:])),
            )
        table.add_section()
    return table


def _build_details(records: Sequence[dict[str, Any]], models: Sequence[str]) -> Table:
    """Build the table of all other scores, one line each."""
    table = Table()
    for column in ("game", "T", "n", "score", "value", "95 % interval"):
        table.add_column(column, justify="left" if column in ("game", "score") else "right")
    for record in records:
        shots = f"\n{_count_shots(record['shots'])}" if record["shots"] else ""
        model = f"\n{record['model']}" if len(models) > 1 else ""
        names = [escape(f"{record['env']}{model}{shots}"), f"{record['temperature']:g}"]
        for score, (n, value, interval) in _list_extra(record):
            table.add_row(*names, n, score, value, interval)
            names = ["", ""]
        table.add_section()
    return table


def _list_extra(record: dict[str, Any]) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each further score: its name, and its formatted n, value and interval."""
    yield "reward of a task", _format_estimate(record["return"])
    yield "replies that were cut", ("", f"{record['cut_share']:.0%}", "")
    yield "tokens of a reply", ("", _number(record["reply_tokens"], 1), "")
    for score in (key for key in record if key.startswith(_EXTRA)):
        yield score, _format_estimate(record[score])
    for name, value, n in list_scores(record["thoughts"]) if "thoughts" in record else ():
        yield name, (str(n), _number(value, 3), "") if isinstance(value, float) else _format_estimate(value)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _format_estimate(scored: Estimate | None) -> tuple[str, str, str]:
    if scored is None:
        return "0", "–", ""
    low, high = scored["low"], scored["high"]
    # Equal values have no spread to estimate an interval from.
    bounds = "" if low is None or high is None or low == high else f"[{low:.3f}, {high:.3f}]"
    return str(scored["n"]), f"{scored['mean']:.3f}", bounds
