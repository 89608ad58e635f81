"""Confidence intervals and tests over runs of several seeds, computed with SciPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lit_agentrl.report.page.power import CONFIDENCE, RESAMPLES, Floats, compute_detectable, compute_iqm
from lit_agentrl.report.page.scientific import stats


class Bounds(NamedTuple):
    """An estimate with its 95 % interval; bounds are None for too few runs."""

    value: float
    low: float | None
    high: float | None


def compute_mean(values: Sequence[float]) -> Bounds:
    """Compute Student's interval of the mean over seeds: m ± t s / √n."""
    estimate = float(np.mean(values))
    if len(values) < 2:
        return Bounds(estimate, None, None)
    if np.ptp(values) == 0:  # the standard error is zero, so the interval is the mean itself
        return Bounds(estimate, estimate, estimate)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(CONFIDENCE)
    return Bounds(estimate, float(interval.low), float(interval.high))


def _compute_bootstrap_interval(
    strata: Sequence[Sequence[float]], statistic: Any, resamples: int
) -> tuple[float, float] | None:
    if any(len(scores) < 2 for scores in strata):
        return None
    interval = stats.bootstrap(
        [np.asarray(scores, float) for scores in strata], statistic, n_resamples=resamples, method="percentile",
        vectorized=True, axis=-1, confidence_level=CONFIDENCE, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return float(interval.low), float(interval.high)


def compute_interquartile_mean(strata: Sequence[Sequence[float]]) -> Bounds:
    """Compute the interquartile mean of all scores, with a stratified bootstrap interval.

    The interquartile mean is that of the middle half of all scores (Agarwal et al. 2021, arXiv:2108.13264).

    Args:
        strata: scores of the runs, game by game; the runs of each game are resampled separately.
    """
    arrays = [np.asarray(scores, float) for scores in strata]
    bounds = _compute_bootstrap_interval(strata, compute_iqm, RESAMPLES)
    return Bounds(float(compute_iqm(*arrays)), *(bounds or (None, None)))


def estimate_improvement(strata_a: Sequence[Sequence[float]], strata_b: Sequence[Sequence[float]]) -> Bounds:
    """Estimate the probability that a run of A beats one of B, averaged over games.

    The probability on one game is Mann and Whitney's U / (n m); ties count half.

    Args:
        strata_a: scores of A, game by game.
        strata_b: scores of B, of the same games.
    """

    def compute_mean_probability(*samples: Floats, axis: int = -1) -> Any:
        num_games = len(samples) // 2
        probabilities = [
            (np.sign(a[..., :, None] - b[..., None, :]) + 1).mean(axis=(-2, -1)) / 2
            for a, b in zip(samples[:num_games], samples[num_games:], strict=True)
        ]
        return np.mean(probabilities, axis=0)

    strata = [*strata_a, *strata_b]
    value = float(np.mean([
        stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)) for a, b in zip(strata_a, strata_b, strict=True)
    ]))  # fmt: skip
    return Bounds(
        value, *(_compute_bootstrap_interval(strata, compute_mean_probability, RESAMPLES) or (None, None))
    )


class Difference(NamedTuple):
    """The difference A − B, with its test.

    Attributes:
        bounds: mean difference and interval.
        p_value: p-value of a test that makes no assumption about the distribution: a permutation test over runs, or
            McNemar's exact test over tasks; None if there is no test.
        units: the units that the test compares, in words.
        detectable: smallest true difference that the test finds in 4 of 5 experiments; None if that is unknown.
    """

    bounds: Bounds
    p_value: float | None
    units: str
    detectable: float | None


def compare_paired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare runs that share their seeds, given in the same order.

    The interval is Student's interval of the differences; the permutation test exchanges their signs.
    """
    differences = np.subtract(a, b)
    bounds, n = compute_mean(differences.tolist()), len(differences)
    p_value = None
    if n > 1:
        p_value = float(stats.permutation_test(
            (differences,), np.mean, permutation_type="samples", vectorized=True, n_resamples=9999,
            rng=np.random.default_rng(0),
        ).pvalue)  # fmt: skip
    std = float(np.std(differences, ddof=1)) if n > 1 else 0.0
    return Difference(
        bounds, p_value, f"{n} pair{'s' * (n != 1)} of seeds", compute_detectable(std / n**0.5, n - 1)
    )


def compare_unpaired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare runs that do not share their seeds.

    The interval is Welch's; the permutation test exchanges runs between A and B.
    """
    estimate, units = float(np.mean(a) - np.mean(b)), f"{len(a)} and {len(b)} runs"
    if min(len(a), len(b)) < 2:
        return Difference(Bounds(estimate, None, None), None, units, None)
    squared_errors = np.var(a, ddof=1) / len(a), np.var(b, ddof=1) / len(b)
    if sum(squared_errors) == 0:
        return Difference(Bounds(estimate, estimate, estimate), None, units, None)
    test = stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(CONFIDENCE)

    def subtract_means(x: Floats, y: Floats, axis: int = -1) -> Any:
        return np.mean(x, axis=axis) - np.mean(y, axis=axis)

    p_value = stats.permutation_test(
        (a, b), subtract_means, vectorized=True, n_resamples=9999, rng=np.random.default_rng(0)
    ).pvalue
    detectable = compute_detectable(float(sum(squared_errors)) ** 0.5, float(test.df))
    return Difference(
        Bounds(estimate, float(interval.low), float(interval.high)), float(p_value), units, detectable
    )


def compare_tasks(a: Sequence[bool | None], b: Sequence[bool | None]) -> Difference | None:
    """Compare two runs that played the same tasks, by McNemar's exact test.

    The result is None if the number of tasks differs, or if there are none.  The interval is Clopper and Pearson's for
    the share π that A won among the n₁ tasks on which the runs differ, converted to a difference: (2π − 1) n₁ / n.  It
    says nothing about other seeds.
    """
    if len(a) != len(b):
        return None
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if not pairs:
        return None
    n, won, lost = len(pairs), sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)
    units, differing = f"{n} tasks of one run each", won + lost
    error = (differing / n) ** 0.5 / n**0.5
    if not differing:
        high = float(stats.binomtest(0, n).proportion_ci(CONFIDENCE).high)
        return Difference(Bounds(0.0, -high, high), 1.0, units, None)
    test = stats.binomtest(won, differing)
    low, high = ((2 * bound - 1) * differing / n for bound in test.proportion_ci(CONFIDENCE))
    return Difference(
        Bounds((won - lost) / n, float(low), float(high)),
        float(test.pvalue),
        units,
        compute_detectable(error, n - 1),
    )


def adjust(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests for the false discovery rate (Benjamini and Hochberg)."""
    return [float(p_value) for p_value in stats.false_discovery_control(p_values)] if len(p_values) else []
