"""Random ragged multi-turn batches, the same for a seed on every machine.

Rows hold 1 to 4 turns of observation and reply tokens and then padding; a few hold no sampled token at all.
Groups have 1 to 6 members, in mixed order.  Rewards come in four kinds: one at the end of the last turn, one
per turn, one per token, or the same for a whole group.  Every float tensor is NaN where nothing was sampled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

NUM_BATCHES = 200
GARBAGE = 7.5  # what an oracle gets at masked positions where it multiplies with its mask
VOCABULARY = 5

Batch = dict[str, Tensor]


def batches(**options: bool) -> Iterator[tuple[int, Batch]]:
    """``NUM_BATCHES`` batches with their seeds."""
    return ((seed, random_batch(seed, **options)) for seed in range(NUM_BATCHES))


def random_batch(seed: int, *, empty_rows: bool = True, extreme: bool = False) -> Batch:
    """One batch in float64; ``extreme`` lets a few log-probs lie up to 30 nats from the old ones."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    sizes = [rng.choice([1, 1, 2, 2, 3, 4, 6]) for _ in range(rng.randint(1, 5))]
    if sum(sizes) == 1:
        sizes = [1, 2]
    group = [7 * number + 3 for number, size in enumerate(sizes) for _ in range(size)]
    rng.shuffle(group)
    rows = [_row(rng, empty_rows and index > 1 and rng.random() < 0.1) for index in range(len(group))]
    num_tokens = max(map(len, rows)) + rng.randint(0, 3)
    turn_BT = torch.tensor([row + [-1] * (num_tokens - len(row)) for row in rows], dtype=torch.int32)
    is_action_BT = turn_BT >= 0
    following_BT = torch.cat([turn_BT[:, 1:], torch.full((len(rows), 1), -1, dtype=torch.int32)], 1)
    is_end_BT = is_action_BT & (following_BT != turn_BT)
    group_B = torch.tensor(group)

    def noise(scale: float) -> Tensor:
        return torch.randn(is_action_BT.shape, generator=generator, dtype=torch.float64) * scale

    reward_BT = _rewards(rng, noise(1.0), is_end_BT, is_action_BT, group_B)
    old_logp_BT = -noise(1.0).abs() - 0.1
    delta_BT = noise(rng.choice([0.02, 0.2, 0.6]))
    if extreme:
        is_far_BT = torch.rand(delta_BT.shape, generator=generator) < 0.1
        delta_BT = torch.where(is_far_BT, noise(1.0).sign() * rng.choice([8.0, 19.0, 21.0, 30.0]), delta_BT)
    value_BT = noise(1.0)
    row_advantage_B = noise(1.0)[:, 0] * (noise(1.0)[:, 0] > -1)
    tensors = {
        "reward_BT": reward_BT,
        "old_logp_BT": old_logp_BT,
        "logp_BT": old_logp_BT + delta_BT,
        "ref_logp_BT": old_logp_BT + noise(0.5),
        "advantage_BT": noise(1.0) * (noise(1.0) > -1),  # some are exactly 0
        "row_advantage_BT": row_advantage_B[:, None].expand_as(value_BT),
        "value_BT": value_BT,
        "old_value_BT": value_BT + noise(0.3),
        "return_BT": noise(1.0),
        "entropy_BT": noise(0.5).abs(),
    }
    return {
        **{name: torch.where(is_action_BT, tensor, torch.nan) for name, tensor in tensors.items()},
        "is_action_BT": is_action_BT,
        "is_turn_end_BT": is_end_BT,
        "turn_BT": turn_BT,
        "row_advantage_B": row_advantage_B,
        "return_B": reward_BT.sum(1),
        "group_B": group_B,
        "trajectory_B": torch.randperm(len(group), generator=generator),
        "first_turn_B": torch.zeros(len(group), dtype=torch.int32),
    }


def filled(batch: Batch, name: str, value: float = GARBAGE) -> Tensor:
    """A tensor of the batch with a finite ``value`` where nothing was sampled."""
    return torch.where(batch["is_action_BT"], batch[name], value)


def mask(batch: Batch) -> Tensor:
    """``is_action_BT`` as the oracles want it: int64."""
    return batch["is_action_BT"].long()


def alone(batch: Batch) -> Tensor:
    """Rows (B,) whose group has no other member."""
    return (batch["group_B"][:, None] == batch["group_B"]).sum(1) == 1


def _row(rng: random.Random, is_empty: bool) -> list[int]:
    """The turn of each token, -1 where it was not sampled."""
    row: list[int] = []
    for turn in range(rng.randint(1, 4)):
        row += [-1] * rng.randint(0, 3)  # replies may touch: then only the turn number tells them apart
        row += [-1 if is_empty else turn] * rng.randint(1, 5)
    return row


def _rewards(
    rng: random.Random, noise_BT: Tensor, is_end_BT: Tensor, is_action_BT: Tensor, group_B: Tensor
) -> Tensor:
    """Points (B, T), 0 where nothing was sampled."""
    kind = rng.choice(["outcome", "turns", "tokens", "equal"])
    if kind == "tokens":
        return torch.where(is_action_BT, noise_BT, 0.0)
    if kind == "turns":
        return torch.where(is_end_BT, noise_BT, 0.0)
    is_last_BT = is_end_BT & (is_end_BT.flip(1).cumsum(1).flip(1) == 1)
    if kind == "outcome":
        return torch.where(is_last_BT, (noise_BT > 0).double() - 0.1, 0.0)
    of_group = {group: rng.choice([0.1, 1.0, -0.3]) for group in group_B.unique().tolist()}
    points_B1 = torch.tensor([[of_group[group]] for group in group_B.tolist()], dtype=torch.float64)
    return torch.where(is_last_BT, points_B1, 0.0)
