"""Information of thoughts in evaluations with diagnostics, and the policy's regime."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

STAGES = ("start", "best", "last")


class Setting(NamedTuple):
    """The game, split, temperature and variant on which thoughts were measured."""

    game: str
    split: str
    temperature: float
    variant: tuple[str, ...]


class ThoughtInformation(NamedTuple):
    """Information of the thoughts of randomly drawn turns, in nats per thought.

    Attributes:
        mutual: I(X; Z).
        entropy: H(Z | X).
        max_mutual: upper bound of I(X; Z), the log of the number of observations.
    """

    mutual: float
    entropy: float
    max_mutual: float


def parse(text: str) -> dict[tuple[Setting, str], ThoughtInformation]:
    """Parse the diagnostics of a file of ``evaluations/``, by game and stage.

    The result is empty if the file has no diagnostics.

    Raises:
        ValueError: the text is not that of an evaluation.
    """
    content = json.loads(text)
    config = content["config"]
    run = str(config.get("run", ""))
    stage = config.get("checkpoint") or (
        run.rpartition("/")[2].removesuffix(".ckpt") if run.endswith(".ckpt") else "last"
    )
    variant = tuple(str(option) for option in config.get("variant") or ())
    information: dict[tuple[Setting, str], ThoughtInformation] = {}
    for record in content["results"]:
        thoughts = record.get("thoughts", {}).get("any_turn")
        if thoughts is not None and stage in STAGES:
            setting = Setting(
                str(record["env"]), str(record["split"]), _require_finite(record["temperature"]), variant
            )
            max_mutual = math.log(max(1, int(thoughts["observations"])))
            information[setting, stage] = ThoughtInformation(
                _require_finite(thoughts["mutual"]),
                _require_finite(thoughts["conditional_entropy"]),
                max_mutual,
            )
    return information


def _require_finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)


def classify_regime(
    *, conditional_entropy: float, mutual: float, entropy_bound: float, mutual_bound: float
) -> str:
    """Return the regime of thoughts of RAGEN v2 (arXiv 2604.06268).

    Thoughts of high entropy are ``diverse`` if they depend on the observation, ``template`` (template collapse) if
    they do not.  Thoughts of low entropy are ``compressed`` if they depend on the observation, ``low entropy``
    (collapse) if they do not.

    Args:
        conditional_entropy: H(Z | X).
        mutual: I(X; Z).
        entropy_bound: lowest entropy that counts as high.
        mutual_bound: lowest mutual information that counts as high.
    """
    if conditional_entropy >= entropy_bound:
        return "diverse" if mutual >= mutual_bound else "template"
    return "compressed" if mutual >= mutual_bound else "low entropy"
