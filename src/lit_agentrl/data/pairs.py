"""Pairs of episodes, or of turns in equal states, as groups of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from lit_agentrl.checks import require_number, require_one_of, require_whole
from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import MOST, Kind, list_replies, set_return
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import BadRow, read_pair, read_pair_scores
from lit_agentrl.episode import Episode, Segment, Turn


@dataclass(frozen=True, kw_only=True)
class Pairs(Kind):
    """Rows with ``chosen`` and ``rejected``, and ``prompt`` if these do not contain it.

    ``margin``, or ``score_chosen`` and ``score_rejected``, give the difference in reward.

    Attributes:
        of: unit of recorded episodes: ``trajectory``, or ``turn``: different replies to the same state in the same
            turn; only their tokens are trained on, and the score of each is the mean return of its episodes.
        most: maximum of pairs per prompt or state; None: no limit.  No episode is in two pairs.
        min_gap: minimum difference in reward; 0: any difference.
    """

    smallest: ClassVar[int] = 2
    of: str = "trajectory"
    most: int | None = 3
    min_gap: float = 0.0

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        require_one_of("of", self.of, ("trajectory", "turn"))
        require_number("min_gap", self.min_gap, "finite and >= 0", lambda value: value >= 0)
        if self.most is not None:
            require_whole("most", self.most, 1, MOST, alternative=", or null")

    def make_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        units = [list(episodes)] if self.of == "trajectory" else list(_split_turns(episodes))
        for unit in units:
            yield from self._match(unit)

    def make_held_out_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from [episodes] if self.of == "trajectory" else self.make_groups(episodes)

    def _match(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        """Match the best with the worst, widest gap first; no episode is in two pairs."""
        order = sorted(range(len(episodes)), key=lambda k: (-episodes[k].training_return, k))
        last, count = len(order) - 1, 0
        for first, index in enumerate(order):
            if first >= last or count == self.most:
                return
            best, worst = episodes[index], episodes[order[last]]
            gap = best.training_return - worst.training_return
            if gap <= 0 or gap < self.min_gap:
                return
            if list_replies(best) != list_replies(worst):
                yield [best, worst]
                count += 1
            last -= 1

    def read_group(self, row: Mapping[str, Any], reader: Reader) -> Group:
        opening, sides = read_pair(row)
        scores = read_pair_scores(row)
        pair = [
            set_return(reader.make_episode(opening, side), value)
            for side, value in zip(sides, scores, strict=True)
        ]
        if list_replies(pair[0]) == list_replies(pair[1]):
            raise BadRow("identical", "chosen and rejected are the same")
        return pair


def _split_turns(episodes: Sequence[Episode]) -> Iterator[list[Episode]]:
    """Yield the different replies to each state of a turn, as episodes of that turn.

    The score of a reply is the mean return of its episodes, so that no reply is both chosen and rejected.
    """
    replies_by_state: dict[tuple[int, int], dict[bytes, list[Episode]]] = {}
    for episode in episodes:
        for turn_index, turn in enumerate(episode.turns):
            if turn.state_key and len(turn.reply_tokens):
                episodes_by_reply = replies_by_state.setdefault((turn.state_key, turn_index), {})
                episodes_by_reply.setdefault(turn.reply_tokens.tobytes(), []).append(episode)
    for (_, turn_index), episodes_by_reply in replies_by_state.items():
        if len(episodes_by_reply) > 1:
            yield [
                set_return(
                    keep_only_turn(same_reply[0], turn_index),
                    fmean(episode.training_return for episode in same_reply),
                )
                for same_reply in episodes_by_reply.values()
            ]


def keep_only_turn(episode: Episode, turn_index: int) -> Episode:
    """Cut an episode to one turn with its context; the return stays the episode's."""
    first = max(k for k, turn in enumerate(episode.turns[: turn_index + 1]) if turn.starts_row or k == 0)
    turn, tokens, segments = episode.turns[turn_index], [], []
    for earlier in episode.turns[first:turn_index]:
        tokens += [earlier.prefix_tokens, earlier.reply_tokens]
        segments += [earlier.prefix_segments, np.full(len(earlier.reply_tokens), Segment.PAST, np.int8)]
    single: Turn = replace(
        turn,
        prefix_tokens=np.concatenate([*tokens, turn.prefix_tokens]),
        prefix_segments=np.concatenate([*segments, turn.prefix_segments]),
        starts_row=True,
    )
    return set_return(replace(episode, turns=[single]), episode.training_return)
