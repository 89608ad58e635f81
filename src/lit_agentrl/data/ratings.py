"""Ratings from comparisons: how strong each of several episodes is, by who was found better than whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ELO = 400 / np.log(10)  # Elo points of a unit of strength
_PRIOR = 0.1  # weight of a normal prior at 0: who never loses has a finite rating

Comparison = tuple[int, int, float]  # two places, and 1 where the first is better, 0 the second, 0.5 a tie


def ratings(comparisons: Sequence[Comparison], count: int) -> list[float]:
    """Strengths ``r`` in Elo points under ``P(i better than j) = σ(r_i − r_j)`` (Bradley and Terry 1952).

    The maximum of ``Σ s log σ(r_i − r_j) + (1 − s) log σ(r_j − r_i) − 0.05 Σ r²``, by Newton's method; a tie is half a
    win of each.  Their mean is 0.

    Args:
        comparisons: of places below ``count``.
        count: of those that are rated.
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


def connected(comparisons: Sequence[Comparison], count: int) -> list[int]:
    """The places of the largest set of which a chain of comparisons connects each two; of several, the first.

    Args:
        comparisons: as of `ratings`.
        count: of all places.
    """
    root = list(range(count))

    def found(place: int) -> int:
        while root[place] != place:
            place = root[place]
        return place

    for i, j, _ in comparisons:
        root[max(found(i), found(j))] = min(found(i), found(j))
    sets: dict[int, list[int]] = {}
    for place in range(count):
        sets.setdefault(found(place), []).append(place)
    return max(sets.values(), key=len)
