"""Pairs within a prompt, or of turns from equal states, each a group of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from lit_agentrl.checks import require_number, require_one_of, require_whole
from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import MOST, Kind, replies, scored
from lit_agentrl.data.recordings import Group
from lit_agentrl.envs.tasks.messages import BadRow, read_pair, read_pair_scores
from lit_agentrl.episode import Episode, Segment, Turn


@dataclass(frozen=True, kw_only=True)
class Pairs(Kind):
    """Rows: ``chosen`` and ``rejected``, and ``prompt`` where these do not hold it.

    ``margin``, or ``score_chosen`` and ``score_rejected``, say by how much one is better.

    Attributes:
        of: of recorded episodes: ``trajectory``, or ``turn``: different replies to the same state in the same turn, of
            which alone the tokens count; each is worth the mean of the episodes that wrote it there.
        most: pairs of a prompt, or of a state; None: as many as there are without an episode in two.
        min_gap: points by which the two must differ at least; 0: at all.
    """

    smallest: ClassVar[int] = 2
    of: str = "trajectory"
    most: int | None = 3
    min_gap: float = 0.0

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        require_one_of("of", self.of, ("trajectory", "turn"))
        require_number("min_gap", self.min_gap, "finite and >= 0", lambda value: value >= 0)
        if self.most is not None:
            require_whole("most", self.most, 1, MOST, alternative=", or null")

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        units = [list(episodes)] if self.of == "trajectory" else list(_turns(episodes))
        for unit in units:
            yield from self._matched(unit)

    def judged(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from [episodes] if self.of == "trajectory" else self.of_episodes(episodes)

    def _matched(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        """The widest gap first; no episode is in two pairs."""
        order = sorted(range(len(episodes)), key=lambda k: (-episodes[k].training_return, k))
        low, found = len(order) - 1, 0
        for high, index in enumerate(order):
            if high >= low or found == self.most:
                return
            best, worst = episodes[index], episodes[order[low]]
            gap = best.training_return - worst.training_return
            if gap <= 0 or gap < self.min_gap:
                return
            if replies(best) != replies(worst):
                yield [best, worst]
                found += 1
            low -= 1

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        opening, sides = read_pair(row)
        worth = read_pair_scores(row)
        pair = [scored(read.episode(opening, side), value) for side, value in zip(sides, worth, strict=True)]
        if replies(pair[0]) == replies(pair[1]):
            raise BadRow("identical", "chosen and rejected are the same")
        return pair


def _turns(episodes: Sequence[Episode]) -> Iterator[list[Episode]]:
    """The different replies to each state of a turn, each an episode of that turn alone.

    A reply is worth the mean of the episodes that wrote it there: of one alone it would be chosen and rejected.
    """
    met: dict[tuple[int, int], dict[bytes, list[Episode]]] = {}
    for episode in episodes:
        for place, turn in enumerate(episode.turns):
            if turn.state_key and len(turn.reply_tokens):
                replies_to = met.setdefault((turn.state_key, place), {})
                replies_to.setdefault(turn.reply_tokens.tobytes(), []).append(episode)
    for (_, place), replies_to in met.items():
        if len(replies_to) > 1:
            yield [
                scored(only_turn(alike[0], place), fmean(each.training_return for each in alike))
                for alike in replies_to.values()
            ]


def only_turn(episode: Episode, place: int) -> Episode:
    """The episode up to a turn, of which alone the tokens count; its points are those of the whole episode."""
    first = max(k for k, turn in enumerate(episode.turns[: place + 1]) if turn.starts_row or k == 0)
    turn, tokens, segments = episode.turns[place], [], []
    for each in episode.turns[first:place]:
        tokens += [each.prefix_tokens, each.reply_tokens]
        segments += [each.prefix_segments, np.full(len(each.reply_tokens), Segment.PAST, np.int8)]
    alone: Turn = replace(
        turn,
        prefix_tokens=np.concatenate([*tokens, turn.prefix_tokens]),
        prefix_segments=np.concatenate([*segments, turn.prefix_segments]),
        starts_row=True,
    )
    return scored(replace(episode, turns=[alone]), episode.training_return)
