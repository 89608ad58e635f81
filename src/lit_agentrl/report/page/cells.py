"""Cells: runs of one experiment that differ only in their seed, with their scores."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from lit_agentrl.report.page.runs import Run
from lit_agentrl.report.statistics import normalised
from lit_agentrl.report.summary import Game

LOST = ("failed", "collapsed")  # such runs still count, with the last score that is known
_SHOWN = 3  # most settings in the label of a cell


class Name(NamedTuple):
    """A game and the split that was measured."""

    game: str
    split: str


class Scored(NamedTuple):
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
        letter: name of the cell in figures.
        label: settings in which it differs from the other cells.
        runs: all its runs, however they ended.
    """

    letter: str
    label: str
    runs: tuple[Run, ...]

    @cached_property
    def games(self) -> dict[Name, list[Game]]:
        """The scores of its runs by game and split.

        It is the test split of a game, or validation for runs that did not play the test split.
        """
        found: dict[Name, list[Game]] = {}
        for run in self.runs:
            games = [] if run.scores is None else run.scores["games"]
            tested = {game["name"] for game in games if game["split"] == "test" and game["start"] is not None}
            for game in games:
                if (game["split"] == "test") == (game["name"] in tested):
                    found.setdefault(Name(game["name"], game["split"]), []).append(game)
        return found

    def level(self, name: Name, which: str) -> float | None:
        """Return the success of ``chance`` or ``oracle``; None if it is not known."""
        scores = (game[which] for game in self.games.get(name, ()))  # type: ignore[literal-required]
        return next((score["success"]["mean"] for score in scores if score is not None), None)

    def scored(self, name: Name, stage: str) -> list[Scored]:
        """Return the score of each run at a stage.

        A run that failed or collapsed before it was measured has the score of chance, or 0 if that is not known.
        Runs that may still continue are left out: they are counted as unfinished.
        """
        found = []
        for run in self.runs:
            games = [] if run.scores is None else run.scores["games"]
            score = next((g[stage] for g in games if (g["name"], g["split"]) == name), None)  # type: ignore[literal-required]
            if score is not None:
                found.append(Scored(run, score["success"]["mean"], score["success"]["n"]))
            elif run.status in LOST and stage != "start":
                found.append(Scored(run, self.level(name, "chance") or 0.0, 0))
        return found

    def normalised(self, name: Name, stage: str) -> list[float]:
        """Return the runs' success scaled to chance 0 and oracle 1.

        Empty if chance or oracle is not known, or if the oracle is not above chance.
        """
        chance, oracle = self.level(name, "chance"), self.level(name, "oracle")
        if chance is None or oracle is None or oracle <= chance:
            return []
        return [normalised(each.success, chance, oracle) for each in self.scored(name, stage)]

    def counts(self) -> dict[str, int]:
        """Count the runs by status; stopped runs count as unfinished."""
        found: dict[str, int] = {}
        for run in self.runs:
            status = "unfinished" if run.status == "stopped" else run.status
            found[status] = found.get(status, 0) + 1
        return found


def group(runs: Sequence[Run], *, but: Sequence[str] = ()) -> list[Cell]:
    """Group runs into cells, in the order of their first run.

    Runs share a cell if all their settings except the seed agree.  A run whose settings are not known joins the cell
    with the same overrides.

    Args:
        runs: the runs to group.
        but: sections of the settings that may differ too, such as ``env``.
    """
    of_words = {_words(run): _key(run, but) for run in runs if run.settings is not None}
    members: dict[object, list[Run]] = {}
    for run in runs:
        key = _key(run, but) if run.settings is not None else of_words.get(_words(run), _words(run))
        members.setdefault(key, []).append(run)
    cells = list(members.values())
    labels = _labels(cells, but)
    return [
        Cell(
            _letter(number),
            label,
            tuple(sorted(cell, key=lambda run: (run.seed is None, run.seed or 0, run.name))),
        )
        for number, (label, cell) in enumerate(zip(labels, cells, strict=True))
    ]


def _key(run: Run, but: Sequence[str]) -> frozenset[tuple[str, str]]:
    settings = run.settings or {}
    return frozenset(each for each in settings.items() if each[0].split(".")[0] not in but)


def _words(run: Run, but: Sequence[str] = ()) -> frozenset[str]:
    sections = ("seed", *but)
    return frozenset(
        word for word in run.overrides if word.lstrip("+~").split("=")[0].split(".")[0] not in sections
    )


def _labels(cells: Sequence[Sequence[Run]], but: Sequence[str]) -> list[str]:
    """Return a label for each cell: the overrides that differ, otherwise the settings that differ."""
    typed = [_words(cell[0], but) for cell in cells]
    shared = frozenset.intersection(*typed) if typed else frozenset()
    labels = [
        " ".join(w for w in cell[0].overrides if w in words - shared)
        for cell, words in zip(cells, typed, strict=True)
    ]
    if len(set(labels)) < len(labels):
        settings = [cell[0].settings or {} for cell in cells]
        names = sorted(
            {name for each in settings for name in each if any(o.get(name) != each[name] for o in settings)}
        )
        names = [name for name in names if name.split(".")[0] not in but]
        labels = [" ".join(f"{name}={each.get(name, '–')}" for name in names[:_SHOWN]) for each in settings]
    return [label or ("all runs" if len(labels) == 1 else "defaults") for label in labels]


def _letter(number: int) -> str:
    letters = string.ascii_uppercase
    return (
        letters[number]
        if number < len(letters)
        else _letter(number // len(letters) - 1) + letters[number % len(letters)]
    )
