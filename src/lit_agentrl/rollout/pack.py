"""Packing episodes into one right-padded :class:`TrajectoryBatch`; nothing is tokenised here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.episode import EndReason, Episode, Segment, Turn

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
    """One row per episode, or several where later turns start rows of their own; in order.

    A turn's training reward (points) stands at its last sampled token, so ``reward_BT`` sums to the return
    over the rows of a trajectory.  ``baselines`` has the greedy return of each group, in points; a group that
    it lacks gets NaN.

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
    parts = [(episode, first, turns) for episode in episodes for first, turns in split_rows(episode)]
    columns = [_columns(first, turns) for _, first, turns in parts]
    width = max(len(row["tokens_BT"]) for row in columns)
    rows = {name: torch.full((len(parts), width), fill, dtype=dtype) for name, (fill, dtype) in _FILL.items()}
    for b, row in enumerate(columns):
        for name, values in row.items():
            rows[name][b, : len(values)] = torch.tensor(values, dtype=rows[name].dtype)
    depth = max(len(turns) for _, _, turns in parts)
    keys = [[t.state_key for t in turns] + [0] * (depth - len(turns)) for _, _, turns in parts]
    of_row = [episode for episode, _, _ in parts]
    trajectory_B = _ids([trajectory_id(e) for e in of_row])
    return TrajectoryBatch(
        **rows,
        node_BT=torch.arange(len(parts) * width).view(len(parts), width),
        group_B=_ids([e.group for e in of_row]),
        member_B=_ids([e.member for e in of_row]),
        trajectory_B=trajectory_B,
        tree_B=trajectory_B.clone(),
        task_B=_ids([e.task for e in of_row]),
        first_turn_B=torch.tensor([first for _, first, _ in parts], dtype=torch.int32),
        return_B=torch.tensor([e.training_return for e in of_row], dtype=torch.float32),
        baseline_B=torch.tensor([(baselines or {}).get(e.group, math.nan) for e in of_row]),
        success_B=torch.tensor([e.success for e in of_row]),
        end_B=torch.tensor([int(e.end) for e in of_row], dtype=torch.int8),
        state_key_BK=_ids(keys),
    )


def split_rows(episode: Episode) -> list[tuple[int, list[Turn]]]:
    """Number of the first turn, and the turns, of each row: a turn that ``starts_row`` begins a new one."""
    starts = [k for k, turn in enumerate(episode.turns) if turn.starts_row or k == 0]
    return [(k, episode.turns[k:end]) for k, end in zip(starts, [*starts[1:], None], strict=True)]


def trajectory_id(episode: Episode) -> int:
    """Unique over the run."""
    return episode.group * _MEMBERS + episode.member


def _ids(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _columns(first: int, turns: Sequence[Turn]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {name: [] for name in _FILL}
    for k, turn in enumerate(turns, start=first):
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
