"""Confidence intervals of scores that are means over a few hundred episodes.

All functions are pure and take plain numbers.  Every interval is two-sided with the given confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

EXACT_FREEDOM = 1000  # degrees of freedom up to which the t quantile is computed from its finite sum


class Interval(NamedTuple):
    """An estimate with its bounds; ``n`` counts the independent units behind it."""

    mean: float
    low: float
    high: float
    n: int


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is out of range; valid: between 0 and 1, as 0.95")


def _check_counts(successes: float, n: float) -> None:
    if n <= 0 or not 0 <= successes <= n:
        raise ValueError(f"successes={successes} of n={n}: impossible; valid: n > 0, 0 <= successes <= n")


def _compute_central_t(t: float, freedom: int) -> float:
    """Compute P(|T| < t) of Student's t with ``freedom`` degrees of freedom.

    Abramowitz & Stegun, Handbook of Mathematical Functions, 26.7.3 (odd degrees of freedom) and 26.7.4 (even).
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2
    term, total = (cosine if is_odd else 1.0), 0.0
    for k in range(3 if is_odd else 2, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total


def compute_t_quantile(confidence: float, freedom: int) -> float:
    """Compute the two-sided critical value of Student's t: P(|T| < value) = confidence.

    The value is found by bisection of the exact distribution.  Above 1000 degrees of freedom, it is the sum of the
    first two terms of Fisher's expansion, z + (z³ + z) / (4 ν), whose error is then below 1e-5.

    Raises:
        ValueError: confidence outside (0, 1) or no degree of freedom.
    """
    _check_confidence(confidence)
    if freedom < 1:
        raise ValueError(f"freedom={freedom} is out of range; valid: 1, 2, 3, …")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    if freedom > EXACT_FREEDOM:
        return z + (z**3 + z) / (4 * freedom)
    low, high = 0.0, 1.0
    while _compute_central_t(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _compute_central_t(middle, freedom) < confidence else (low, middle)
    return (low + high) / 2


def _compute_wilson_bounds(share: float, n: float, z: float) -> tuple[float, float]:
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # at share 0 and 1 the bound is exactly 0 and 1; rounding would miss it by an ulp
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (0.0 if share == 0 else low), (1.0 if share == 1 else high)


def compute_wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Compute the score interval of a proportion p = successes / n (Wilson, JASA 1927).

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n).  The interval is never degenerate, not even at 0 or n successes.

    Raises:
        ValueError: impossible counts or confidence.
    """
    _check_counts(successes, n)
    _check_confidence(confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return Interval(successes / n, *_compute_wilson_bounds(successes / n, n, z), n)


def compute_mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Compute Student's interval of a mean: m ± t_{n−1} s / √n.

    The bounds of a single value are infinite.

    Raises:
        ValueError: no values, or a confidence outside (0, 1).
    """
    _check_confidence(confidence)
    if not values:
        raise ValueError("an interval needs at least one value")
    n, mean = len(values), fmean(values)
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = compute_t_quantile(confidence, n - 1) * stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def compute_group_means(values: Sequence[float], groups: Sequence[int]) -> list[float]:
    """Return the mean of each group, in order of first appearance.

    Raises:
        ValueError: ``values`` and ``groups`` differ in length.
    """
    values_by_group: dict[int, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        values_by_group.setdefault(group, []).append(value)
    return [fmean(group) for group in values_by_group.values()]


def compute_clustered_mean_interval(
    values: Sequence[float], groups: Sequence[int], confidence: float = 0.95
) -> Interval:
    """Compute the interval of a mean over episodes, some of which share a prompt.

    Episodes of a group are not independent, so the sample consists of the group means: every prompt counts once,
    whatever its group size, and ``n`` is the number of groups.

    Raises:
        ValueError: no values, lengths that differ, or a confidence outside (0, 1).
    """
    return compute_mean_interval(compute_group_means(values, groups), confidence)


def compute_clustered_share_interval(
    successes: Sequence[bool], groups: Sequence[int], confidence: float = 0.95
) -> Interval:
    """Compute the interval of a success share over episodes, some of which share a prompt.

    The interval is `compute_share_interval` of the prompts' shares; its ``n`` is the number of groups.  At group size 1
    it equals Wilson's interval.

    Raises:
        ValueError: no episodes, lengths that differ, or a confidence outside (0, 1).
    """
    shares = compute_group_means([float(success) for success in successes], groups)
    return compute_share_interval(shares, len(successes), confidence)


def compute_share_interval(shares: Sequence[float], num_episodes: int, confidence: float = 0.95) -> Interval:
    """Compute the interval, within [0, 1], of the mean of independent shares.

    An example of a share is the pass@k of one task.  The interval is Wilson's at the effective sample size (Dean &
    Pagano, J. Surv. Stat. Methodol. 2015) with the t quantile of the G shares: n_eff = p (1−p) / var(p), where p is
    their mean and var(p) their variance / G.  n_eff is at most the number of episodes.  ``n`` is G.  Shares of one
    episode each give Wilson's interval itself.

    Args:
        shares: one share in [0, 1] for each task.
        num_episodes: total number of episodes behind the shares.
        confidence: probability that the interval holds the mean.

    Raises:
        ValueError: no share, a share outside [0, 1], fewer episodes than shares, or a confidence outside (0, 1).
    """
    _check_confidence(confidence)
    if not shares:
        raise ValueError("an interval needs at least one value")
    num_groups, share = len(shares), fmean(shares)
    if num_episodes < num_groups or min(shares) < 0 or max(shares) > 1:
        raise ValueError(
            f"num_episodes={num_episodes} of {num_groups} shares from {min(shares)} to {max(shares)}: impossible; "
            "valid: shares in [0, 1], each of one episode or more"
        )
    if num_groups == num_episodes:
        return compute_wilson_interval(round(sum(shares)), num_episodes, confidence)
    # equal shares or a single group give no variance between groups, so each group counts as one sample
    effective = float(num_groups)
    if 0 < share < 1 and num_groups > 1:
        variance = stdev(shares) ** 2 / num_groups
        # groups that hold both outcomes and have zero variance between them: treat episodes as independent
        effective = share * (1 - share) / variance if variance > 0 else num_episodes
        effective = min(effective, num_episodes)
    critical = compute_t_quantile(confidence, max(num_groups - 1, 1))
    return Interval(share, *_compute_wilson_bounds(share, effective, critical), num_groups)


def estimate_pass_at_k(n: int, successes: int, k: int) -> float:
    """Estimate the chance that at least one of k samples succeeds.

    The unbiased estimate from n samples with c successes is 1 − C(n−c, k) / C(n, k) (Chen et al. 2021,
    arXiv:2107.03374, equation 1).

    Raises:
        ValueError: impossible counts, or k outside 1 … n.
    """
    _check_counts(successes, n)
    if not 1 <= k <= n:
        raise ValueError(f"k={k} is out of range; valid: 1 to n={n}")
    return 1 - math.comb(n - successes, k) / math.comb(n, k)


def estimate_best_of_k(scores: Sequence[float], solved: Sequence[bool], k: int) -> float:
    """Estimate the chance that the sample with the highest score of k succeeds.

    The estimate is unbiased.  It is the mean over all subsets of k of the n samples: Σ_i s_i C(b_i, k−1) / C(n, k),
    where b_i samples have a lower score than i and s_i is 1 if sample i succeeds.  Ties are broken uniformly at random.
    With k=1 it is the share of samples that succeed.

    Raises:
        ValueError: k outside 1 … n, or lists of different lengths.
    """
    n = len(scores)
    if not 1 <= k <= n:
        raise ValueError(f"k={k} is out of range; valid: 1 to n={n}")
    solved_by_score: dict[float, list[bool]] = {}
    for score, is_solved in zip(scores, solved, strict=True):
        solved_by_score.setdefault(score, []).append(is_solved)
    chance, below = 0.0, 0
    for score in sorted(solved_by_score):
        tied = solved_by_score[score]
        # subsets whose highest score is this one
        subsets = math.comb(below + len(tied), k) - math.comb(below, k)
        chance += fmean(tied) * subsets / math.comb(n, k)
        below += len(tied)
    return chance


def normalise(score: float, chance: float, oracle: float) -> float:
    """Compute a score on the scale where chance is 0 and the oracle is 1.

    A score below 0 is worse than chance.

    Raises:
        ValueError: the oracle is not above chance.
    """
    if oracle <= chance:
        raise ValueError(f"oracle={oracle} is not above chance={chance}: no scale to normalise on")
    return (score - chance) / (oracle - chance)
