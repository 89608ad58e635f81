"""Assignment of trajectories to ranks that balances their loads."""

from __future__ import annotations

from collections.abc import Sequence


def assign_longest_first(
    *, loads: Sequence[int], parts: Sequence[int], ranks: Sequence[int], world_size: int
) -> list[int]:
    """Assign trajectories to ranks greedily, longest first, each to the least loaded rank.

    Graham (1969), "Bounds on multiprocessing timing anomalies": the heaviest rank carries at most 4/3 - 1/(3W) of
    the best possible.  Minibatches are assigned one after the other, since ranks synchronise after each.  Ties go
    to the rank with the smaller sum over minibatches, then to the rank that already holds the trajectory.

    Args:
        loads: number of tokens of each trajectory, summed over its rows.
        parts: minibatch of each trajectory.
        ranks: rank that holds each trajectory now.
        world_size: number of ranks (W).

    Returns:
        The new rank of each trajectory.

    >>> assign_longest_first(loads=[5, 4, 3, 2], parts=[0] * 4, ranks=[0, 0, 1, 1], world_size=2)
    [0, 1, 1, 0]
    """
    total = [0] * world_size
    new_ranks = list(ranks)
    for part in sorted(set(parts)):
        load_of = [0] * world_size  # in this minibatch, by rank
        members = [trajectory for trajectory, own_part in enumerate(parts) if own_part == part]
        for trajectory in sorted(members, key=lambda t: (-loads[t], t)):
            rank = min(range(world_size), key=lambda r: (load_of[r], total[r], r != ranks[trajectory], r))
            new_ranks[trajectory] = rank
            load_of[rank] += loads[trajectory]
            total[rank] += loads[trajectory]
    return new_ranks
