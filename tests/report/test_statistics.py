"""Published numbers, identities, and the coverage of the intervals by simulation."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import combinations

import pytest

from lit_agentrl.report.statistics import (
    Interval,
    compute_clustered_mean_interval,
    compute_clustered_share_interval,
    compute_group_means,
    compute_mean_interval,
    compute_share_interval,
    compute_t_quantile,
    compute_wilson_interval,
    estimate_pass_at_k,
    normalise,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_newcombes_table(successes: int, n: int, low: float, high: float) -> None:
    # Newcombe 1998, Stat. Med. 17:857, table I, method 3
    interval = compute_wilson_interval(successes, n)
    assert interval.mean == successes / n and interval.n == n
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


def test_wilson_is_symmetric_and_exact_at_its_ends() -> None:
    few, many = compute_wilson_interval(3, 17), compute_wilson_interval(14, 17)
    assert few.low == pytest.approx(1 - many.high) and few.high == pytest.approx(1 - many.low)
    assert compute_wilson_interval(0, 7).low == 0.0 and compute_wilson_interval(7, 7).high == 1.0
    assert compute_wilson_interval(50, 100, 0.99).low < compute_wilson_interval(50, 100, 0.9).low


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_t_quantiles_are_those_of_the_printed_table(freedom: int, expected: float) -> None:
    assert round(compute_t_quantile(0.95, freedom), 3) == expected


def test_t_quantile_in_closed_form_and_across_its_two_formulas() -> None:
    assert compute_t_quantile(0.5, 1) == pytest.approx(1.0)  # the quartile of the Cauchy distribution
    assert compute_t_quantile(0.99, 2) == pytest.approx(0.99 * math.sqrt(2 / (1 - 0.99**2)))
    assert compute_t_quantile(0.95, 1001) == pytest.approx(compute_t_quantile(0.95, 1000), abs=2e-5)
    assert compute_t_quantile(0.95, 10**6) == pytest.approx(1.959966, abs=1e-5)


def test_mean_interval_by_hand() -> None:
    # mean 3, s = sqrt(2.5), t_4 = 2.776
    interval = compute_mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval.mean == 3.0 and interval.n == 5
    assert interval.high - 3.0 == pytest.approx(2.7764451 * math.sqrt(2.5 / 5), rel=1e-6)
    assert interval.low + interval.high == pytest.approx(6.0)
    assert compute_mean_interval([7.0]) == Interval(7.0, -math.inf, math.inf, 1)


def test_clusters_of_one_are_no_clusters() -> None:
    values = [0.5, -1.0, 2.0, 0.25]
    assert compute_clustered_mean_interval(values, range(4)) == compute_mean_interval(values)
    assert compute_clustered_share_interval([True, False, True, True], range(4)) == compute_wilson_interval(
        3, 4
    )


def test_copies_of_an_episode_add_no_evidence() -> None:
    successes, prompts = [True, False, True, True, False, False, True, False], list(range(8))
    copied = compute_clustered_share_interval(successes * 16, prompts * 16)
    assert copied.n == 8 and copied.mean == 0.5
    once = compute_wilson_interval(4, 8)
    assert copied.high - copied.low >= once.high - once.low
    assert compute_clustered_mean_interval([1.0, 2.0] * 50, [0, 1] * 50) == compute_mean_interval([1.0, 2.0])


def test_members_that_differ_within_a_prompt_add_evidence() -> None:
    groups = [g for g in range(20) for _ in range(8)]
    by_prompt = compute_clustered_share_interval([g % 2 == 0 for g in groups], groups)
    noise = random.Random(0)
    by_member = compute_clustered_share_interval([noise.random() < 0.5 for _ in groups], groups)
    balanced = compute_clustered_share_interval([i % 2 == 0 for i in range(160)], groups)
    widths = [interval.high - interval.low for interval in (balanced, by_member, by_prompt)]
    assert widths[0] <= widths[1] < 0.6 * widths[2]
    nearly = compute_clustered_share_interval([i % 2 == 0 or i == 1 for i in range(160)], groups)
    assert nearly.high - nearly.low == pytest.approx(widths[0], rel=0.01)  # never more than all episodes
    # as wide as Wilson's at 160 episodes, but for t with 19 degrees of freedom instead of z
    plain = compute_wilson_interval(80, 160)
    assert widths[0] == pytest.approx(
        (plain.high - plain.low) * compute_t_quantile(0.95, 19) / 1.96, rel=0.01
    )


def test_an_all_successful_validation_is_not_certain() -> None:
    interval = compute_clustered_share_interval([True] * 32, [g for g in range(8) for _ in range(4)])
    assert interval.mean == interval.high == 1.0 and 0.5 < interval.low < 0.7


def test_shares_stay_within_0_and_1_and_cover() -> None:
    for shares in ([1.0] * 15 + [0.5], [0.0] * 30 + [0.02], [0.99, 1.0]):
        interval = compute_share_interval(shares, 8 * len(shares))
        assert 0 <= interval.low < interval.mean < interval.high <= 1 and interval.n == len(shares)
        assert (
            compute_mean_interval(shares).high > 1 or compute_mean_interval(shares).low < 0
        )  # as Student's does not

    def best_of_two(noise: random.Random) -> tuple[Interval, float]:
        # Beta(1, 1) difficulties: pass@2 is 1 - E (1 - p)^2 = 2 / 3
        solved = [sum(noise.random() < p for _ in range(4)) for p in (noise.random() for _ in range(24))]
        return compute_share_interval([estimate_pass_at_k(4, each, 2) for each in solved], 96), 2 / 3

    assert coverage(best_of_two, 600) == pytest.approx(0.95, abs=0.03)


def test_group_means_count_each_prompt_once() -> None:
    assert compute_group_means([1.0, 0.0, 0.0, 5.0], [7, 3, 7, 3]) == [0.5, 2.5]
    with pytest.raises(ValueError):
        compute_group_means([1.0], [1, 2])


def coverage(draw: Callable[[random.Random], tuple[Interval, float]], runs: int = 1500) -> float:
    noise = random.Random(1)
    hits = [interval.low <= truth <= interval.high for interval, truth in (draw(noise) for _ in range(runs))]
    return sum(hits) / runs


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    def share(noise: random.Random) -> tuple[Interval, float]:
        return compute_wilson_interval(sum(noise.random() < 0.3 for _ in range(64)), 64), 0.3

    def mean(noise: random.Random) -> tuple[Interval, float]:
        return compute_mean_interval([noise.gauss(2.0, 3.0) for _ in range(5)]), 2.0

    for draw in (share, mean):
        assert coverage(draw) == pytest.approx(0.95, abs=0.02)


def test_only_the_clustered_interval_covers_when_prompts_are_shared() -> None:
    groups = [g for g in range(16) for _ in range(8)]

    def successes(noise: random.Random) -> list[bool]:
        # prompts differ in difficulty, as mazes do: Beta(1, 1) has mean 0.5
        return [noise.random() < p for p in (noise.random() for _ in range(16)) for _ in range(8)]

    def clustered(noise: random.Random) -> tuple[Interval, float]:
        return compute_clustered_share_interval(successes(noise), groups), 0.5

    def naive(noise: random.Random) -> tuple[Interval, float]:
        return compute_wilson_interval(sum(successes(noise)), 128), 0.5

    def mean(noise: random.Random) -> tuple[Interval, float]:
        return compute_clustered_mean_interval([float(s) for s in successes(noise)], groups), 0.5

    assert coverage(clustered, 800) == pytest.approx(0.95, abs=0.025)
    assert coverage(mean, 800) == pytest.approx(0.95, abs=0.025)
    assert coverage(naive, 800) < 0.85


def test_pass_at_k_is_the_share_of_subsets_with_a_success() -> None:
    for n, successes in ((5, 2), (6, 0), (4, 4), (7, 1)):
        outcomes = [i < successes for i in range(n)]
        for k in range(1, n + 1):
            subsets = list(combinations(outcomes, k))
            assert estimate_pass_at_k(n, successes, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert estimate_pass_at_k(200, 30, 1) == pytest.approx(0.15)


def test_normalised_stands_between_chance_and_oracle() -> None:
    assert normalise(0.1, 0.1, 0.9) == 0 and normalise(0.9, 0.1, 0.9) == 1
    assert normalise(0.5, 0.1, 0.9) == pytest.approx(0.5) and normalise(0.02, 0.1, 0.9) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compute_wilson_interval(3, 2), "successes=3 of n=2"),
        (lambda: compute_wilson_interval(0, 0), "n=0"),
        (lambda: compute_wilson_interval(-1, 2), "successes=-1"),
        (lambda: compute_wilson_interval(1, 2, 95), "confidence=95"),
        (lambda: compute_mean_interval([]), "at least one"),
        (lambda: compute_mean_interval([1.0], 0.0), "confidence=0.0"),
        (lambda: compute_clustered_share_interval([], []), "at least one"),
        (lambda: compute_share_interval([], 0), "at least one"),
        (lambda: compute_share_interval([0.5, 1.5], 4), "2 shares from 0.5 to 1.5"),
        (lambda: compute_share_interval([0.5, 0.5], 1), "num_episodes=1 of 2"),
        (lambda: compute_t_quantile(0.95, 0), "freedom=0"),
        (lambda: estimate_pass_at_k(3, 1, 4), "k=4"),
        (lambda: estimate_pass_at_k(3, 1, 0), "k=0"),
        (lambda: normalise(0.5, 0.9, 0.9), "oracle=0.9 is not above chance=0.9"),
    ],
)
def test_impossible_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
