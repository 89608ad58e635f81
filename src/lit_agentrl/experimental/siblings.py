"""What a group says of its turns: replies to one past beside each other, step pairs, and values.

A state is all that the policy had read and written before a reply; replies of any two episodes to one state are
siblings.  So this holds of trees, of branches, and of independent episodes, which share their opening.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.episode import Episode
from lit_agentrl.rollout.pack import trajectory_id

Score = Callable[[Episode], float]


def training_return(episode: Episode) -> float:
    """Points as training sees them."""
    return episode.training_return


@dataclass(frozen=True)
class Sibling:
    """A reply to a state.

    Attributes:
        group, member, turn: where it stands first: reply ``turn`` of that member.
        trajectory: as ``trajectory_B``, of the row where it stands; ``turn`` is its ``turn_BT``.
        visits: N, episodes that hold it there.
        value: Q, the mean score of these episodes.
    """

    group: int
    member: int
    turn: int
    trajectory: int
    visits: int
    value: float


@dataclass(frozen=True)
class StepPair:
    """The best and the worst reply to one state: what stands before ``turn`` is equal, token by token."""

    best: Sibling
    worst: Sibling

    @property
    def gap(self) -> float:
        """By how much the value of the best is larger."""
        return self.best.value - self.worst.value

    @property
    def smoothing(self) -> float:
        """``N_worst / (N_best + N_worst)``, at most one half: the label smoothing of MCTS-DPO."""
        return min(self.worst.visits / (self.best.visits + self.worst.visits), 0.5)


def siblings(episodes: Sequence[Episode], score: Score = training_return) -> list[list[Sibling]]:
    """The replies to each state, in the order in which episodes hold them; equal replies are one.

    Args:
        episodes: of one iteration; those that failed tell nothing.
        score: of an episode.
    """
    states: dict[bytes, dict[bytes, Sibling]] = {}
    scores: dict[bytes, list[float]] = {}
    for episode, turn, state, reply in _replies(episodes):
        scores.setdefault(reply, []).append(score(episode))
        found = states.setdefault(state, {})
        if reply not in found:
            found[reply] = Sibling(episode.group, episode.member, turn, trajectory_id(episode), 0, 0.0)
    return [
        [
            Sibling(s.group, s.member, s.turn, s.trajectory, len(scores[reply]), fmean(scores[reply]))
            for reply, s in found.items()
        ]
        for found in states.values()
    ]


def step_pairs(
    episodes: Sequence[Episode],
    score: Score = training_return,
    *,
    min_visits: int = 1,
    min_gap: float = 0.0,
) -> list[StepPair]:
    """Of each state the best against the worst reply: the step pairs of MCTS-DPO, arXiv 2405.00451.

    Args:
        episodes: see `siblings`.
        score: see `siblings`.
        min_visits: of either reply; others are not looked at.
        min_gap: the values differ by more.

    Returns:
        at most one pair of a state.  Of equal values the reply that stands first is taken.
    """
    found = []
    for replies in siblings(episodes, score):
        seen = [each for each in replies if each.visits >= min_visits]
        if len(seen) < 2:
            continue
        pair = StepPair(max(seen, key=lambda each: each.value), min(seen, key=lambda each: each.value))
        if pair.gap > min_gap:
            found.append(pair)
    return found


def turn_values(
    episodes: Sequence[Episode], score: Score = training_return
) -> list[list[tuple[float, float]]]:
    """V of the state before each reply, and Q of the reply: what a value of steps learns (SVPO, arXiv 2406.10858).

    V is the mean score of all episodes that hold the state, Q of those that hold state and reply.

    Args:
        episodes: see `siblings`.
        score: see `siblings`.

    Returns:
        of each episode a pair for each reply; none of one that failed.
    """
    scores: dict[bytes, list[float]] = {}
    held: dict[int, list[tuple[bytes, bytes]]] = {}
    for episode, _, state, reply in _replies(episodes):
        for key in (state, reply):
            scores.setdefault(key, []).append(score(episode))
        held.setdefault(trajectory_id(episode), []).append((state, reply))
    means = {key: fmean(values) for key, values in scores.items()}
    return [[(means[s], means[r]) for s, r in held.get(trajectory_id(e), [])] for e in episodes]


def _replies(episodes: Sequence[Episode]) -> Iterator[tuple[Episode, int, bytes, bytes]]:
    """Each reply with its number, the key of its state, and that of state and reply."""
    for episode in episodes:
        if episode.failed:
            continue
        key = hashlib.sha256(str(episode.group).encode()).digest()
        for number, turn in enumerate(episode.turns):
            if len(turn.reply_tokens):
                state = _key(key, turn.prefix_tokens)
                key = _key(state, turn.reply_tokens)
                yield episode, number, state, key


def _key(before: bytes, tokens: NDArray[np.int64]) -> bytes:
    """Of what has a key, with tokens behind it."""
    return hashlib.sha256(before + tokens.tobytes()).digest()
