"""Packing of episodes into one right-padded :class:`TrajectoryBatch`; nothing is tokenised here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch, list_columns
from lit_agentrl.distributed import get_rank
from lit_agentrl.episode import PLANNER, Episode, Source, Turn

_MEMBERS = 1 << 20  # exceeds every group size: trajectory ids are group * _MEMBERS + member
_RANK_BITS = 40  # bits of a node id below the rank, which number the tokens of one rank


def pack(episodes: Sequence[Episode], baselines: Mapping[int, float] | None = None) -> TrajectoryBatch:
    """Pack episodes into rows: one per episode, or several if later turns start rows.

    A turn's training reward stands at its last sampled token, so ``reward_BT`` sums to the return over the rows of a
    trajectory.  ``baselines`` holds the greedy return of each group, in units of reward; a group without one gets NaN.

    Raises:
        ValueError: An episode failed (failed episodes are recorded, never trained on), or there are no episodes.
    """
    if not episodes:
        raise ValueError("no episodes to pack")
    for episode in episodes:
        if episode.failed:
            raise ValueError(
                f"episode {episode.group}/{episode.member} failed ({episode.error}): not trainable"
            )
    parts = [(e, first, _replace_prefix(turns)) for e in episodes for first, turns in split_rows(e)]
    rows = [_make_row(*part) for part in parts]
    for row in rows:
        row["baseline_B"] = (baselines or {}).get(row["group_B"], math.nan)
    packed = {
        name: _pad_column([row[name] for row in rows], name) for name in list_columns() if name != "node_BT"
    }
    node_BT = torch.arange(packed["tokens_BT"].numel()).view_as(packed["tokens_BT"])
    _share_nodes(node_BT, parts)
    return TrajectoryBatch(**packed, node_BT=node_BT + (get_rank() << _RANK_BITS))  # ranks share no token


def _share_nodes(node_BT: Tensor, parts: Sequence[tuple[Episode, int, Sequence[Turn]]]) -> None:
    """Give tokens copied from a parent the node ids of their first occurrence."""
    seen: dict[tuple[int, ...], Tensor] = {}
    for node_T, (episode, first, turns) in zip(node_BT, parts, strict=True):
        end = 0
        for number, turn in enumerate(turns, start=first):
            for is_reply, tokens in enumerate((turn.prefix_tokens, turn.reply_tokens)):
                start, end = end, end + len(tokens)
                owner = next(
                    (m for m, until in episode.branches if number + is_reply <= until), episode.member
                )
                own = node_T[start:end]
                own.copy_(seen.setdefault((episode.group, owner, number, is_reply), own))


def split_rows(episode: Episode) -> list[tuple[int, list[Turn]]]:
    """Return the first turn number and the turns of each row.

    A turn with ``starts_row`` begins a new row.
    """
    starts = [k for k, turn in enumerate(episode.turns) if turn.starts_row or k == 0]
    return [(k, episode.turns[k:end]) for k, end in zip(starts, [*starts[1:], None], strict=True)]


def _replace_prefix(turns: list[Turn]) -> list[Turn]:
    """Put the tokens to train on, if any, in place of a prefix.

    The log-probs of the row's replies were measured after other tokens; as NaN they are computed again by the weights
    before the update.
    """
    if not len(turns[0].trained_tokens):
        return turns
    unknown = [
        replace(turn, reply_logps=np.full(len(turn.reply_logps), math.nan), policy_version=-1)
        for turn in turns
    ]
    first = turns[0]
    unknown[0] = replace(
        unknown[0], prefix_tokens=first.trained_tokens, prefix_segments=first.trained_segments
    )
    return unknown


def get_trajectory_id(episode: Episode) -> int:
    """Return an id that is unique over the run."""
    return episode.group * _MEMBERS + episode.member


def _make_row(episode: Episode, first: int, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the unpadded values of a row by column; ``first`` numbers its first turn."""
    turn_columns = [_make_token_columns(k, turn) for k, turn in enumerate(turns, start=first)]
    for columns in turn_columns:
        if wrong := [name for name, values in columns.items() if len(values) != len(columns["tokens_BT"])]:
            sizes = f"{len(columns[wrong[0]])} values for {len(columns['tokens_BT'])} tokens"
            raise ValueError(f"{wrong[0]} has {sizes} of a turn; see _make_token_columns in rollout/pack.py")
    trajectory = get_trajectory_id(episode)
    return {
        **{name: np.concatenate([columns[name] for columns in turn_columns]) for name in turn_columns[0]},
        "group_B": episode.group,
        "member_B": episode.member,
        "trajectory_B": trajectory,
        "tree_B": episode.group * _MEMBERS + episode.tree_member,
        "task_B": episode.task,
        "first_turn_B": first,
        "return_B": episode.training_return,
        "success_B": episode.success,
        "source_B": int(episode.source),
        "is_opponent_B": episode.source is Source.OPPONENT,
        "end_B": int(episode.end),
        "is_truncated_B": episode.is_truncated,
        "state_key_BK": [turn.state_key for turn in turns],
    }


def _make_token_columns(number: int, turn: Turn) -> dict[str, Any]:
    """Return the values of a turn's tokens in each token column: first prefix, then reply."""
    num_given, num_sampled = len(turn.prefix_tokens), len(turn.reply_tokens)
    cost = turn.cost if turn.told_cost is None else turn.told_cost
    size = num_given + num_sampled
    is_sampled = np.arange(size) >= num_given
    is_end = is_sampled & (np.arange(size) == size - 1)
    reward_T = np.where(is_end, turn.training_reward - sum(early for _, early in turn.early_rewards), 0.0)
    for place, early in turn.early_rewards:
        reward_T[num_given + place] += early
    return {
        "tokens_BT": np.concatenate([turn.prefix_tokens, turn.reply_tokens]),
        "is_real_BT": np.ones(size, bool),
        "is_action_BT": is_sampled,
        "turn_BT": np.full(size, number),
        "is_turn_end_BT": is_end,
        "is_plan_BT": is_sampled & (turn.player == PLANNER),
        "segment_BT": np.concatenate([turn.prefix_segments, turn.reply_segments]),
        "sampler_logp_BT": np.concatenate([np.zeros(num_given), turn.reply_logps]),
        "sampler_entropy_BT": np.concatenate([np.zeros(num_given), turn.reply_entropies]),
        "policy_version_BT": np.where(is_sampled, turn.policy_version, -1),
        "reward_BT": reward_T,
        "cost_BT": np.where(is_end, cost or 0.0, 0.0),
    }


def _pad_column(values: Sequence[Any], name: str) -> Tensor:
    """Return a column as a padded tensor, from the values of each row."""
    spec = list_columns()[name]
    if name.endswith("_B"):
        return torch.tensor(values, dtype=spec.dtype)
    packed = torch.full((len(values), max(map(len, values))), spec.fill, dtype=spec.dtype)
    for row, value in zip(packed, values, strict=True):
        row[: len(value)] = torch.as_tensor(value, dtype=spec.dtype)
    return packed
