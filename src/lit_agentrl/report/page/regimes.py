"""What evaluations with diagnostics found of thoughts, and which of four regimes a policy is in."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

STAGES = ("start", "best", "last")


class Played(NamedTuple):
    """What thoughts were measured on, and how sampled."""

    game: str
    split: str
    temperature: float
    variant: tuple[str, ...]


class Thinking(NamedTuple):
    """Information of the thoughts of turns drawn at random, nats a thought.

    Attributes:
        mutual: I(X; Z).
        entropy: H(Z | X).
        most: that I(X; Z) can be with so many observations.
    """

    mutual: float
    entropy: float
    most: float


def parse(text: str) -> dict[tuple[Played, str], Thinking]:
    """Of each game and stage what a file of ``evaluations/`` holds; nothing where it has no diagnostics.

    Raises:
        ValueError: it is no such file.
    """
    content = json.loads(text)
    config = content["config"]
    given = str(config.get("run", ""))
    stage = config.get("checkpoint") or (
        given.rpartition("/")[2].removesuffix(".ckpt") if given.endswith(".ckpt") else "last"
    )
    variant = tuple(str(each) for each in config.get("variant") or ())
    found: dict[tuple[Played, str], Thinking] = {}
    for record in content["results"]:
        each = record.get("thoughts", {}).get("any_turn")
        if each is not None and stage in STAGES:
            played = Played(str(record["env"]), str(record["split"]), _finite(record["temperature"]), variant)
            most = math.log(max(1, int(each["observations"])))
            found[played, stage] = Thinking(
                _finite(each["mutual"]), _finite(each["conditional_entropy"]), most
            )
    return found


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def regime(*, conditional_entropy: float, mutual: float, entropy_bound: float, mutual_bound: float) -> str:
    """Which quarter of the plane of RAGEN v2 (arXiv 2604.06268): diverse, template, compressed or low entropy.

    Thoughts that vary and depend on what is seen are ``diverse``; that vary and do not, ``template`` (collapse of the
    template); that are sure and depend on it, ``compressed``; that are sure and do not, ``low entropy`` (collapse).

    Args:
        conditional_entropy: H(Z | X).
        mutual: I(X; Z).
        entropy_bound: from which on entropy is high.
        mutual_bound: the same of mutual information.
    """
    if conditional_entropy >= entropy_bound:
        return "diverse" if mutual >= mutual_bound else "template"
    return "compressed" if mutual >= mutual_bound else "low entropy"
