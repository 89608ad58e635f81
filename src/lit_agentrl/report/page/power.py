"""What so many seeds and episodes can show at all: differences that would be seen, and how often intervals hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.report.page.scientific import optimize, special, stats

CONFIDENCE = 0.95
RESAMPLES = 2000
NOMINAL = 0.93  # an interval that covers less often is told
_SIMULATED = 2000  # experiments that a coverage rests on: its standard error is 0.005
_BOOTSTRAPPED = (300, 300)  # the same where each is bootstrapped: experiments, resamples
Floats = NDArray[np.float64]


def iqm(*strata: Floats, axis: int = -1) -> Any:
    """The mean of the middle half of all scores: a quarter is left out at either end, rounded down."""
    return stats.trim_mean(np.concatenate(strata, axis=axis), 0.25, axis=axis)


def detectable(error: float, freedom: float, power: float = 0.8) -> float | None:
    """The smallest true difference that a two-sided t test at 5 % would see with this chance.

    The noncentrality δ for which P(T' > t) = power, times the standard error; the other tail, which adds less than
    1e-4, is left out.

    Args:
        error: standard error of the difference.
        freedom: its degrees of freedom.
        power: chance to see it.
    """
    if error <= 0 or freedom < 1:
        return None
    critical = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    return error * float(
        optimize.brentq(lambda d: stats.nct.sf(critical, freedom, d) - power, 0.0, 20.0 + 8 * critical)
    )


def seen_by_episodes(share: float, episodes: int, power: float = 0.8) -> float:
    """The same for two runs of so many episodes each, had seeds no effect: (z + z') √(2 p (1 − p) / n)."""
    share = min(max(share, 0.5 / episodes), 1 - 0.5 / episodes)  # nothing solved is no proof of p = 0
    both = special.ndtri((1 + CONFIDENCE) / 2) + special.ndtri(power)
    return float(both * (2 * share * (1 - share) / episodes) ** 0.5)


def same_again(values: Sequence[float]) -> float | None:
    """A/A: what 95 of 100 differences stay below between two halves of one cell, as if each were a whole one.

    Its runs are split at random; a half has half of the runs, so its differences are divided by √2.
    """
    n = len(values)
    if n < 4:
        return None
    order = np.random.default_rng(0).random((RESAMPLES, n)).argsort(axis=1)
    mixed, half = np.asarray(values)[order], n // 2
    differences = np.abs(mixed[:, :half].mean(axis=1) - mixed[:, half : 2 * half].mean(axis=1))
    return float(np.quantile(differences, CONFIDENCE) * (half / n) ** 0.5)


def _experiments(values: Sequence[float], episodes: Sequence[int], number: int) -> tuple[Floats, Floats]:
    """Cells like this one: success of their runs (experiments, runs), and of many runs for the truth.

    Each run has a share of its own, of a beta distribution with the mean of the values and the variance that episodes
    do not explain; its episodes are binomial.
    """
    rng, n = np.random.default_rng(0), np.maximum(np.asarray(episodes), 1)
    total = float(n.sum())
    share = (float(np.dot(values, n)) + 0.5) / (total + 1)
    of_episodes = float(np.mean(share * (1 - share) / n))
    variance = max(float(np.var(values, ddof=1)) - of_episodes, 0.0)
    variance = min(variance, 0.9 * share * (1 - share))
    sizes = (number, len(n)), (100 * _SIMULATED, 1)
    if variance > 0:
        strength = share * (1 - share) / variance - 1
        shares = [rng.beta(share * strength, (1 - share) * strength, size) for size in sizes]
    else:
        shares = [np.full(size, share) for size in sizes]
    return rng.binomial(n, shares[0]) / n, rng.binomial(n[:1], shares[1])[:, 0] / n[0]


def coverage_of_mean(values: Sequence[float], episodes: Sequence[int]) -> float | None:
    """How often `mean` holds the truth at this number of runs and episodes, by simulation."""
    if len(values) < 2:
        return None
    played, truth = _experiments(values, episodes, _SIMULATED)
    half = (
        stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * played.std(axis=1, ddof=1) / len(values) ** 0.5
    )
    return float(np.mean(np.abs(played.mean(axis=1) - truth.mean()) <= half + 1e-12))


def coverage_of_interquartile(values: Sequence[float], episodes: Sequence[int]) -> float | None:
    """How often `interquartile` of one game holds the truth, the interquartile mean of very many runs."""
    if len(values) < 2:
        return None
    played, truth = _experiments(values, episodes, _BOOTSTRAPPED[0])
    drawn = stats.bootstrap(
        [played], iqm, n_resamples=_BOOTSTRAPPED[1], method="percentile", vectorized=True, axis=-1,
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    middle = float(stats.trim_mean(truth, 0.25))
    return float(np.mean((drawn.low <= middle + 1e-12) & (middle <= drawn.high + 1e-12)))


def coverage_of_wilson(share: float, episodes: int) -> float:
    """How often Wilson's interval of one run holds the truth: the exact sum over all results."""
    share = min(max(share, 0.5 / (episodes + 1)), 1 - 0.5 / (episodes + 1))
    successes = np.arange(episodes + 1)
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
    centre = (successes + z * z / 2) / (episodes + z * z)
    half = z / (episodes + z * z) * np.sqrt(successes * (episodes - successes) / episodes + z * z / 4)
    return float(stats.binom.pmf(successes, episodes, share)[np.abs(centre - share) <= half].sum())
