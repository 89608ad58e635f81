"""Packing: one row an episode, rewards at turn ends, masks that say what True means."""

from __future__ import annotations

import pytest
import torch

from lit_agentrl.episode import EndReason, Episode, FinishReason, Turn
from lit_agentrl.rollout.pack import pack
from tests.rollout.conftest import reply


def by_hand(member, turns, end=EndReason.TURN_LIMIT):
    record = [
        Turn(
            observation="", prefix_tokens=prefix, prefix_segments=[0] * len(prefix), reply_tokens=sampled,
            reply_segments=[4] * len(sampled), reply_logps=[-0.5] * len(sampled),
            reply_entropies=[0.1] * len(sampled), reward=reward, state_key=key, policy_version=3,
        )
        for prefix, sampled, reward, key in turns
    ]  # fmt: skip
    return Episode(0, 5, member, 0, "count", 1, turns=record, end=end)


def test_by_hand():
    batch = pack(
        [by_hand(0, [([7, 8], [1, 2], 0.5, 11), ([9], [3], -1.0, 12)]), by_hand(1, [([7], [4], 2.0, 11)])]
    )
    assert batch.tokens_BT.tolist() == [[7, 8, 1, 2, 9, 3], [7, 4, 0, 0, 0, 0]]
    assert batch.is_action_BT.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.is_turn_end_BT.int().tolist() == [[0, 0, 0, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.turn_BT.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, -1, -1, -1, -1]]
    assert batch.reward_BT.tolist() == [[0, 0, 0, 0.5, 0, -1], [0, 2, 0, 0, 0, 0]]
    assert batch.return_B.tolist() == [-0.5, 2.0] == batch.reward_BT.sum(1).tolist()
    assert batch.state_key_BK.tolist() == [[11, 12], [11, 0]]
    assert batch.policy_version_BT[0].tolist() == [-1, -1, 3, 3, -1, 3]
    assert batch.group_B.tolist() == [5, 5] and len(set(batch.trajectory_B.tolist())) == 2
    assert batch.segment_BT[1].tolist() == [0, 4, -1, -1, -1, -1]


def test_turns_that_start_rows_by_hand():
    """A trajectory of two rows, the second with two turns, beside one of a single row."""
    first = by_hand(0, [([7, 8], [1, 2], 0.5, 11), ([7, 2, 9], [3], -1.0, 12), ([5], [4, 4], 3.0, 13)])
    first.turns[1].starts_row = True
    first.turns[1].prefix_segments = [0, 6, 2]
    batch = pack([first, by_hand(1, [([7], [4], 2.0, 11)])])
    assert batch.tokens_BT.tolist() == [[7, 8, 1, 2, 0, 0, 0], [7, 2, 9, 3, 5, 4, 4], [7, 4, 0, 0, 0, 0, 0]]
    assert batch.turn_BT.tolist() == [
        [0, 0, 0, 0, -1, -1, -1], [1, 1, 1, 1, 2, 2, 2], [0, 0, -1, -1, -1, -1, -1],
    ]  # fmt: skip
    assert batch.is_action_BT[1].int().tolist() == [0, 0, 0, 1, 0, 1, 1]
    assert batch.segment_BT[1].tolist() == [0, 6, 2, 4, 0, 4, 4]
    assert batch.reward_BT.sum(1).tolist() == [0.5, 2.0, 2.0]
    assert batch.return_B.tolist() == [2.5, 2.5, 2.0]
    assert batch.first_turn_B.tolist() == [0, 1, 0]
    assert batch.state_key_BK.tolist() == [[11, 0], [12, 13], [11, 0]]
    trajectories = batch.trajectory_B.tolist()
    assert trajectories[0] == trajectories[1] != trajectories[2] and batch.group_B.tolist() == [5, 5, 5]
    assert batch.member_B.tolist() == [0, 0, 1] and batch.node_BT.unique().numel() == 21


def test_a_trajectory_is_truncated_where_a_limit_cut_it_off():
    whole, cut, full = (by_hand(m, [([7], [1, 2], 0.5, 1), ([9], [3], 0.0, 2)]) for m in range(3))
    cut.turns[0].finish = FinishReason.LENGTH
    cut.turns[1].starts_row = True
    full.end = EndReason.CONTEXT_LIMIT
    assert pack([whole, cut, full]).is_truncated_B.tolist() == [False, True, True, True]


def test_select_and_trim():
    batch = pack([by_hand(0, [([7, 8], [1, 2], 0.5, 1)]), by_hand(1, [([7], [4], 2.0, 1)])])
    short = batch.select(torch.tensor([1])).trim()
    assert short.tokens_BT.tolist() == [[7, 4]] and short.num_rows == 1


def test_real_episodes_round_trip(play):
    episodes = play(lambda e, k: reply("Up"), members=3, goal=100)
    batch = pack(episodes)
    for row, episode in enumerate(episodes):
        flat = [t for turn in episode.turns for t in (*turn.prefix_tokens, *turn.reply_tokens)]
        assert batch.tokens_BT[row][batch.is_real_BT[row]].tolist() == flat
        assert int(batch.is_action_BT[row].sum()) == episode.num_action_tokens
    assert not (batch.is_action_BT & ~batch.is_real_BT).any()


def test_failed_episodes_and_empty_batches_are_refused():
    with pytest.raises(ValueError, match="not trainable"):
        pack([by_hand(0, [([7], [1], 0, 1)], end=EndReason.ERROR)])
    with pytest.raises(ValueError, match="no episodes"):
        pack([])
