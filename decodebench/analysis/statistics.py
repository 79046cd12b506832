"""Intervals and tests for scores and speeds. All intervals are 95 % ones unless told otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
SEED = 0  # bootstrap intervals are the same each time they are computed


@dataclass(frozen=True)
class Interval:
    """A value with the interval around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Interval):
    """A difference of mean scores on the same documents.

    Attributes:
        p_value: of McNemar's exact test; None where the scores are not all 0 or 1.
        n: how many documents were compared.
    """

    p_value: float | None
    n: int

    @property
    def significant(self) -> bool:
        """Whether the data support that there is a difference, at the 5 % level."""
        return self.low > 0 or self.high < 0 if self.p_value is None else self.p_value < 0.05


def mean_interval(mean: float, sd: float, n: int, confidence: float = 0.95) -> Interval:
    """The interval of a mean score: Wilson's for scores of 0 and 1, Student's t otherwise.

    Args:
        mean: of the scores.
        sd: their population standard deviation; sd² = mean·(1 − mean) exactly when all scores are 0 or 1.
        n: how many there are, at least 1.
        confidence: the interval's coverage.

    Returns:
        An interval without bounds (NaN) for a single score that is neither 0 nor 1.

    Source: E. B. Wilson (1927), "Probable inference, the law of succession, and statistical inference".
    """
    from scipy import stats

    if abs(sd**2 - mean * (1 - mean)) < 1e-9 and 0 <= mean <= 1:
        low, high = stats.binomtest(round(mean * n), n).proportion_ci(confidence, method="wilson")
        return Interval(mean, float(low), float(high))
    if n < 2:
        return Interval(mean, float("nan"), float("nan"))
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * sd / (n - 1) ** 0.5
    return Interval(mean, mean - half, mean + half)


def paired_difference(scores: "ArrayLike", baseline: "ArrayLike", confidence: float = 0.95) -> Difference:
    """The difference of two mean scores on the same documents, with a bootstrap interval over documents.

    Args:
        scores, baseline: one score for each document, in the same order; at least one.
        confidence: the interval's coverage.

    Source of the test: Q. McNemar (1947); exact form: under no difference, each document on which just one of the two
    is right is as likely to favour the one as the other. Interval: percentiles of the paired bootstrap (Efron, 1979).
    """
    import numpy as np
    from scipy import stats

    mine, theirs = np.asarray(scores, float), np.asarray(baseline, float)
    n = len(mine)
    # Documents with the same difference are alike: drawing how often each difference occurs is the same as drawing
    # documents, and cheap for scores that are 0 or 1.
    values, counts = np.unique(mine - theirs, return_counts=True)
    means = np.random.default_rng(SEED).multinomial(n, counts / n, size=10_000) @ values / n
    low, high = _percentiles(means, confidence)
    p_value = None
    if np.isin([mine, theirs], (0.0, 1.0)).all():
        better, worse = int((mine > theirs).sum()), int((mine < theirs).sum())
        p_value = float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0
    return Difference(float(np.mean(mine - theirs)), low, high, p_value, n)


def repeat_ratios(speeds: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Median, minimum and maximum of speed ÷ baseline speed, of the same interleaved repeat each.

    Args:
        speeds, baseline: tokens/s of each repeat, at least one and none of them 0.
    """
    ratios = [mine / theirs for mine, theirs in zip(speeds, baseline, strict=True)]
    return Interval(median(ratios), min(ratios), max(ratios))


def bootstrap_speedup(
    tokens: "ArrayLike",
    seconds: "ArrayLike",
    base_tokens: "ArrayLike",
    base_seconds: "ArrayLike",
    confidence: float = 0.95,
) -> Interval:
    """Speed-up as a ratio of sums, with a bootstrap interval over paired requests and repeats.

    A draw takes requests with replacement, the same ones for both runs, and repeats with replacement; its speed-up is
    the median over the drawn repeats of (tokens ÷ seconds) ÷ (baseline tokens ÷ baseline seconds), each of these
    summed over the drawn requests.

    Args:
        tokens, base_tokens: [repeats, requests], committed tokens.
        seconds, base_seconds: [repeats, requests], engine time that a request answers for.
        confidence: the interval's coverage.

    Returns:
        The speed-up, as the median over repeats, and its interval.
    """
    import numpy as np

    arrays = [np.asarray(array, float) for array in (tokens, seconds, base_tokens, base_seconds)]
    repeats, requests = arrays[0].shape
    rng = np.random.default_rng(SEED)

    def ratios(weights: "NDArray[np.float64]") -> "NDArray[np.float64]":  # [draws, requests] -> [draws, repeats]
        sums = [weights @ array.T for array in arrays]
        with np.errstate(divide="ignore", invalid="ignore"):
            return (sums[0] / sums[1]) / (sums[2] / sums[3])

    value = float(np.median(ratios(np.ones((1, requests)))))
    draws = []
    step = max(1, 4_000_000 // requests)  # bounds the memory of a chunk of draws to about 32 MB
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        weights = rng.multinomial(requests, np.full(requests, 1 / requests), size=size).astype(float)
        chosen = rng.integers(repeats, size=(size, repeats))
        draws.append(np.median(np.take_along_axis(ratios(weights), chosen, axis=1), axis=1))
    medians = np.concatenate(draws)
    low, high = _percentiles(medians[np.isfinite(medians)], confidence)
    return Interval(value, low, high)


def _percentiles(draws: "NDArray[np.float64]", confidence: float) -> tuple[float, float]:
    import numpy as np

    if not draws.size:
        return float("nan"), float("nan")
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
