"""``summary.json``: schema, file and closing table of a run's configuration, cost and scores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

from rich.table import Table

from lit_agentrl.files import write_atomic
from lit_agentrl.report import held_out
from lit_agentrl.report.statistics import (
    Interval,
    compute_clustered_mean_interval,
    compute_clustered_share_interval,
    normalise,
)
from lit_agentrl.report.unknown_levels import describe_unknown

VERSION = 1
STAGES = ("start", "best", "last")


class Estimate(TypedDict):
    """A mean with its 95 % interval over ``n`` independent episodes.

    If episodes share a prompt, ``n`` counts prompts.
    """

    mean: float
    low: float | None  # None: unbounded, as with a single episode
    high: float | None
    n: int


# a class body cannot have a field called ``return``
Score = TypedDict(
    "Score",
    {
        "iteration": int | None,  # completed iterations of the weights; None for chance and oracle
        "success": Estimate,  # share of episodes solved
        "return": Estimate | None,  # undiscounted environment reward
    },
)


class _MeasuredLevels(TypedDict, total=False):
    # episodes that measured each level; absent if no level was measured or both are known
    levels_episodes: int


class Game(_MeasuredLevels):
    """The scores on one split of one environment; None if not known (yet)."""

    name: str
    split: str
    chance: Score | None
    oracle: Score | None
    start: Score | None
    best: Score | None
    last: Score | None


class Monitored(TypedDict):
    """The metric that selects the best checkpoint, and its best value in validation."""

    name: str
    mode: Literal["max", "min"]
    value: float
    iteration: int


class Saves(TypedDict):
    """The cost of saving ``last.ckpt`` in the last launch."""

    every: int  # iterations between saves: given, or last chosen
    held_seconds: float  # that training waited for saves
    share: float  # of training time that was spent waiting
    skipped: int  # saves that were due before the previous write was finished


class Summary(held_out.HasHeldOutRows):
    """Everything about a run that fits on a page."""

    version: Literal[1]
    status: Literal["completed", "stopped", "collapsed", "failed"]
    error: str | None  # one line, for status failed
    warnings: list[str]  # lines that were printed at start and during the run
    command: str
    seed: int
    versions: dict[str, str]  # package -> version
    git_revision: str | None
    games: list[Game]
    # stage -> what validation measured on data.held_out, and the iteration
    held_out: dict[str, dict[str, float]]
    monitored: Monitored | None  # None: there is no best checkpoint (yet)
    iterations: int  # completed
    planned_iterations: int
    episodes: int  # of training
    action_tokens: int  # sampled; of a run on data: learnt
    prefilled_tokens: int
    seconds: dict[str, float]  # by phase: rollout, score, update, validate
    engine: dict[str, float]  # usage of a server, evaluations included: requests, tokens, cost
    saves: Saves | None  # None: saves no last.ckpt, or written by a version that did not record it
    peak_memory_bytes: int
    threads: int | None  # of torch; None: written by a version that did not record it


def to_estimate(interval: Interval) -> Estimate:
    """Convert an interval to its stored form; infinite bounds become None."""
    low, high = (bound if math.isfinite(bound) else None for bound in (interval.low, interval.high))
    return {"mean": interval.mean, "low": low, "high": high, "n": interval.n}


def score(
    successes: Sequence[bool],
    returns: Sequence[float] | None = None,
    groups: Sequence[int] | None = None,
    iteration: int | None = None,
) -> Score:
    """Compute success and return from one entry for each episode.

    ``groups`` numbers the prompt of each episode; it is needed if episodes share a prompt.

    Raises:
        ValueError: no episodes, or lengths that differ.
    """
    groups = range(len(successes)) if groups is None else groups
    return {
        "iteration": iteration,
        "success": to_estimate(compute_clustered_share_interval(successes, groups)),
        "return": None if returns is None else to_estimate(compute_clustered_mean_interval(returns, groups)),
    }


def _check(value: Any, kind: Any, where: str) -> None:
    """Check that ``value`` has the type ``kind``; the error names the field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        _check_fields(value, get_type_hints(kind), where, kind.__optional_keys__)
    elif origin is Literal:
        if value not in arguments or isinstance(value, bool):
            raise ValueError(f"summary {where}={value!r} is unknown; valid: {', '.join(map(str, arguments))}")
    elif NoneType in arguments:
        if value is not None:
            _check(value, next(a for a in arguments if a is not NoneType), where)
    elif origin in (list, dict):
        _check_type(value, origin, where)
        for key, item in value.items() if origin is dict else enumerate(value):
            _check(item, arguments[-1], f"{where}.{key}")
    else:
        _check_type(value, kind, where)


def _check_type(value: Any, kind: type, where: str) -> None:
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"summary {where}={value!r} is not {kind.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"summary {where}={value!r} is not finite")


def _check_fields(value: Any, fields: Mapping[str, Any], where: str, optional: Any = ()) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"summary {where or 'file'}={value!r} is not a mapping")
    for name in (*(name for name in fields if name not in optional), *value):
        path = f"{where}.{name}" if where else str(name)
        if name not in value:
            raise ValueError(f"summary lacks {path}")
        if name not in fields:
            raise ValueError(f"summary has {path}, which the schema does not know")
        _check(value[name], fields[name], path)
    if fields.keys() == Estimate.__annotations__.keys():
        low, high, mean = value["low"], value["high"], value["mean"]
        if value["n"] < 1 or (low is not None and low > mean) or (high is not None and high < mean):
            raise ValueError(f"summary {where} is not an estimate: not low <= mean <= high, or not n >= 1")


def validate(summary: Mapping[str, Any]) -> None:
    """Check a summary against the schema.

    Raises:
        ValueError: a field is missing, unknown, of the wrong type or out of range; the message names the field.
    """
    _check(summary, Summary, "")


def write(path: str | Path, summary: Summary) -> None:
    """Validate the summary and write the file atomically.

    Raises:
        ValueError: the summary does not follow the schema.
        OSError: the file cannot be written.
    """
    validate(summary)
    write_atomic(path, json.dumps(summary, indent=2) + "\n")


def read(path: str | Path) -> Summary:
    """Read and validate the file.

    Raises:
        ValueError: the file is not JSON or does not follow the schema.
        OSError: the file cannot be read.
    """
    try:
        summary = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}; move the file away to continue without it") from error
    if isinstance(summary, dict):
        summary.setdefault("warnings", [])  # older runs lack these fields
        summary.setdefault("monitored", None)
        summary.setdefault("held_out", {})
        summary.setdefault("engine", {})
        summary.setdefault("threads", None)
        summary.setdefault("saves", None)
    try:
        validate(summary)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; move the file away to continue without it") from error
    return summary  # type: ignore[no-any-return]


def flatten_scores(summary: Summary) -> dict[str, float]:
    """Flatten the known scores to keys ``<split>/<game>/<policy>/<score>``.

    The policy is ``chance``, ``start``, ``best``, ``last`` or ``oracle``; the score is ``success`` or ``return``.
    Keys of bounds end in ``_low`` and ``_high``.
    """
    flat: dict[str, float] = {}
    for game in summary["games"]:
        for stage in ("chance", *STAGES, "oracle"):
            score: Score | None = game[stage]  # type: ignore[literal-required]
            for name in ("success", "return"):
                estimate: Estimate | None = score[name] if score else None
                parts = (
                    {"": estimate["mean"], "_low": estimate["low"], "_high": estimate["high"]}
                    if estimate
                    else {}
                )
                path = f"{game['split']}/{game['name']}/{stage}/{name}"
                flat |= {path + end: value for end, value in parts.items() if value is not None}
    return flat


def add_references(row: Mapping[str, Any], references: Mapping[str, float]) -> dict[str, Any]:
    """Return a metrics row with chance and oracle success added if it has validation success.

    Args:
        row: metrics of an iteration.
        references: success by ``chance`` and ``oracle``; each is added as ``val/<name>``.
    """
    if "val/success" not in row:
        return dict(row)
    return {**row, **{f"val/{name}": value for name, value in references.items()}}


def format_usage(used: Mapping[str, float]) -> str:
    """Format the usage of an engine as text."""
    return ", ".join(
        f"{name.replace('_', ' ')} {f'{value:.0f}' if value == int(value) else f'{value:.4g}'}"
        for name, value in used.items()
    )


def format_estimate(score: Estimate | None) -> str:
    """Format a mean and its bounds; a dash if it is not known."""
    if score is None:
        return "–"
    if score["low"] is None or score["high"] is None:
        return f"{score['mean']:.3f}"
    return f"{score['mean']:.3f} [{score['low']:.3f}, {score['high']:.3f}]"


def _format_normalised(success: Estimate | None, chance: Estimate | None, oracle: Estimate | None) -> str:
    if success is None or chance is None or oracle is None or oracle["mean"] <= chance["mean"]:
        return "–"
    return f"{normalise(success['mean'], chance['mean'], oracle['mean']):.2f}"


LEGEND = "success with 95 % interval; normalised: 0 is chance, 1 is the oracle"


def describe_selection(summary: Summary) -> str:
    """Describe the score by which the best weights were chosen; may be empty."""
    best, note = summary["monitored"], ""
    if best is None:
        return note
    played = [game["best"]["success"] for game in summary["games"] if game["split"] == "val" and game["best"]]
    if best["name"] == "val/success" and len(played) == 1:
        note = f" over {played[0]['n']} episodes"
    if played and best["iteration"] != (done := summary["iterations"]):
        note += f"; row best plays again, with the sampling noise of iteration {done}, and may differ"
    extreme = "highest" if best["mode"] == "max" else "lowest"
    start = held_out.find_start_score(summary, best["name"])
    if start is not None and (start > best["value"] if best["mode"] == "max" else start < best["value"]):
        note += f"; the start was better, {start:.4g}"
    return f"best: chosen by the {extreme} {best['name']}, {best['value']:.4g}{note}"


def build_closing_tables(summary: Summary) -> list[Table | str]:
    """Build the closing tables of a run: of its games, and of its held-out data.

    A run that has neither gets a line in their place.
    """
    tables = [build_closing_table(summary)] if summary["games"] else []
    tables += [build_held_out_table(summary)] if summary["held_out"] else []
    return [*tables] or [f"{_format_status(summary)}; nothing was held out to validate on"]


def _format_status(summary: Summary) -> str:
    return f"{summary['status']}: {summary['iterations']} of {summary['planned_iterations']} iterations"


def build_held_out_table(summary: Summary) -> Table:
    """Build the table of held-out data by stage: start, best, last."""
    notes = [held_out.describe_columns(summary["held_out"]), describe_selection(summary)]
    caption = "; ".join(["held-out data (data.held_out), one run, one seed", *filter(None, notes)])
    table = Table(title=_format_status(summary), caption=caption, min_width=60)
    (first, *columns), *rows = held_out.list_rows(summary["held_out"], STAGES)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def build_closing_table(summary: Summary) -> Table:
    """Build the table of success by game and split: chance, start, best, last, oracle.

    It fits 80 columns.  Scores that a stopped run never measured are dashes.
    """
    notes = [LEGEND, "one run, one seed", describe_unknown(summary["games"]), describe_selection(summary)]
    table = make_score_table(_format_status(summary), "; ".join(filter(None, notes)), "iter.")
    for game in summary["games"]:
        scores: dict[str, Score | None] = {
            stage: game[stage]  # type: ignore[literal-required]
            for stage in ("chance", *STAGES, "oracle")
        }
        levels = [score["success"] if score else None for score in (game["chance"], game["oracle"])]
        rows = [
            (
                stage,
                "–" if score is None or score["iteration"] is None else str(score["iteration"]),
                score["success"] if score else None,
            )
            for stage, score in scores.items()
        ]
        add_game(table, (game["name"], game["split"]), rows, *levels)
    return table


def make_score_table(title: str, caption: str, place: str) -> Table:
    """Return a table of success without rows.

    Args:
        title: shown above the table.
        caption: shown below the table.
        place: heading of the column that tells the rows of a policy apart.
    """
    table = Table(title=title, caption=caption)
    table.add_column("game")
    table.add_column("policy")
    for column in (place, "n", "success", "normalised"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def add_game(
    table: Table,
    names: Sequence[str],
    rows: Sequence[tuple[str, str, Estimate | None]],
    chance: Estimate | None,
    oracle: Estimate | None,
) -> None:
    """Add the rows of a game to a table of success.

    Args:
        table: made by `make_score_table`.
        names: the game and its split, which share a column, on two lines.
        rows: name, place and success of each policy; a success of None was not measured.
        chance: success of random play.
        oracle: success of best play.
    """
    for number, (policy, place, success) in enumerate(rows):
        table.add_row(
            names[number] if number < len(names) else "",
            policy,
            place,
            str(success["n"]) if success and success["n"] else "–",
            format_estimate(success),
            _format_normalised(success, chance, oracle),
            end_section=number == len(rows) - 1,
        )
