"""Packing episodes into one right-padded :class:`TrajectoryBatch`; nothing is tokenised here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lit_agentrl.types import EndReason, Episode, Segment, TrajectoryBatch

_FILL: dict[str, tuple[float, torch.dtype]] = {  # value at padding
    "tokens_BT": (0, torch.int64),
    "is_real_BT": (False, torch.bool),
    "is_action_BT": (False, torch.bool),
    "turn_BT": (-1, torch.int32),
    "is_turn_end_BT": (False, torch.bool),
    "segment_BT": (int(Segment.PADDING), torch.int8),
    "sampler_logp_BT": (0.0, torch.float32),
    "sampler_entropy_BT": (0.0, torch.float32),
    "policy_version_BT": (-1, torch.int32),
    "reward_BT": (0.0, torch.float32),
}
_MEMBERS = 1 << 20  # more than any group has: trajectory ids are group * _MEMBERS + member


def pack(episodes: Sequence[Episode], baselines: Mapping[int, float] | None = None) -> TrajectoryBatch:
    """One row per episode, in order.

    A turn's training reward (points) stands at its last sampled token, so the row sums of ``reward_BT`` are
    the returns.  ``baselines`` has the greedy return of each group, in points; a group that it lacks gets NaN.

    Raises:
        ValueError: an episode that failed (those are recorded, never trained on), or none at all.
    """
    if not episodes:
        raise ValueError("no episodes to pack")
    for episode in episodes:
        if episode.end is EndReason.ERROR:
            raise ValueError(
                f"episode {episode.group}/{episode.member} failed ({episode.error}): not trainable"
            )
    width = max(episode.num_tokens for episode in episodes)
    rows = {
        name: torch.full((len(episodes), width), fill, dtype=dtype) for name, (fill, dtype) in _FILL.items()
    }
    for b, episode in enumerate(episodes):
        for name, values in _columns(episode).items():
            rows[name][b, : len(values)] = torch.tensor(values, dtype=rows[name].dtype)
    depth = max(len(episode.turns) for episode in episodes)
    keys = [[t.state_key for t in e.turns] + [0] * (depth - len(e.turns)) for e in episodes]
    trajectory_B = _ids([trajectory_id(e) for e in episodes])
    return TrajectoryBatch(
        **rows,
        node_BT=torch.arange(len(episodes) * width).view(len(episodes), width),
        group_B=_ids([e.group for e in episodes]),
        member_B=_ids([e.member for e in episodes]),
        trajectory_B=trajectory_B,
        tree_B=trajectory_B.clone(),
        task_B=_ids([e.task for e in episodes]),
        first_turn_B=torch.zeros(len(episodes), dtype=torch.int32),
        return_B=torch.tensor([e.training_return for e in episodes], dtype=torch.float32),
        baseline_B=torch.tensor([(baselines or {}).get(e.group, math.nan) for e in episodes]),
        success_B=torch.tensor([e.success for e in episodes]),
        end_B=torch.tensor([int(e.end) for e in episodes], dtype=torch.int8),
        state_key_BK=_ids(keys),
    )


def trajectory_id(episode: Episode) -> int:
    """Unique over the run."""
    return episode.group * _MEMBERS + episode.member


def _ids(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _columns(episode: Episode) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {name: [] for name in _FILL}
    for k, turn in enumerate(episode.turns):
        given, sampled = len(turn.prefix_tokens), len(turn.reply_tokens)
        columns["tokens_BT"] += [*turn.prefix_tokens, *turn.reply_tokens]
        columns["is_real_BT"] += [True] * (given + sampled)
        columns["is_action_BT"] += [False] * given + [True] * sampled
        columns["turn_BT"] += [k] * (given + sampled)
        columns["segment_BT"] += [*turn.prefix_segments, *turn.reply_segments]
        columns["sampler_logp_BT"] += [0.0] * given + turn.reply_logps
        columns["sampler_entropy_BT"] += [0.0] * given + turn.reply_entropies
        columns["policy_version_BT"] += [-1] * given + [turn.policy_version] * sampled
        last = [0.0] * (given + sampled)
        end = [False] * (given + sampled)
        if sampled:
            last[-1], end[-1] = turn.training_reward, True
        columns["reward_BT"] += last
        columns["is_turn_end_BT"] += end
    return columns
