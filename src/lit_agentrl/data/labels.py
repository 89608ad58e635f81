"""Episodes with a score for each head, or with rewards of the reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.envs.tasks.messages import BadRow, read_number
from lit_agentrl.episode import Episode


@dataclass(eq=False)
class Labelled(Episode):
    """An episode with a score for each head; NaN: unknown."""

    labels: tuple[float, ...] = ()


@dataclass(eq=False)
class Referenced(Episode):
    """An episode with the rewards that samples of the reference earned for its prompt."""

    reference_rewards: tuple[float, ...] = ()

    @property
    def quantile(self) -> float:
        """The share of the reference's rewards that are at most the return."""
        return sum(reward <= self.training_return for reward in self.reference_rewards) / len(
            self.reference_rewards
        )


def add_reference_rewards(episode: Episode, rewards: Sequence[float]) -> Referenced:
    """Return a copy of the episode with rewards of the reference, at least one."""
    return Referenced(**vars(episode) | {"reference_rewards": tuple(rewards)})


def add_labels(episode: Episode, labels: Sequence[float]) -> Labelled:
    """Return a copy of the episode with labels."""
    return Labelled(**vars(episode) | {"labels": tuple(labels)})


def read_labels(scores: Any, names: Sequence[str], column: str) -> list[float]:
    """Read the scores of the given names; NaN for missing ones.

    Args:
        scores: scores by name, of a row or of one of its answers.
        names: names of the heads.
        column: column name for messages.

    Raises:
        BadRow: ``scores`` is no table, has none of the names, or holds something other than a finite number.
    """
    if not isinstance(scores, Mapping):
        raise BadRow(
            "no_scores", f"column {column} must hold a number for each of {', '.join(names)}, by name"
        )
    labels = [math.nan if scores.get(name) is None else read_number(scores, name) for name in names]
    if all(map(math.isnan, labels)):
        present = ", ".join(map(str, scores))[:80] or "none"
        raise BadRow("no_scores", f"column {column} has none of {', '.join(names)} (there are {present})")
    return labels


def has_different_labels(episodes: Iterable[Episode]) -> bool:
    """Return whether the episodes differ in a label, or in return without labels."""
    scores = [
        episode.labels if isinstance(episode, Labelled) else (episode.training_return,)
        for episode in episodes
    ]
    by_head = ({value for value in values if not math.isnan(value)} for values in zip(*scores, strict=True))
    return any(len(values) > 1 for values in by_head)
