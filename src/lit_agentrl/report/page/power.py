"""Statistical power of a number of seeds and episodes: detectable differences and coverage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.report.page.scientific import optimize, special, stats

CONFIDENCE = 0.95
RESAMPLES = 2000
NOMINAL = 0.93  # a report warns of an interval with less coverage
_SIMULATED = 2000  # simulated experiments for each coverage: its standard error is 0.005
_BOOTSTRAP_EXPERIMENTS, _BOOTSTRAP_RESAMPLES = 300, 300  # if each experiment is bootstrapped
Floats = NDArray[np.float64]


def compute_iqm(*strata: Floats, axis: int = -1) -> Any:
    """Compute the interquartile mean; a quarter, rounded down, is dropped at either end."""
    return stats.trim_mean(np.concatenate(strata, axis=axis), 0.25, axis=axis)


def compute_detectable(error: float, freedom: float, power: float = 0.8) -> float | None:
    """Compute the smallest true difference that a t test detects with this power.

    The test is two-sided at 5 %.  The difference is the noncentrality δ for which P(T' > t) = power, times the
    standard error; the other tail, which adds less than 1e-4, is neglected.  The result is None without a positive
    error or a degree of freedom.

    Args:
        error: standard error of the difference.
        freedom: its degrees of freedom.
        power: probability that the test detects the difference.
    """
    if error <= 0 or freedom < 1:
        return None
    critical = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    return error * float(
        optimize.brentq(lambda d: stats.nct.sf(critical, freedom, d) - power, 0.0, 20.0 + 8 * critical)
    )


def compute_detectable_by_episodes(share: float, episodes: int, power: float = 0.8) -> float:
    """Compute the detectable difference of two runs if seeds had no effect.

    Each run has n = ``episodes`` episodes: (z + z') √(2 p (1 − p) / n).
    """
    share = min(max(share, 0.5 / episodes), 1 - 0.5 / episodes)  # an observed share of 0 does not prove p = 0
    sum_of_z = special.ndtri((1 + CONFIDENCE) / 2) + special.ndtri(power)
    return float(sum_of_z * (2 * share * (1 - share) / episodes) ** 0.5)


def compute_split_half_difference(values: Sequence[float]) -> float | None:
    """Compute the 95 % quantile of the difference between two halves of one cell (A/A).

    The runs are split at random.  Each half has half of the runs, so differences are divided by √2, as if each half
    were a whole cell.  The result is None with fewer than 4 runs.
    """
    n = len(values)
    if n < 4:
        return None
    order = np.random.default_rng(0).random((RESAMPLES, n)).argsort(axis=1)
    shuffled, half = np.asarray(values)[order], n // 2
    differences = np.abs(shuffled[:, :half].mean(axis=1) - shuffled[:, half : 2 * half].mean(axis=1))
    return float(np.quantile(differences, CONFIDENCE) * (half / n) ** 0.5)


def _simulate_experiments(
    values: Sequence[float], episodes: Sequence[int], number: int
) -> tuple[Floats, Floats]:
    """Simulate many cells with the mean and variance of the given runs.

    The success share of each run is drawn from a beta distribution with the mean of the values and the variance that
    sampling of episodes does not explain; its episodes are binomial.

    Returns:
        Success of the simulated runs (experiments, runs), and that of many further runs, which stands for the truth.
    """
    rng, n = np.random.default_rng(0), np.maximum(np.asarray(episodes), 1)
    total = float(n.sum())
    share = (float(np.dot(values, n)) + 0.5) / (total + 1)
    sampling_variance = float(np.mean(share * (1 - share) / n))
    variance = max(float(np.var(values, ddof=1)) - sampling_variance, 0.0)
    variance = min(variance, 0.9 * share * (1 - share))
    sizes = (number, len(n)), (100 * _SIMULATED, 1)
    if variance > 0:
        strength = share * (1 - share) / variance - 1
        shares = [rng.beta(share * strength, (1 - share) * strength, size) for size in sizes]
    else:
        shares = [np.full(size, share) for size in sizes]
    return rng.binomial(n, shares[0]) / n, rng.binomial(n[:1], shares[1])[:, 0] / n[0]


def estimate_coverage_of_mean(values: Sequence[float], episodes: Sequence[int]) -> float | None:
    """Estimate the coverage of `compute_mean` at this number of runs and episodes, by simulation."""
    if len(values) < 2:
        return None
    played, truth = _simulate_experiments(values, episodes, _SIMULATED)
    half = (
        stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * played.std(axis=1, ddof=1) / len(values) ** 0.5
    )
    return float(np.mean(np.abs(played.mean(axis=1) - truth.mean()) <= half + 1e-12))


def estimate_coverage_of_interquartile(values: Sequence[float], episodes: Sequence[int]) -> float | None:
    """Estimate the coverage of `compute_interquartile_mean` of one game, by simulation.

    The truth is the interquartile mean of very many runs.
    """
    if len(values) < 2:
        return None
    played, truth = _simulate_experiments(values, episodes, _BOOTSTRAP_EXPERIMENTS)
    interval = stats.bootstrap(
        [played], compute_iqm, n_resamples=_BOOTSTRAP_RESAMPLES, method="percentile", vectorized=True, axis=-1,
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    middle = float(stats.trim_mean(truth, 0.25))
    return float(np.mean((interval.low <= middle + 1e-12) & (middle <= interval.high + 1e-12)))


def compute_coverage_of_wilson(share: float, episodes: int) -> float:
    """Compute the coverage of Wilson's interval of one run, as an exact sum over outcomes."""
    share = min(max(share, 0.5 / (episodes + 1)), 1 - 0.5 / (episodes + 1))
    successes = np.arange(episodes + 1)
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
    centre = (successes + z * z / 2) / (episodes + z * z)
    half = z / (episodes + z * z) * np.sqrt(successes * (episodes - successes) / episodes + z * z / 4)
    return float(stats.binom.pmf(successes, episodes, share)[np.abs(centre - share) <= half].sum())
