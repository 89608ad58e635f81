"""Lines of transcript files, one episode each, as JSON; no torch is imported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lit_agentrl.episode import EndReason, Episode, FinishReason, Turn
from lit_agentrl.files import read_complete_lines

# line: {schema, iteration, split, episode: all fields of Episode but seconds, enums by name}; if known, also texts:
# the text by token id, and update: see `UpdateNotes.describe`
SCHEMA = 1


def to_line(episode: Episode, iteration: int, split: str, notes: Mapping[str, Any] | None = None) -> str:
    """Convert an episode to a line of JSON (ASCII, with its line end).

    ``notes`` are further fields of the line.
    """
    record = asdict(episode)
    del record["env_seconds"]  # a clock time: lines must be reproducible
    record["end"] = episode.end.name
    for turn, turn_record in zip(episode.turns, record["turns"], strict=True):
        turn_record["finish"] = turn.finish.name
    line = {"schema": SCHEMA, "iteration": iteration, "split": split, "episode": record, **(notes or {})}
    return json.dumps(line, default=np.ndarray.tolist) + "\n"


def from_line(line: str) -> tuple[int, Episode]:
    """Parse the iteration and the episode that `to_line` wrote.

    Raises:
        ValueError: the line does not have this schema.
    """
    return from_record(json.loads(line))


def from_record(record: Mapping[str, Any]) -> tuple[int, Episode]:
    """Return the iteration and the episode of a parsed line.

    Raises:
        ValueError: the line does not have this schema.
    """
    if record.get("schema") != SCHEMA:
        raise ValueError(f"transcript schema {record.get('schema')} is unknown; valid: {SCHEMA}")
    episode = record["episode"]
    turns = [Turn(**{**turn, "finish": FinishReason[turn["finish"]]}) for turn in episode["turns"]]
    return record["iteration"], Episode(**{**episode, "turns": turns, "end": EndReason[episode["end"]]})


def read(path: str | Path) -> Iterator[tuple[int, Episode]]:
    """Yield the (iteration, episode) pairs of a transcript file, skipping an incomplete last line."""
    return (from_line(line) for line in read_complete_lines(path)[0])
