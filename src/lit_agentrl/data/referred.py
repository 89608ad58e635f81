"""Answers to a prompt, each read behind the best one, which is what they are held against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.ranked import Ranked
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import BadRow
from lit_agentrl.episode import Episode, Segment


@dataclass(frozen=True, kw_only=True)
class Referred(Ranked):
    """As of `Ranked`, with three answers or more, of which the best one is the reference of all others."""

    is_referred: ClassVar[bool] = True
    several: ClassVar[bool] = False

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from (group for found in super().of_episodes(episodes) if (group := behind_best(found)))

    def judged(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        if group := behind_best(episodes):
            yield group

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        if group := behind_best(super().of_row(row, read)):
            return group
        raise BadRow("no_rest", "behind the best completion no two are left that differ in score")


def best(episodes: Sequence[Episode]) -> Episode:
    """The one of highest return; of several, that of the fewest sampled tokens, then the first."""
    return max(episodes, key=lambda episode: (episode.training_return, -episode.num_action_tokens))


def behind_best(episodes: Sequence[Episode]) -> list[Episode]:
    """All but the best one, each behind it; empty where these do not differ in return."""
    reference = best(episodes)
    rest = [episode for episode in episodes if episode is not reference]
    if len({episode.training_return for episode in rest}) < 2:
        return []
    return [behind(reference, episode) for episode in rest]


def behind(reference: Episode, episode: Episode) -> Episode:
    """The episode, of which each row begins with all that was read and sampled in the last row of the reference.

    Nothing of the reference is sampled here: no score is read from it, and no token of it is an action.
    """
    first = max(k for k, turn in enumerate(reference.turns) if turn.starts_row or not k)
    tokens, segments = [], []
    for turn in reference.turns[first:]:
        tokens += [turn.prefix_tokens, turn.reply_tokens]
        segments += [turn.prefix_segments, np.full(len(turn.reply_tokens), Segment.PAST, np.int8)]
    turns = [
        replace(
            turn,
            prefix_tokens=np.concatenate([*tokens, turn.prefix_tokens]),
            prefix_segments=np.concatenate([*segments, turn.prefix_segments]),
        )
        if turn.starts_row or not k
        else turn
        for k, turn in enumerate(episode.turns)
    ]
    return replace(episode, turns=turns)


def longest_row(episode: Episode) -> int:
    """Tokens of the longest row of an episode."""
    longest = size = 0
    for turn in episode.turns:
        own = len(turn.prefix_tokens) + len(turn.reply_tokens)
        size = own if turn.starts_row else size + own
        longest = max(longest, size)
    return longest
