"""``outcomes.json``: the tasks that a run solved at each stage, for paired comparisons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lit_agentrl.episode import Outcome
from lit_agentrl.files import write_atomic

FILE = "outcomes.json"
VERSION = 1
# in the order of tasks, which all runs of a game share; None: the episode failed
Solved = Sequence[bool | None]
Key = tuple[str, str, str]  # game, split, stage


def list_solved(played: Sequence[Outcome]) -> list[bool | None]:
    """Return whether each episode of one game was solved, in task order; None: it failed."""
    ordered = sorted(played, key=lambda outcome: (outcome.group, outcome.member))
    return [None if outcome.failed else outcome.success for outcome in ordered]


def write(path: Path, solved: Mapping[Key, Solved]) -> None:
    """Write the file atomically.

    Raises:
        OSError: the file cannot be written.
    """
    lines = [
        {"game": game, "split": split, "stage": stage, "solved": list(values)}
        for (game, split, stage), values in solved.items()
    ]
    write_atomic(path, json.dumps({"version": VERSION, "scores": lines}) + "\n")


def parse(text: str) -> dict[Key, Solved]:
    """Parse the text of an ``outcomes.json``.

    Raises:
        ValueError: the text is no list of outcomes of this version.
    """
    content = json.loads(text)
    if (
        not isinstance(content, dict)
        or content.get("version") != VERSION
        or not isinstance(content.get("scores"), list)
    ):
        raise ValueError(f"it is not a list of outcomes of version {VERSION}")
    solved: dict[Key, Solved] = {}
    for line in content["scores"]:
        values = line["solved"]
        if not isinstance(values, list) or not all(
            value is None or isinstance(value, bool) for value in values
        ):
            raise ValueError("solved must be a list of true, false and null")
        solved[str(line["game"]), str(line["split"]), str(line["stage"])] = values
    return solved
