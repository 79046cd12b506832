"""The statistics against closed forms, and their intervals by simulation."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodebench.analysis.statistics import (
    Interval,
    bootstrap_speedup,
    mean_interval,
    paired_difference,
    pooled_noise,
)

bits = st.integers(0, 1).map(float)


def wilson(right: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    p = right / n
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return middle - half, middle + half


@settings(deadline=None)
@given(st.lists(bits, min_size=1, max_size=200))
def test_wilson_interval(scores: list[float]) -> None:
    interval = mean_interval(float(np.mean(scores)), float(np.std(scores)), len(scores))
    assert (interval.low, interval.high) == pytest.approx(wilson(int(sum(scores)), len(scores)), abs=1e-12)
    assert interval.low <= interval.value <= interval.high


def test_interval_of_other_scores_is_students() -> None:
    from scipy import stats

    scores = np.array([0.2, 0.5, 0.9, 0.4, 0.7])
    low, high = stats.ttest_1samp(scores, 0).confidence_interval(0.95)
    interval = mean_interval(scores.mean(), scores.std(), len(scores))
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert math.isnan(mean_interval(0.3, 0.0, 1).high)


def binomial_two_sided(better: int, worse: int) -> float:
    n = better + worse
    tail = sum(math.comb(n, k) for k in range(min(better, worse) + 1)) / 2**n
    return min(1.0, 2 * tail)


@settings(deadline=None)
@given(st.lists(st.tuples(bits, bits), min_size=1, max_size=60))
def test_mcnemar(pairs: list[tuple[float, float]]) -> None:
    mine, theirs = (np.array(side) for side in zip(*pairs, strict=True))
    result = paired_difference(mine, theirs)
    better, worse = int(((mine == 1) & (theirs == 0)).sum()), int(((mine == 0) & (theirs == 1)).sum())
    assert result.p_value == pytest.approx(binomial_two_sided(better, worse))
    assert result.value == pytest.approx((better - worse) / len(pairs))
    assert result.low <= result.value + 1e-12
    assert result.high >= result.value - 1e-12
    assert result.n == len(pairs)


def test_paired_interval_is_near_the_normal_one() -> None:
    rng = np.random.default_rng(1)
    theirs = rng.integers(0, 2, 400).astype(float)
    mine = np.where(rng.random(400) < 0.2, 1 - theirs, theirs)
    result = paired_difference(mine, theirs)
    spread = 1.96 * (mine - theirs).std() / 20
    assert (result.low, result.high) == pytest.approx((result.value - spread, result.value + spread), abs=0.01)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 25), st.integers(0, 25))
def test_tests_and_intervals_are_scipys_and_agrestis(same: int, better: int, worse: int) -> None:
    """McNemar's test against scipy; the interval against Agresti and Min's closed form."""
    from scipy import stats

    mine = np.array([1.0] * (same + better) + [0.0] * worse)
    theirs = np.array([1.0] * same + [0.0] * better + [1.0] * worse)
    result = paired_difference(mine, theirs)
    if better + worse:
        assert result.p_value == pytest.approx(stats.binomtest(better, better + worse).pvalue)
    n = len(mine) + 1
    p, q = (better + 0.5) / n, (worse + 0.5) / n
    half = 1.96 * math.sqrt((p + q - (p - q) ** 2) / n)
    if min(same, better, worse) > 8:  # where the normal distribution is near enough
        assert (result.low, result.high) == pytest.approx((p - q - half, p - q + half), abs=0.025)
    low, high = stats.binomtest(better, len(mine)).proportion_ci(method="wilson")
    share = (mine > theirs).astype(float)
    interval = mean_interval(share.mean(), share.std(), len(share))
    assert (interval.low, interval.high) == pytest.approx((low, high))


def test_twenty_equal_documents_prove_nothing() -> None:
    result = paired_difference([1.0] * 20, [1.0] * 20)
    assert result.low < -0.05 < 0 < 0.05 < result.high


def test_few_documents_support_no_difference() -> None:
    assert not paired_difference([0, 0, 0, 1], [1, 1, 1, 1]).significant
    assert paired_difference([0.0] * 20, [1.0] * 20).significant
    assert paired_difference([0.0], [0.0]).p_value == 1.0


def test_scores_that_are_not_right_or_wrong_go_by_the_interval() -> None:
    rng = np.random.default_rng(2)
    theirs = rng.random(200)
    assert paired_difference(theirs + 0.1, theirs).p_value is None
    assert paired_difference(theirs + 0.1 + rng.normal(0, 0.1, 200), theirs).significant
    assert not paired_difference(theirs + rng.normal(0, 0.1, 200), theirs).significant


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(2, 30), st.floats(0.5, 4), st.integers(0, 99))
def test_a_constant_speedup_has_no_spread(repeats: int, requests: int, factor: float, seed: int) -> None:
    tokens = np.random.default_rng(seed).uniform(1, 9, (repeats, requests))
    seconds = np.random.default_rng(seed + 1).uniform(1, 9, (repeats, requests))
    result = bootstrap_speedup(tokens, seconds / factor, tokens, seconds)
    assert (result.value, result.low, result.high) == pytest.approx((factor,) * 3)


def test_speedup_is_a_ratio_of_sums() -> None:
    result = bootstrap_speedup([[100, 1]], [[10, 1]], [[100, 1]], [[20, 1]])
    assert result.value == pytest.approx((101 / 11) / (101 / 21))
    assert result.low < result.value < result.high


def test_requests_without_time_give_no_interval() -> None:
    result = bootstrap_speedup([[0.0]], [[0.0]], [[0.0]], [[0.0]])
    assert math.isnan(result.low)


def test_the_noise_of_one_run_is_its_variance() -> None:
    from scipy import stats

    ratios = [1.1, 1.3, 1.2, 1.15]
    noise = pooled_noise([[ratios]])
    assert noise is not None
    assert (noise.variance, noise.freedom) == pytest.approx((np.var(np.log(ratios), ddof=1), 3))
    # with nothing to choose among requests, the interval is Student's around the median
    tokens = np.ones((4, 30))
    seconds = np.repeat(1 / np.array(ratios)[:, None], 30, axis=1)
    result = bootstrap_speedup(tokens, seconds, tokens, tokens)
    half = stats.t.ppf(0.975, 3) * math.sqrt(noise.variance / 4 * math.pi / 2)
    assert math.log(result.high / result.low) == pytest.approx(2 * half, rel=0.05)


def test_noise_is_pooled() -> None:
    assert pooled_noise([]) is None
    assert pooled_noise([[[1.2]], [[1.0], [1.3]]]) is None
    noise = pooled_noise([[[1.0, 2.0], [1.0, 2.0]], [[1.0, 1.0, 1.0]]])
    assert noise is not None
    assert noise.variance == pytest.approx(2 * np.var(np.log([1, 2]), ddof=1) / 4)
    assert noise.freedom == pytest.approx(2 / 1.25 + 2)


def test_pooled_noise_is_known_as_well_as_it_says() -> None:
    """The variance of a variance with f degrees of freedom is 2/f of its square."""
    rng = np.random.default_rng(4)
    found = []
    for _ in range(4000):
        base = rng.normal(0, 0.03, 3)
        noise = pooled_noise([[list(np.exp(rng.normal(0, 0.03, 3) - base)) for _ in range(5)]])
        assert noise is not None
        found.append(noise.variance)
    assert np.mean(found) == pytest.approx(2 * 0.03**2, rel=0.05)
    assert noise is not None
    assert 2 / (np.std(found) / np.mean(found)) ** 2 == pytest.approx(noise.freedom, rel=0.15)


def right_or_wrong(rng: np.random.Generator, n: int) -> tuple[Interval, float]:
    scores = rng.random(n) < 0.3
    return mean_interval(scores.mean(), scores.std(), n), 0.3


def marks(rng: np.random.Generator, n: int) -> tuple[Interval, float]:
    scores = rng.uniform(0, 1, n)
    return mean_interval(scores.mean(), scores.std(), n), 0.5


def differences(rng: np.random.Generator, n: int) -> tuple[Interval, float]:
    theirs = rng.random(n) < 0.5
    mine = np.where(rng.random(n) < 0.3, rng.random(n) < 0.4, theirs)
    return paired_difference(mine, theirs), 0.3 * (0.4 - 0.5)


def log_probabilities(rng: np.random.Generator, n: int) -> tuple[Interval, float]:
    theirs = rng.normal(-1, 0.5, n)
    return paired_difference(theirs - rng.gamma(2, 0.1, n), theirs), -0.2


def speedups(rng: np.random.Generator, n: int, repeats: int = 1, runs: int = 1) -> tuple[Interval, float]:
    """Of the first of some runs beside one baseline, with 3 % noise from repeat to repeat, if there are several."""
    noise = 0.03 if repeats > 1 else 0.0
    tokens = np.tile(rng.uniform(50, 250, n), (repeats, 1))
    base = 0.02 * tokens * np.exp(rng.normal(0, noise, (repeats, 1)))
    mine = [0.02 * tokens / rng.uniform(1, 3, n) * np.exp(rng.normal(0, noise, (repeats, 1))) for _ in range(runs)]
    pooled = pooled_noise([[list(base.sum(1) / one.sum(1)) for one in mine]])
    return bootstrap_speedup(tokens, mine[0], tokens, base, pooled), 1 / (math.log(3) / 2)  # 1 ÷ the mean of 1/u


@pytest.mark.parametrize(
    ("make", "n", "trials"),
    [
        (right_or_wrong, 64, 4000),
        (marks, 20, 4000),
        (differences, 64, 1000),
        (differences, 250, 1000),
        (log_probabilities, 40, 600),
        (speedups, 60, 1200),
        (partial(speedups, repeats=2), 60, 1000),
        (partial(speedups, repeats=3), 40, 1000),
        (partial(speedups, repeats=3, runs=6), 40, 1000),
    ],
)
def test_coverage(make: Callable[[np.random.Generator, int], tuple[Interval, float]], n: int, trials: int) -> None:
    """Of 95 % intervals on made data, 95 % ± 2 hold the truth."""
    rng = np.random.default_rng(11)
    made = [make(rng, n) for _ in range(trials)]
    held = sum(interval.low <= truth <= interval.high for interval, truth in made)
    assert held / trials == pytest.approx(0.95, abs=0.02)
