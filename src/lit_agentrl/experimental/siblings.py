"""Sibling replies, step pairs and values of the turns of a group.

A state is everything that the policy had read and written before a reply.  Replies of any two episodes to the same
state are siblings.  This covers trees, branches, and independent episodes, which share their opening.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.episode import Episode
from lit_agentrl.rollout.pack import get_trajectory_id

Score = Callable[[Episode], float]


def get_training_return(episode: Episode) -> float:
    """Return the training return of an episode, the default score."""
    return episode.training_return


@dataclass(frozen=True)
class Sibling:
    """A reply to a state.

    Attributes:
        group, member, turn: its first occurrence: reply ``turn`` of that episode.
        trajectory: ``trajectory_B`` of the row of this occurrence; ``turn`` is its ``turn_BT``.
        visits: N, the number of episodes that contain it after this state.
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
    """The best and the worst reply to one state.

    Everything before ``turn`` is equal, token by token.
    """

    best: Sibling
    worst: Sibling

    @property
    def gap(self) -> float:
        """The value of the best reply minus that of the worst."""
        return self.best.value - self.worst.value

    @property
    def smoothing(self) -> float:
        """``N_worst / (N_best + N_worst)``, at most one half: the label smoothing of MCTS-DPO."""
        return min(self.worst.visits / (self.best.visits + self.worst.visits), 0.5)


def find_siblings(episodes: Sequence[Episode], score: Score = get_training_return) -> list[list[Sibling]]:
    """Group the replies by state, in order of occurrence, with equal replies merged.

    Args:
        episodes: episodes of one iteration; failed ones are ignored.
        score: function that scores an episode.
    """
    states: dict[bytes, dict[bytes, Sibling]] = {}
    scores: dict[bytes, list[float]] = {}
    for episode, turn, state, reply in _iterate_replies(episodes):
        scores.setdefault(reply, []).append(score(episode))
        replies = states.setdefault(state, {})
        if reply not in replies:
            replies[reply] = Sibling(episode.group, episode.member, turn, get_trajectory_id(episode), 0, 0.0)
    return [
        [
            Sibling(s.group, s.member, s.turn, s.trajectory, len(scores[reply]), fmean(scores[reply]))
            for reply, s in replies.items()
        ]
        for replies in states.values()
    ]


def make_step_pairs(
    episodes: Sequence[Episode],
    score: Score = get_training_return,
    *,
    min_visits: int = 1,
    min_gap: float = 0.0,
) -> list[StepPair]:
    """Pair the best and worst reply to each state: MCTS-DPO, arXiv 2405.00451.

    Args:
        episodes: see `find_siblings`.
        score: see `find_siblings`.
        min_visits: minimum number of visits of a reply; replies with fewer are ignored.
        min_gap: the values of a pair differ by more than this.

    Returns:
        at most one pair per state.  Ties go to the reply that occurs first.
    """
    pairs = []
    for replies in find_siblings(episodes, score):
        candidates = [reply for reply in replies if reply.visits >= min_visits]
        if len(candidates) < 2:
            continue
        pair = StepPair(
            max(candidates, key=lambda reply: reply.value), min(candidates, key=lambda reply: reply.value)
        )
        if pair.gap > min_gap:
            pairs.append(pair)
    return pairs


def compute_turn_values(
    episodes: Sequence[Episode], score: Score = get_training_return
) -> list[list[tuple[float, float]]]:
    """Compute V before each reply and Q of the reply: SVPO, arXiv 2406.10858.

    These are the targets of a step-level value.  V is the mean score of all episodes that contain the state, Q of those
    that contain state and reply.

    Args:
        episodes: see `find_siblings`.
        score: see `find_siblings`.

    Returns:
        for each episode, a pair (V, Q) for each reply; an empty list for failed episodes.
    """
    scores: dict[bytes, list[float]] = {}
    keys: dict[int, list[tuple[bytes, bytes]]] = {}
    for episode, _, state, reply in _iterate_replies(episodes):
        for key in (state, reply):
            scores.setdefault(key, []).append(score(episode))
        keys.setdefault(get_trajectory_id(episode), []).append((state, reply))
    means = {key: fmean(values) for key, values in scores.items()}
    return [[(means[s], means[r]) for s, r in keys.get(get_trajectory_id(e), [])] for e in episodes]


def _iterate_replies(episodes: Sequence[Episode]) -> Iterator[tuple[Episode, int, bytes, bytes]]:
    """Yield episode, turn number, state key, and key of state plus reply, for each reply."""
    for episode in episodes:
        if episode.failed:
            continue
        key = hashlib.sha256(str(episode.group).encode()).digest()
        for number, turn in enumerate(episode.turns):
            if len(turn.reply_tokens):
                state = _extend_key(key, turn.prefix_tokens)
                key = _extend_key(state, turn.reply_tokens)
                yield episode, number, state, key


def _extend_key(before: bytes, tokens: NDArray[np.int64]) -> bytes:
    """Hash the key of a token sequence together with the tokens that follow it."""
    return hashlib.sha256(before + tokens.tobytes()).digest()
