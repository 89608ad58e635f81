"""Groups of recorded episodes, dealt to iterations: each pass has all of them in an order of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lit_agentrl import seeds
from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.data.labels import Labelled
from lit_agentrl.episode import Episode, Source
from lit_agentrl.rollout.pack import pack, trajectory_id

Group = Sequence[Episode]
_PIECE = 256  # groups that are scored together by `pieces`


@dataclass(frozen=True)
class Recordings:
    """What is trained on in place of rollouts, addressed by (seed, iteration): nothing to save or restore.

    Attributes:
        groups: each of episodes that are compared with one another.
        batch: groups of an iteration.
        seed: of the orders.
        is_reference: the recorded log-probs are those of the reference policy.
        notes: what was left out of the files, for people.
        metrics: of every iteration.
        held_out: groups of ``val`` and of ``test`` that are never trained on.
        first: the number of the first group of a run.
    """

    groups: Sequence[Group]
    batch: int
    seed: int
    is_reference: bool = False
    notes: Sequence[str] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    held_out: Mapping[str, Sequence[Group]] = field(default_factory=dict)
    first: int = 0

    @property
    def told(self) -> str:
        """How much there is, in a line."""
        episodes, groups = sum(map(len, self.groups)), len(self.groups)
        return (
            f"data: {groups} groups, {episodes} episodes; {self.batch} groups an iteration, "
            f"{groups / self.batch:.1f} iterations a pass"
        )

    def at(self, iteration: int, *, rank: int = 0, world_size: int = 1) -> StepBatch:
        """A rank's share of an iteration, with what is logged of all of it."""
        first = iteration * self.batch
        chosen = [self._numbered(first + place) for place in range(self.batch)]
        mine = [episode for group in chosen[rank::world_size] for episode in group]
        found = StepBatch(iteration, [], [], [group[0].group for group in chosen[rank::world_size]])
        found.trajectories, found.episodes = pack(mine) if mine else None, mine
        found.columns |= self._labels(found, mine)
        found.num_groups = found.num_kept_groups = self.batch
        if self.is_reference and found.trajectories is not None:
            found.columns["ref_logp_BT"] = found.trajectories.sampler_logp_BT
        found.given = self._row(iteration, [episode for group in chosen for episode in group])
        return found

    def pieces(self) -> Iterator[dict[str, Tensor]]:
        """The rows of all groups that are trained on, some at a time: the same ones whatever the seed and the batch."""
        for first in range(0, len(self.groups), _PIECE):
            groups = enumerate(self.groups[first : first + _PIECE])
            yield pack(
                [episode for number, group in groups for episode in _as_group(group, number)]
            ).to_dict()

    def judged(self, split: str, iteration: int, *, rank: int = 0, world_size: int = 1) -> StepBatch:
        """A rank's share of what is held out for a split, after so many iterations."""
        groups = list(enumerate(self.held_out.get(split, ())))[rank::world_size]
        mine = [episode for number, group in groups for episode in _as_group(group, number)]
        found = StepBatch(iteration, [], [], [number for number, _ in groups])
        found.trajectories, found.given = pack(mine) if mine else None, {}
        found.columns |= self._labels(found, mine)
        return found

    def _labels(self, batch: StepBatch, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """What the rows are worth to each head, where there are several."""
        if not isinstance(self.groups[0][0], Labelled):
            return {}
        ids = (batch.trajectories or TrajectoryBatch.make_empty()).trajectory_B.tolist()
        worth = {trajectory_id(each): each.labels for each in episodes if isinstance(each, Labelled)}
        heads = len(self.groups[0][0].labels)
        return {"label_BH": torch.tensor([worth[k] for k in ids], dtype=torch.float32).view(-1, heads)}

    def _numbered(self, position: int) -> list[Episode]:
        """The group at a position of the endless stream, under a number that no other use of it has."""
        number, place = divmod(position, len(self.groups))
        order = _order(self.seed, number, len(self.groups))
        return _as_group(self.groups[order[place]], self.first + position)

    def _row(self, iteration: int, episodes: Sequence[Episode]) -> dict[str, float]:
        count = len(episodes)
        return self.metrics | {
            "data/pass": (iteration + 1) * self.batch / len(self.groups),
            "data/episodes": float(count),
            "data/turns": sum(len(episode.turns) for episode in episodes) / count,
            "data/return_mean": sum(episode.training_return for episode in episodes) / count,
            "data/success": sum(episode.success for episode in episodes) / count,
            "data/action_tokens": float(sum(episode.num_action_tokens for episode in episodes)),
        }


def _as_group(group: Group, number: int) -> list[Episode]:
    return [
        replace(episode, group=number, member=member, tree=None, branches=[], source=Source.RECORDED)
        for member, episode in enumerate(group)
    ]


@lru_cache(maxsize=4)
def _order(seed: int, number: int, size: int) -> list[int]:
    return np.random.default_rng(seeds.make_key(seed, "data pass", number)).permutation(size).tolist()  # type: ignore[no-any-return]
