"""Runs that are one experiment played several times, and what each of them counts with."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from lit_agentrl.report.page.runs import Run
from lit_agentrl.report.statistics import normalised
from lit_agentrl.report.summary import Game

LOST = ("failed", "collapsed")  # they count, with what they have come to
_SHOWN = 3  # settings in the name of a cell


class Name(NamedTuple):
    """A game as it was measured."""

    game: str
    split: str


class Scored(NamedTuple):
    """What a run counts with.

    Attributes:
        run: that it is of.
        success: share solved.
        episodes: that it rests on; 0 where the run was lost before it was measured.
    """

    run: Run
    success: float
    episodes: int


@dataclass(frozen=True)
class Cell:
    """Runs that differ in their seed alone.

    Attributes:
        letter: how figures call it.
        label: what tells it from the other cells.
        runs: all of them, whatever became of them.
    """

    letter: str
    label: str
    runs: tuple[Run, ...]

    @cached_property
    def games(self) -> dict[Name, list[Game]]:
        """What its runs were measured on: the test split of a game, or validation where that was not played."""
        found: dict[Name, list[Game]] = {}
        for run in self.runs:
            games = [] if run.scores is None else run.scores["games"]
            tested = {game["name"] for game in games if game["split"] == "test" and game["start"] is not None}
            for game in games:
                if (game["split"] == "test") == (game["name"] in tested):
                    found.setdefault(Name(game["name"], game["split"]), []).append(game)
        return found

    def level(self, name: Name, which: str) -> float | None:
        """Success of ``chance`` or ``oracle``; None where it is not known."""
        scores = (game[which] for game in self.games.get(name, ()))  # type: ignore[literal-required]
        return next((score["success"]["mean"] for score in scores if score is not None), None)

    def scored(self, name: Name, stage: str) -> list[Scored]:
        """What each run counts with at a stage.

        A run that failed or collapsed before it was measured counts with chance, or with 0 where that is not known.
        Runs that may yet go on are left out: they are counted as unfinished.
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
        """The same where chance is 0 and the oracle is 1; empty where these are not known."""
        chance, oracle = self.level(name, "chance"), self.level(name, "oracle")
        if chance is None or oracle is None or oracle <= chance:
            return []
        return [normalised(each.success, chance, oracle) for each in self.scored(name, stage)]

    def counts(self) -> dict[str, int]:
        """How many runs ended in which way."""
        found: dict[str, int] = {}
        for run in self.runs:
            status = "unfinished" if run.status == "stopped" else run.status
            found[status] = found.get(status, 0) + 1
        return found


def group(runs: Sequence[Run], *, but: Sequence[str] = ()) -> list[Cell]:
    """The cells of these runs, in the order of their first run.

    Runs share a cell if all of their settings agree but the seed.  A run of which only the overrides are known joins
    the cell of the same overrides.

    Args:
        runs: to be grouped.
        but: sections of the settings that may differ too, as ``env``.
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
    """What differs: in what was typed, else in the settings."""
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
