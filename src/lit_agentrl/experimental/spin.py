"""Preference pairs of demonstrations and the policy's own episodes: SPIN, arXiv 2401.01335.

The pairing `demonstrated` makes them in groups that are played, the data set `Spin` from recorded episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from lit_agentrl.checks import require, require_local
from lit_agentrl.data.kinds import Kind, list_replies, set_return
from lit_agentrl.data.recordings import Group
from lit_agentrl.data.references import Instance, identify_instance, open_answers
from lit_agentrl.episode import Episode
from lit_agentrl.rl.preference.pairing import Pairs, all_pairs, select_pairs


def demonstrated(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    source_B: Tensor,
    min_gap: float = 0.0,
) -> Pairs:
    """Pair trajectories that the policy did not sample with worse ones: SPIN.

    The chosen side has another source than the current policy, such as stored successes.  ``source_B`` is 0 for rows
    that the current policy has sampled; the other arguments, the result and the errors are those of `all_pairs`.
    """
    pairs = all_pairs(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        turn_BT=turn_BT, first_turn_B=first_turn_B, tokens_BT=tokens_BT, min_gap=min_gap,
    )  # fmt: skip
    units = pairs.units
    row_N = (units.place_A // max(is_action_BT.shape[1], 1))[units.start_N]
    return select_pairs(pairs, source_B[row_N[pairs.chosen_P]] != 0)


@dataclass(frozen=True, kw_only=True)
class Spin(Kind):
    """Pairs of a demonstration and one of the policy's own episodes, as groups of two.

    The demonstration is always chosen: its return is set to 1, that of the own episode to 0.  With ``algo=dpo``, in
    a run that starts from the policy that wrote the own episodes, the loss is that of SPIN:
    ``-log sigmoid(beta (log p(y)/p_t(y) - log p(y')/p_t(y')))`` for a demonstration y, an own reply y' and the policy
    p_t of the last round.  An own reply that equals a demonstration of its prompt is in no pair.

    Example: with beta = 0.1, log p(y)/p_t(y) = 2 and log p(y')/p_t(y') = -3, the loss is -log sigmoid(0.5) = 0.474077.

    Attributes:
        path: a folder that `collect` wrote with episodes of the policy that is trained, or a list of folders.
        demonstrations: a folder that `collect` wrote with demonstrations of the same tasks, such as by ``plays=best``.
    """

    demonstrations: str
    smallest: ClassVar[int] = 2
    scores: ClassVar[tuple[str, ...]] = ("return",)

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        given = self.demonstrations
        is_text = isinstance(given, str) and bool(given.strip())
        require(is_text, "demonstrations", given, "a folder of lit-agentrl collect")
        require_local("demonstrations", given)
        if files := [path for path in super().paths if Path(path).expanduser().is_file()]:
            raise ValueError(
                f"path={files[0]} is a file, and data=spin reads folders of lit-agentrl collect; rows with chosen and "
                "rejected are data=pairs"
            )
        if self.columns is not None:
            raise ValueError("columns has no effect on folders of lit-agentrl collect; set it to null")

    @property
    def paths(self) -> list[str]:
        """The folders of own episodes, then that of the demonstrations."""
        if not Path(self.demonstrations).expanduser().is_dir():
            raise ValueError(
                f"demonstrations={self.demonstrations} is no folder; name one that lit-agentrl collect wrote"
            )
        return [*super().paths, self.demonstrations]

    def make_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        own: list[Episode] = []
        first: dict[Instance, tuple[int, Episode]] = {}  # number and episode of the first demonstration
        for episode in episodes:
            key, number = identify_instance(episode), self._find_number(episode)
            if number is None:
                own.append(episode)
            elif key not in first or number < first[key][0]:
                first[key] = number, set_return(episode, 1.0)
        for episode in own:
            if (key := identify_instance(episode)) in first:
                yield [first[key][1], set_return(episode, 0.0)]

    def make_held_out_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        yield from self.make_groups(episodes)

    def _find_number(self, episode: Episode) -> int | None:
        """Return the number of a demonstration within its prompt; None for other episodes."""
        return self._numbers.get(identify_instance(episode), {}).get(list_replies(episode))

    @cached_property
    def _numbers(self) -> Mapping[Instance, Mapping[tuple[tuple[int, ...], ...], int]]:
        """The numbers of all demonstrations in their order, by prompt and replies."""
        by_prompt: dict[Instance, dict[tuple[tuple[int, ...], ...], int]] = {}
        for episode in open_answers("demonstrations", self.demonstrations).read():
            if not episode.failed and episode.turns:
                numbers = by_prompt.setdefault(identify_instance(episode), {})
                numbers.setdefault(list_replies(episode), len(numbers))
        return by_prompt
