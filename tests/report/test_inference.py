"""Intervals and tests against closed forms, SciPy's own against ours, and coverage against simulation."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from lit_agentrl.report.page import inference, power
from lit_agentrl.report.statistics import compute_mean_interval, compute_wilson_interval, estimate_pass_at_k

VALUES = [0.2, 0.5, 0.35, 0.4, 0.1]


def test_the_mean_is_students_and_ours_agrees() -> None:
    value, low, high = inference.compute_mean(VALUES)
    ours = compute_mean_interval(VALUES)
    assert (value, low, high) == pytest.approx((ours.mean, ours.low, ours.high), abs=1e-9)
    assert inference.compute_mean([0.3]) == (0.3, None, None) and inference.compute_mean([0.5, 0.5]) == (
        0.5,
        0.5,
        0.5,
    )


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end() -> None:
    found = inference.compute_interquartile_mean([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0]])
    assert found.value == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert found.low is not None and found.high is not None and found.low < found.value < found.high


def test_the_bootstrap_is_stratified() -> None:
    """Games that differ by much and seeds that do not: drawn together, the interval would be wide."""
    found = inference.compute_interquartile_mean([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert found == (0.5, 0.5, 0.5)
    assert inference.compute_interquartile_mean([[0.0], [1.0, 1.0]]).low is None


def test_the_bootstrap_of_all_resamples_is_enumerated() -> None:
    """Of three values all 27 resamples are known: bounds are their quantiles, but for the noise of 2,000 draws."""
    values = [0.1, 0.2, 0.6]
    means = [float(np.mean(draw)) for draw in itertools.product(values, repeat=3)]
    found = inference.compute_interquartile_mean([values])  # of three values nothing is left out
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    assert found.low == pytest.approx(low, abs=0.04) and found.high == pytest.approx(high, abs=0.04)


def test_the_probability_of_improvement_counts_pairs() -> None:
    a, b = [0.1, 0.5, 0.9], [0.2, 0.5]
    assert inference.estimate_improvement([a], [b]).value == pytest.approx((0 + 0 + 1 + 0.5 + 1 + 1) / 6)
    assert inference.estimate_improvement([[2.0, 3.0]], [[0.0, 1.0]]) == (1.0, 1.0, 1.0)


def test_pairs_of_seeds_are_compared_by_their_differences() -> None:
    """All signs can be exchanged in 2⁵ ways; two of them are as far from zero."""
    other = [value - 0.1 - 0.01 * number for number, value in enumerate(VALUES)]
    found = inference.compare_paired(VALUES, other)
    assert found.bounds.value == pytest.approx(0.12) and found.p_value == pytest.approx(2 / 32)
    assert found.bounds.low is not None and found.bounds.low > 0
    apart = inference.compare_unpaired(VALUES, other)
    assert apart.bounds.low is not None and apart.bounds.low < 0  # the seeds' spread hides it
    welch = stats.ttest_ind(VALUES, other, equal_var=False).confidence_interval()
    assert (apart.bounds.low, apart.bounds.high) == pytest.approx(tuple(welch))
    one = inference.compare_paired([0.5], [0.25])
    assert one.p_value is None and one.units == "1 pair of seeds"


def test_two_runs_are_compared_instance_by_instance() -> None:
    """McNemar's: of 6 instances that one of them solved, A solved all; P = 2 / 2⁶."""
    a, b = [True] * 10 + [False] * 10 + [None], [True] * 4 + [False] * 16 + [True]
    found = inference.compare_tasks(a, b)
    assert found is not None and found.p_value == pytest.approx(2 / 64)
    assert found.bounds.value == pytest.approx(6 / 20) and found.bounds.high == pytest.approx(6 / 20)
    assert found.bounds.low == pytest.approx((2 * 0.025 ** (1 / 6) - 1) * 6 / 20)
    same = inference.compare_tasks(b[:20], b[:20])
    assert same is not None and same.p_value == 1
    assert same.bounds.high == pytest.approx(1 - 0.025 ** (1 / 20))  # none of 20: Clopper and Pearson
    assert inference.compare_tasks(a, b[:-1]) is None and inference.compare_tasks([], []) is None


def test_many_tests_are_adjusted() -> None:
    assert inference.adjust([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.04 * 4 / 3, 0.04 * 4 / 3, 0.5])
    assert inference.adjust([]) == []


def test_what_would_be_seen_is_seen_in_four_of_five_experiments() -> None:
    n, spread = 5, 0.1
    size = power.compute_detectable(spread / math.sqrt(n), n - 1)
    assert size is not None
    drawn = np.random.default_rng(0).normal(size, spread, (20_000, n))
    assert np.mean(stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)
    many = power.compute_detectable(1.0, 1e6)
    z = NormalDist().inv_cdf
    assert many == pytest.approx(z(0.975) + z(0.8), abs=1e-3)
    assert power.compute_detectable(0.0, 4) is None
    assert power.compute_detectable_by_episodes(0.5, 512) == pytest.approx(
        (z(0.975) + z(0.8)) * math.sqrt(0.5 / 512)
    )


def test_two_halves_of_a_cell_differ_by_its_noise() -> None:
    """Of normal values with spread s, means of n differ by 1.96 s √(2/n) at most, in 95 of 100 cases."""
    values = NormalDist().inv_cdf
    normal = [values((number + 0.5) / 200) for number in range(200)]
    assert power.compute_split_half_difference(normal) == pytest.approx(1.96 * math.sqrt(2 / 200), rel=0.1)
    assert power.compute_split_half_difference([0.1, 0.2, 0.3]) is None


@pytest.mark.parametrize(("share", "n"), [(0.5, 20), (0.02, 64), (0.3, 8)])
def test_coverage_of_one_run_is_the_sum_over_all_results(share: float, n: int) -> None:
    hits = [estimate_pass_at_k(n, 0, 1)]  # 0: a sum that begins with nothing
    for count in range(n + 1):
        interval = compute_wilson_interval(count, n)
        chance = math.comb(n, count) * share**count * (1 - share) ** (n - count)
        hits.append(chance if interval.low <= share <= interval.high else 0.0)
    assert power.compute_coverage_of_wilson(share, n) == pytest.approx(sum(hits))


def test_coverage_over_seeds_is_near_what_is_meant_where_values_are_normal_and_low_where_they_are_not() -> (
    None
):
    normal = power.estimate_coverage_of_mean([0.4, 0.5, 0.6, 0.45, 0.55], [512] * 5)
    assert normal is not None and normal == pytest.approx(0.95, abs=0.02)
    rare = power.estimate_coverage_of_mean([0.0, 0.0, 0.05], [16] * 3)
    assert rare is not None and rare < power.NOMINAL
    assert power.estimate_coverage_of_mean([0.5], [16]) is None


def test_a_bootstrap_of_three_seeds_is_too_narrow() -> None:
    """Of three values the resamples are distinct in ten ways; the interval holds the truth in about 3 of 4 cases."""
    few = power.estimate_coverage_of_interquartile([0.4, 0.5, 0.6], [512] * 3)
    many = power.estimate_coverage_of_interquartile(
        [0.4, 0.45, 0.48, 0.5, 0.5, 0.5, 0.52, 0.55, 0.6] * 3, [512] * 27
    )
    assert few is not None and many is not None and few < 0.85 < 0.9 < many
