"""Simulated idle share of ranks in the training step, from recorded episodes.

    python train.py env=sokoban rollout.prompts=32 trainer.max_epochs=1 callbacks.transcripts.episodes=256 \
        val.episodes=8 test.episodes=0 hydra.run.dir=outputs/lengths
    python -m scripts.bench.dealing outputs/lengths/transcripts/train.jsonl

Episodes stay on the rank that played them, or are distributed by load.  Groups are drawn from the recorded ones with
replacement, two for each rank.  Idle is the share of the ranks' time spent waiting for the rank with the most tokens:
``1 - mean / max``.  The table has mean and range over 20 draws.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence

from lit_agentrl.callbacks.transcript_lines import read
from lit_agentrl.strategies.balance import assign_longest_first

RANKS = (2, 4, 8, 16, 32, 64)
GROUPS_OF_A_RANK = 2
DRAWS = 20


def read_groups(path: str) -> list[list[int]]:
    """Read the number of tokens of each episode, by group."""
    found: dict[int, list[int]] = {}
    for _, episode in read(path):
        found.setdefault(episode.group, []).append(episode.num_tokens)
    return list(found.values())


def compute_idle_share(loads: Sequence[int], dealt: Sequence[int], world_size: int) -> float:
    """Compute ``1 - mean / max`` of the loads of the ranks."""
    carried = [0] * world_size
    for load, at in zip(loads, dealt, strict=True):
        carried[at] += load
    return 1 - sum(carried) / (world_size * max(carried)) if any(carried) else 0.0


def compare_dealing(groups: list[list[int]], world_size: int, draw: random.Random) -> tuple[float, float]:
    """Compute the idle share with whole groups on each rank, and with redistribution."""
    chosen = draw.choices(groups, k=GROUPS_OF_A_RANK * world_size)
    loads = [length for group in chosen for length in group]
    played = [g // GROUPS_OF_A_RANK for g, group in enumerate(chosen) for _ in group]
    dealt = assign_longest_first(loads=loads, parts=[0] * len(loads), ranks=played, world_size=world_size)
    return compute_idle_share(loads, played, world_size), compute_idle_share(loads, dealt, world_size)


def main() -> None:
    """Print the table."""
    groups = read_groups(sys.argv[1])
    lengths = sorted(length for group in groups for length in group)
    print(f"{len(lengths)} episodes in {len(groups)} groups; tokens: shortest {lengths[0]}, "
          f"median {lengths[len(lengths) // 2]}, longest {lengths[-1]}")  # fmt: skip
    print("| ranks | idle as played | idle as dealt |\n|---:|---:|---:|")
    for world_size in RANKS:
        draw = random.Random(world_size)
        pairs = [compare_dealing(groups, world_size, draw) for _ in range(DRAWS)]
        cells = [f"{statistics.mean(c):.1%} ({min(c):.1%} to {max(c):.1%})" for c in zip(*pairs, strict=True)]
        print(f"| {world_size} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
