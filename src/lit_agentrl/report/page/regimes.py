"""Information of thoughts in evaluations with diagnostics, and the policy's regime."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

STAGES = ("start", "best", "last")


class Played(NamedTuple):
    """The game, split, temperature and variant on which thoughts were measured."""

    game: str
    split: str
    temperature: float
    variant: tuple[str, ...]


class Thinking(NamedTuple):
    """Information of the thoughts of randomly drawn turns, in nats per thought.

    Attributes:
        mutual: I(X; Z).
        entropy: H(Z | X).
        most: upper bound of I(X; Z), the log of the number of observations.
    """

    mutual: float
    entropy: float
    most: float


def parse(text: str) -> dict[tuple[Played, str], Thinking]:
    """Parse the diagnostics of a file of ``evaluations/``, by game and stage.

    Empty if the file has no diagnostics.

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
    """Return the regime of thoughts of RAGEN v2 (arXiv 2604.06268).

    Thoughts of high entropy are ``diverse`` if they depend on the observation, ``template`` (template collapse) if
    they do not.  Thoughts of low entropy are ``compressed`` if they depend on the observation, ``low entropy``
    (collapse) if they do not.

    Args:
        conditional_entropy: H(Z | X).
        mutual: I(X; Z).
        entropy_bound: least entropy that counts as high.
        mutual_bound: least mutual information that counts as high.
    """
    if conditional_entropy >= entropy_bound:
        return "diverse" if mutual >= mutual_bound else "template"
    return "compressed" if mutual >= mutual_bound else "low entropy"
