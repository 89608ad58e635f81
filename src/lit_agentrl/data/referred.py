"""Answers to a prompt, each read after the best one as its reference."""

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
    """Rows as in `Ranked` with three or more answers; the best is the reference."""

    is_referred: ClassVar[bool] = True
    several: ClassVar[bool] = False

    def make_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from (group for ranked in super().make_groups(episodes) if (group := put_behind_best(ranked)))

    def make_held_out_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        if group := put_behind_best(episodes):
            yield group

    def read_group(self, row: Mapping[str, Any], reader: Reader) -> Group:
        if group := put_behind_best(super().read_group(row, reader)):
            return group
        raise BadRow("no_rest", "the completions other than the best must have at least two different scores")


def select_best(episodes: Sequence[Episode]) -> Episode:
    """Select the highest return; ties go to the fewest sampled tokens, then the first."""
    return max(episodes, key=lambda episode: (episode.training_return, -episode.num_action_tokens))


def put_behind_best(episodes: Sequence[Episode]) -> list[Episode]:
    """Put each other episode behind the best; empty if their returns are equal."""
    reference = select_best(episodes)
    rest = [episode for episode in episodes if episode is not reference]
    if len({episode.training_return for episode in rest}) < 2:
        return []
    return [put_behind(reference, episode) for episode in rest]


def put_behind(reference: Episode, episode: Episode) -> Episode:
    """Put the last row of the reference before each row of an episode.

    The tokens of the reference are context: none is an action, and no score is read from them.
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


def measure_longest_row(episode: Episode) -> int:
    """Count the tokens of the longest row of an episode."""
    longest = size = 0
    for turn in episode.turns:
        turn_size = len(turn.prefix_tokens) + len(turn.reply_tokens)
        size = turn_size if turn.starts_row else size + turn_size
        longest = max(longest, size)
    return longest
