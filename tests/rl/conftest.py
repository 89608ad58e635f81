"""The worked example that most tests of this folder use: two groups of three trajectories, seven tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

ACTIONS = ["1101100", "1011100", "1110111", "1010000", "1110000", "1100111"]
TURN_ENDS = [[1, 4], [0, 4], [2, 6], [0, 2], [2], [1, 6]]
TURN_REWARDS = [[0, 1], [0, 0], [0.5, 0], [0, 1], [1], [-0.1, 0]]
DELTAS = [
    [0.10, -0.05, 0.30, 0.02],
    [-0.30, 0.05, 0.25, -0.10],
    [0, 0.15, -0.15, 0.40, -0.02, 0.10],
    [0.20, -0.20],
    [0.05, 0.05, 0.05],
    [-0.40, 0.10, 0.35, 0, -0.25],
]
NAN = float("nan")


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """Expected values are compared to 1e-6 and splits to 1e-9, so everything runs in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def batch() -> dict[str, Tensor]:
    """The example; every float tensor holds NaN where the token was not sampled."""
    is_action_BT = torch.tensor([[c == "1" for c in row] for row in ACTIONS])
    tensors = {
        name: torch.full((6, 7), NAN) for name in ("logp_BT", "reward_BT", "old_logp_BT", "ref_logp_BT")
    }
    tensors["old_logp_BT"][is_action_BT] = -1.0
    tensors["ref_logp_BT"][is_action_BT] = -1.1
    tensors["logp_BT"][is_action_BT] = -1.0 + torch.tensor([d for row in DELTAS for d in row])
    tensors["reward_BT"][is_action_BT] = 0.0
    is_turn_end_BT = torch.zeros(6, 7, dtype=torch.bool)
    turn_BT = torch.full((6, 7), -1, dtype=torch.int32)
    for row, (ends, rewards) in enumerate(zip(TURN_ENDS, TURN_REWARDS, strict=True)):
        tensors["reward_BT"][row, ends] = torch.tensor(rewards, dtype=torch.float64)
        is_turn_end_BT[row, ends] = True
        for turn, (start, end) in enumerate(zip([0, *[e + 1 for e in ends]], ends, strict=False)):
            turn_BT[row, start : end + 1] = turn
    return {
        **tensors,
        "is_action_BT": is_action_BT,
        "is_turn_end_BT": is_turn_end_BT,
        "turn_BT": turn_BT,
        "return_B": torch.tensor([sum(rewards) for rewards in TURN_REWARDS], dtype=torch.float64),
        "group_B": torch.tensor([0, 0, 0, 1, 1, 1]),
        "trajectory_B": torch.arange(6),
        "first_turn_B": torch.zeros(6, dtype=torch.int32),
        "success_B": torch.tensor([True, False, False, True, True, False]),
    }
