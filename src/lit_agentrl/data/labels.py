"""Episodes with a score for each head of a reward model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.envs.tasks.messages import BadRow, read_number
from lit_agentrl.episode import Episode


@dataclass(eq=False)
class Labelled(Episode):
    """An episode, and what it is worth to each head; NaN: nobody has said."""

    labels: tuple[float, ...] = ()


def labelled(episode: Episode, labels: Sequence[float]) -> Labelled:
    """The same episode with labels."""
    return Labelled(**vars(episode) | {"labels": tuple(labels)})


def labels_of(scores: Any, names: Sequence[str], column: str) -> list[float]:
    """The scores of these names; NaN where there is none.

    Args:
        scores: by name, of a row or of one of its answers.
        names: of the heads.
        column: for messages.

    Raises:
        BadRow: no table, none of these names, or what is no finite number.
    """
    if not isinstance(scores, Mapping):
        raise BadRow(
            "no_scores", f"column {column} must hold a number for each of {', '.join(names)}, by name"
        )
    found = [math.nan if scores.get(name) is None else read_number(scores, name) for name in names]
    if all(map(math.isnan, found)):
        told = ", ".join(map(str, scores))[:80] or "none"
        raise BadRow("no_scores", f"column {column} has none of {', '.join(names)} (there are {told})")
    return found


def differ(episodes: Iterable[Episode]) -> bool:
    """Whether two of them are worth something different to one of the heads, or have different returns without any."""
    worth = [each.labels if isinstance(each, Labelled) else (each.training_return,) for each in episodes]
    of_heads = ({value for value in values if not math.isnan(value)} for values in zip(*worth, strict=True))
    return any(len(values) > 1 for values in of_heads)
