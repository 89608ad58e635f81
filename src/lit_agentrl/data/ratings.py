"""Bradley-Terry ratings of episodes from pairwise comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ELO = 400 / np.log(10)  # Elo points of a unit of strength
_PRIOR = 0.1  # weight of a normal prior at 0, which keeps the rating of an episode without losses finite

# two indices, and 1 if the first is better, 0 if the second, 0.5 for a tie
Comparison = tuple[int, int, float]


def estimate_ratings(comparisons: Sequence[Comparison], count: int) -> list[float]:
    """Estimate Elo ratings ``r`` by the model of Bradley and Terry (1952).

    ``P(i better than j) = σ(r_i − r_j)``, with r in units of `ELO` points.  The ratings maximise
    ``Σ s log σ(r_i − r_j) + (1 − s) log σ(r_j − r_i) − 0.05 Σ r²`` and are found by Newton's method; a tie is half a
    win of each.  The mean rating is 0.

    Args:
        comparisons: comparisons of indices below ``count``.
        count: number of ratings.
    """
    strength_K = np.zeros(count)
    for _ in range(50):
        slope_K, curve_KK = -_PRIOR * strength_K, _PRIOR * np.eye(count)
        for i, j, won in comparisons:
            chance = 1 / (1 + np.exp(strength_K[j] - strength_K[i]))
            slope_K[i] += won - chance
            slope_K[j] -= won - chance
            weight = chance * (1 - chance)
            curve_KK[[i, j], [i, j]] += weight
            curve_KK[[i, j], [j, i]] -= weight
        step_K = np.linalg.solve(curve_KK, slope_K)
        strength_K += step_K
        if np.abs(step_K).max() < 1e-12:
            break
    return [float(value) for value in ELO * strength_K]


def find_connected(comparisons: Sequence[Comparison], count: int) -> list[int]:
    """Find the largest set of indices connected by comparisons; the first of several.

    Args:
        comparisons: as in `estimate_ratings`.
        count: number of indices.
    """
    root = list(range(count))

    def find_root(index: int) -> int:
        while root[index] != index:
            index = root[index]
        return index

    for i, j, _ in comparisons:
        root[max(find_root(i), find_root(j))] = min(find_root(i), find_root(j))
    sets: dict[int, list[int]] = {}
    for index in range(count):
        sets.setdefault(find_root(index), []).append(index)
    return max(sets.values(), key=len)
