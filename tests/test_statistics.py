"""The statistics against closed forms, and their intervals by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodebench.analysis.statistics import Interval, bootstrap_speedup, mean_interval, paired_difference

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


@pytest.mark.parametrize("what", ["difference", "speedup"])
def test_coverage(what: str) -> None:
    """Of 95 % intervals on made data, about 95 % hold the truth."""
    rng = np.random.default_rng(3)
    trials, held = 400, 0
    interval: Interval
    for _ in range(trials):
        if what == "difference":
            theirs = rng.random(150) < 0.5
            mine = np.where(rng.random(150) < 0.3, rng.random(150) < 0.4, theirs)
            interval, truth = paired_difference(mine, theirs), 0.3 * (0.4 - 0.5)
        else:
            tokens = rng.uniform(50, 250, (1, 80))
            base = tokens * rng.normal(0.02, 0.001, (1, 80))
            interval = bootstrap_speedup(tokens, base / rng.uniform(1, 3, (1, 80)), tokens, base)
            truth = 1 / (math.log(3) / 2)  # the mean of 1/u for u uniform on [1, 3]
        held += interval.low <= truth <= interval.high
    assert held / trials == pytest.approx(0.95, abs=0.03)
