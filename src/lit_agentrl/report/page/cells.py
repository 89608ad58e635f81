"""Cells: runs of one experiment that differ only in their seed, with their scores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.report.page.runs import Run
from lit_agentrl.report.statistics import normalise
from lit_agentrl.report.summary import Game

LOST_STATUSES = ("failed", "collapsed")  # such runs still count, with the last score that is known
_SHOWN = 3  # largest number of settings in the label of a cell
_MAX_NAME = 40  # characters of the name of a cell
_WORD = re.compile(r"[A-Za-z]\w+")  # a value that names an option by itself
ALL_RUNS = "all runs"  # label of the only cell, if no setting was chosen
_DEFAULTS = "defaults"  # label of a cell without settings of its own
_YAML_WORDS = ("true", "false", "null")
_TARGET = "_target_"


class GameSplit(NamedTuple):
    """A game and the split that was measured."""

    game: str
    split: str


class RunScore(NamedTuple):
    """The score that a run contributes to its cell.

    Attributes:
        run: the run.
        success: share of episodes solved.
        episodes: number of episodes measured; 0 if the run failed or collapsed before it was measured.
    """

    run: Run
    success: float
    episodes: int


@dataclass(frozen=True)
class Cell:
    """Runs that differ only in their seed.

    Attributes:
        name: short form of the label, for figures and tables.
        label: settings in which it differs from the other cells.
        runs: all its runs, however they ended.
    """

    name: str
    label: str
    runs: tuple[Run, ...]

    @cached_property
    def games(self) -> dict[GameSplit, list[Game]]:
        """The scores of its runs by game and split.

        Each run contributes the test split of a game, or the validation split if it did not play the test split.
        """
        games_by_name: dict[GameSplit, list[Game]] = {}
        for run in self.runs:
            games = [] if run.scores is None else run.scores["games"]
            tested = {game["name"] for game in games if game["split"] == "test" and game["start"] is not None}
            for game in games:
                if (game["split"] == "test") == (game["name"] in tested):
                    games_by_name.setdefault(GameSplit(game["name"], game["split"]), []).append(game)
        return games_by_name

    def get_reference(self, name: GameSplit, reference: str) -> float | None:
        """Return the success of ``chance`` or ``oracle``; None if it is not known."""
        scores = (game[reference] for game in self.games.get(name, ()))  # type: ignore[literal-required]
        return next((score["success"]["mean"] for score in scores if score is not None), None)

    def list_scores(self, name: GameSplit, stage: str) -> list[RunScore]:
        """Return the score of each run at a stage.

        A run that failed or collapsed before it was measured has the score of chance, or 0 if that is not known.
        Runs that may still continue are left out: they are counted as unfinished.
        """
        scores = []
        for run in self.runs:
            games = [] if run.scores is None else run.scores["games"]
            score = next((g[stage] for g in games if (g["name"], g["split"]) == name), None)  # type: ignore[literal-required]
            if score is not None:
                scores.append(RunScore(run, score["success"]["mean"], score["success"]["n"]))
            elif run.status in LOST_STATUSES and stage != "start":
                scores.append(RunScore(run, self.get_reference(name, "chance") or 0.0, 0))
        return scores

    def list_normalised(self, name: GameSplit, stage: str) -> list[float]:
        """Return the runs' success scaled to chance 0 and oracle 1.

        Empty if chance or oracle is not known, or if the oracle is not above chance.
        """
        chance, oracle = self.get_reference(name, "chance"), self.get_reference(name, "oracle")
        if chance is None or oracle is None or oracle <= chance:
            return []
        return [normalise(score.success, chance, oracle) for score in self.list_scores(name, stage)]

    def count_statuses(self) -> dict[str, int]:
        """Count the runs by status; stopped runs count as unfinished."""
        number_by_status: dict[str, int] = {}
        for run in self.runs:
            status = "unfinished" if run.status == "stopped" else run.status
            number_by_status[status] = number_by_status.get(status, 0) + 1
        return number_by_status


def group_runs(runs: Sequence[Run], *, ignored: Sequence[str] = ()) -> list[Cell]:
    """Group runs into cells, in the order of their first run.

    Runs share a cell if all their settings except the seed agree.  A run whose settings are not known joins the cell
    with the same overrides.

    Args:
        runs: the runs to group.
        ignored: sections of the settings that may differ too, such as ``env``.
    """
    keys_by_overrides = {
        _list_overrides(run): _list_settings(run, ignored) for run in runs if run.settings is not None
    }
    runs_by_key: dict[object, list[Run]] = {}
    for run in runs:
        overrides = _list_overrides(run)
        key = (
            _list_settings(run, ignored)
            if run.settings is not None
            else keys_by_overrides.get(overrides, overrides)
        )
        runs_by_key.setdefault(key, []).append(run)
    cells = list(runs_by_key.values())
    labels = _label_cells(cells, ignored)
    return [
        Cell(
            name,
            label,
            tuple(sorted(cell, key=lambda run: (run.seed is None, run.seed or 0, run.name))),
        )
        for name, label, cell in zip(_name_cells(labels), labels, cells, strict=True)
    ]


def leave_out_repeats(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Leave out runs with the settings and the seed of another run.

    Such runs, as copies of a folder, are no independent samples.  The first by name is kept; one that
    completed or collapsed comes before one that failed or was stopped.  Runs of unknown seed are kept.

    Returns:
        The runs that are kept, in their order, and a line about each one left out.
    """
    lines, left_out = [], set()
    for cell in group_runs(runs):
        first_of_seed: dict[int, Run] = {}
        for run in sorted(cell.runs, key=lambda run: run.status not in ("completed", "collapsed")):
            if run.seed is None:
                continue
            first_run = first_of_seed.setdefault(run.seed, run)
            if first_run is not run:
                left_out.add(run.folder)
                why = f"it has all settings of {first_run.name}, and equal seeds are not independent"
                message = f"seed {run.seed} is repeated in {cell.name}: {run.name} is left out, since {why}"
                lines.append(escape_unprintable(message))
    return [run for run in runs if run.folder not in left_out], lines


def find_unnamed_differences(cells: Sequence[Cell]) -> dict[str, tuple[str, ...]]:
    """Find the settings that differ between cells although no override names them.

    An algorithm may bring settings of other groups, such as its filter or learning rate.  Options of a part whose
    ``_target_`` differs are left out.

    Returns:
        The values of each setting, in the order of the cells.
    """
    settings = [cell.runs[0].settings for cell in cells]
    known_settings = [values for values in settings if values is not None]
    keys = {_get_key(override) for cell in cells for override in cell.runs[0].overrides}
    values_by_setting: dict[str, tuple[str, ...]] = {}
    for name in sorted(
        {name for values in known_settings for name in values}, key=lambda name: (_get_part(name), name)
    ):
        values = tuple(dict.fromkeys(each.get(name, "–") for each in known_settings))
        parents = [name[: index + 1] for index in range(len(name)) if name[index] == "."]
        if len(values) < 2 or keys & {name, *(parent.rstrip(".") for parent in parents)}:
            continue
        if not any(f"{parent}{_TARGET}" in values_by_setting for parent in parents):
            values_by_setting[name] = values
    return values_by_setting


def _get_key(override: str) -> str:
    """Return the setting that an override names, such as ``algo.clip`` of ``algo/clip=none``."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".")


def _get_part(name: str) -> str:
    """Return the part of a setting, so that its ``_target_`` comes before its options."""
    return name.removesuffix(_TARGET) if name.endswith(_TARGET) else name


def _list_settings(run: Run, ignored: Sequence[str]) -> frozenset[tuple[str, str]]:
    settings = run.settings or {}
    return frozenset(setting for setting in settings.items() if setting[0].split(".")[0] not in ignored)


def _list_overrides(run: Run, ignored: Sequence[str] = ()) -> frozenset[str]:
    sections = ("seed", *ignored)
    return frozenset(
        word for word in run.overrides if word.lstrip("+~").split("=")[0].split(".")[0] not in sections
    )


def _label_cells(cells: Sequence[Sequence[Run]], ignored: Sequence[str]) -> list[str]:
    """Return a label for each cell: the overrides that differ, then the settings that differ."""
    overrides = [_list_overrides(cell[0], ignored) for cell in cells]
    shared = frozenset.intersection(*overrides) if overrides else frozenset()
    labels = [
        " ".join(w for w in cell[0].overrides if w in words - shared)
        for cell, words in zip(cells, overrides, strict=True)
    ]
    for label in {label for label in labels if labels.count(label) > 1}:
        alike = [number for number, other in enumerate(labels) if other == label]
        settings = [cells[number][0].settings or {} for number in alike]
        names = {name for values in settings for name in values if name.split(".")[0] not in ignored}
        differing = [name for name in names if len({values.get(name) for values in settings}) > 1]
        shown = sorted(differing, key=lambda name: (name.endswith("_target_"), name))[:_SHOWN]
        for number, values in zip(alike, settings, strict=True):
            labels[number] = " ".join([label, *(f"{name}={values.get(name, '–')}" for name in shown)]).strip()
    return [label or (ALL_RUNS if len(labels) == 1 else _DEFAULTS) for label in labels]


def _name_cells(labels: Sequence[str]) -> list[str]:
    """Return a short name for each label; names differ wherever labels do.

    >>> _name_cells(["algo=grpo", "algo=rloo"])
    ['grpo', 'rloo']
    >>> _name_cells(["optim.lr=0.1", "optim.lr=0.2"])
    ['lr=0.1', 'lr=0.2']
    """
    pairs = [label.partition("=") for label in labels]
    values = [value for _, _, value in pairs]
    is_one_option = len({key for key, _, _ in pairs}) == 1 and len(set(values)) == len(values) > 1
    if is_one_option and all(_WORD.fullmatch(value) and value not in _YAML_WORDS for value in values):
        return [shorten_name(value) for value in values]
    names = [shorten_name(_shorten_keys(label, labels)) for label in labels]
    return [f"{name} ({number + 1})" if names.count(name) > 1 else name for number, name in enumerate(names)]


def _shorten_keys(label: str, labels: Sequence[str]) -> str:
    """Cut the keys of a label to their last part, unless it is ambiguous."""
    words = [word for each in labels if each != _DEFAULTS for word in each.split()]
    keys = {word.partition("=")[0] for word in words}
    short_by_key = {key: re.split(r"[./]", key)[-1] for key in keys}
    if len(set(short_by_key.values())) < len(keys) or not all("=" in word for word in words):
        return label
    pairs = (word.partition("=") for word in label.split())
    return " ".join(f"{short_by_key.get(key, key)}{sign}{value}" for key, sign, value in pairs)


def shorten_name(label: str) -> str:
    """Cut a label to the length of a name, printable on one line."""
    name = escape_unprintable(" ".join(label.split()))
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
