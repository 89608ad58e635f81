"""Groups of recorded episodes for iterations, in a new order for each pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from lit_agentrl import seeds
from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.data.labels import Labelled, Referenced
from lit_agentrl.episode import Episode, Source
from lit_agentrl.rollout.pack import get_trajectory_id, pack

Group = Sequence[Episode]
_PIECE = 256  # groups per piece of `iterate_pieces`


@dataclass(frozen=True)
class Recordings:
    """Recorded training data without state: a batch depends only on seed and iteration.

    Attributes:
        groups: groups of episodes that are compared with each other.
        batch: groups per iteration.
        seed: seed of the orders.
        is_reference: the recorded log-probs are those of the reference policy.
        notes: messages about rows that were left out.
        metrics: metrics of every iteration.
        held_out: groups of ``val`` and ``test``, without training.
        first: number of the first group of a run.
        openings: number of groups of files by split key, by default the messages before the first reply.
        measures_nll: validation also measures the mean of -log p of the sampled tokens, for data to imitate.
    """

    groups: Sequence[Group]
    batch: int
    seed: int
    is_reference: bool = False
    notes: Sequence[str] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    held_out: Mapping[str, Sequence[Group]] = field(default_factory=dict)
    first: int = 0
    openings: Counter[str] = field(default_factory=Counter)
    measures_nll: bool = False

    @property
    def description(self) -> str:
        """The amount of data, in a line."""
        episodes, groups = sum(map(len, self.groups)), len(self.groups)
        held_out = sum(map(len, self.held_out.values()))
        held = f"; {held_out} group{'s' * (held_out != 1)} held out" if held_out else ""
        return (
            f"data: {groups} groups, {episodes} episodes; {self.batch} groups an iteration, "
            f"{groups / self.batch:.1f} iterations a pass{held}"
        )

    def hash_held_out(self, split: str) -> str:
        """Hash the held-out groups of a split.

        The hash is of texts and returns, and does not depend on the order.  It is empty if there is no group.
        """
        texts = sorted(
            repr([_list_texts(episode) for episode in group]) for group in self.held_out.get(split, ())
        )
        return blake2b("\n".join(texts).encode(errors="replace"), digest_size=8).hexdigest() if texts else ""

    def make_batch(self, iteration: int, *, rank: int = 0, world_size: int = 1) -> StepBatch:
        """Make a rank's share of an iteration, with the metrics of the whole iteration."""
        first = iteration * self.batch
        chosen = [self._get_group(first + offset) for offset in range(self.batch)]
        own_episodes = [episode for group in chosen[rank::world_size] for episode in group]
        batch = StepBatch(iteration, [], [], [group[0].group for group in chosen[rank::world_size]])
        batch.trajectories, batch.episodes = pack(own_episodes) if own_episodes else None, own_episodes
        batch.columns |= self._collect_labels(batch, own_episodes)
        batch.num_groups = batch.num_kept_groups = self.batch
        batch.columns |= self._get_reference(batch)
        batch.given = self._compute_metrics(iteration, [episode for group in chosen for episode in group])
        return batch

    def iterate_pieces(self) -> Iterator[dict[str, Tensor]]:
        """Iterate over the rows of all groups, also held-out ones, independent of seed and batch."""
        all_groups = [*self.groups, *(group for groups in self.held_out.values() for group in groups)]
        for first in range(0, len(all_groups), _PIECE):
            groups = enumerate(all_groups[first : first + _PIECE])
            yield pack(
                [episode for number, group in groups for episode in _copy_group(group, number)]
            ).to_dict()

    def make_held_out(self, split: str, iteration: int, *, rank: int = 0, world_size: int = 1) -> StepBatch:
        """Make a rank's share of the held-out data of a split, after some iterations."""
        groups = list(enumerate(self.held_out.get(split, ())))[rank::world_size]
        own_episodes = [episode for number, group in groups for episode in _copy_group(group, number)]
        batch = StepBatch(iteration, [], [], [number for number, _ in groups])
        batch.trajectories, batch.given = pack(own_episodes) if own_episodes else None, {}
        batch.measures_nll = self.measures_nll
        batch.columns |= self._collect_labels(batch, own_episodes) | self._get_reference(batch)
        return batch

    def _get_reference(self, batch: StepBatch) -> dict[str, Tensor]:
        """Return the recorded log-probs if they are those of the reference policy."""
        if not self.is_reference or batch.trajectories is None:
            return {}
        return {"ref_logp_BT": batch.trajectories.sampler_logp_BT}

    def _collect_labels(self, batch: StepBatch, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return the labels of several heads, or quantiles among rewards of the reference."""
        ids = (batch.trajectories or TrajectoryBatch.make_empty()).trajectory_B.tolist()
        if isinstance(self.groups[0][0], Referenced):
            known = {get_trajectory_id(e): e for e in episodes if isinstance(e, Referenced)}
            return {
                "ref_quantile_B": torch.tensor([known[k].quantile for k in ids], dtype=torch.float32),
                "ref_count_B": torch.tensor(
                    [len(known[k].reference_rewards) for k in ids], dtype=torch.float32
                ),
            }
        if not isinstance(self.groups[0][0], Labelled):
            return {}
        labels = {
            get_trajectory_id(episode): episode.labels
            for episode in episodes
            if isinstance(episode, Labelled)
        }
        heads = len(self.groups[0][0].labels)
        return {"label_BH": torch.tensor([labels[k] for k in ids], dtype=torch.float32).view(-1, heads)}

    def _get_group(self, position: int) -> list[Episode]:
        """Return the group at a position of the endless stream, under a unique number."""
        pass_number, index = divmod(position, len(self.groups))
        order = _shuffle(self.seed, pass_number, len(self.groups))
        return _copy_group(self.groups[order[index]], self.first + position)

    def _compute_metrics(self, iteration: int, episodes: Sequence[Episode]) -> dict[str, float]:
        count = len(episodes)
        return self.metrics | {
            "data/pass": (iteration + 1) * self.batch / len(self.groups),
            "data/episodes": float(count),
            "data/turns": sum(len(episode.turns) for episode in episodes) / count,
            "data/return_mean": sum(episode.training_return for episode in episodes) / count,
            "data/success": sum(episode.success for episode in episodes) / count,
            "data/action_tokens": float(sum(episode.num_action_tokens for episode in episodes)),
        }


def _list_texts(episode: Episode) -> list[object]:
    replies = [(turn.message, turn.observation, turn.reply_text) for turn in episode.turns]
    return [episode.opening, replies, episode.training_return]


def _copy_group(group: Group, number: int) -> list[Episode]:
    return [
        replace(episode, group=number, member=member, tree=None, branches=[], source=Source.RECORDED)
        for member, episode in enumerate(group)
    ]


@lru_cache(maxsize=4)
def _shuffle(seed: int, pass_number: int, size: int) -> list[int]:
    return np.random.default_rng(seeds.make_key(seed, "data pass", pass_number)).permutation(size).tolist()  # type: ignore[no-any-return]
