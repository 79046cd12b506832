"""Intervals and tests for scores and speeds. All intervals are 95 % ones unless told otherwise."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000  # of requests and documents
DRAWS = 5000  # of documents that are right or wrong, which are cheaper
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
    from scipy import special

    if abs(sd**2 - mean * (1 - mean)) < 1e-9 and 0 <= mean <= 1:
        z = float(special.ndtri((1 + confidence) / 2))
        middle = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(max(mean * (1 - mean), 0.0) / n + z**2 / (4 * n**2))
        return Interval(mean, max(0.0, min(middle - half, mean)), min(1.0, max(middle + half, mean)))
    if n < 2:
        return Interval(mean, float("nan"), float("nan"))
    half = float(special.stdtrit(n - 1, (1 + confidence) / 2)) * sd / (n - 1) ** 0.5
    return Interval(mean, mean - half, mean + half)


def paired_difference(scores: "ArrayLike", baseline: "ArrayLike", confidence: float = 0.95) -> Difference:
    """The difference of two mean scores on the same documents, with a bootstrap interval over documents.

    Args:
        scores, baseline: one score for each document, in the same order; at least one.
        confidence: the interval's coverage.

    Returns:
        A difference without bounds (NaN) for a single document whose scores are neither 0 nor 1.

    Source of the test: Q. McNemar (1947); exact form: under no difference, each document on which just one of the two
    is right is as likely to favour the one as the other. Interval: percentiles of the paired bootstrap (Efron, 1979),
    expanded (see `_percentiles`). For scores of 0 and 1 the sample that is drawn from has half a document more that
    favours each side (A. Agresti and Y. Min, 2005, add as much in closed form), and no more is needed: without it,
    twenty documents on which nothing differs would "prove" a difference of exactly 0.
    """
    import numpy as np
    from scipy import special

    mine, theirs = np.asarray(scores, float), np.asarray(baseline, float)
    n = len(mine)
    value, p_value = float(np.mean(mine - theirs)), None
    sample: int | None = n
    if np.isin([mine, theirs], (0.0, 1.0)).all():
        better, worse = int((mine > theirs).sum()), int((mine < theirs).sum())
        p_value = min(1.0, 2 * float(special.bdtr(min(better, worse), better + worse, 0.5)))
        # documents with the same difference are alike: how often each difference is drawn is all that matters
        counts = np.array([better + 0.5, n - better - worse, worse + 0.5])
        drawn = np.random.default_rng(SEED).multinomial(n + 1, counts / (n + 1), size=DRAWS)
        means, sample = (drawn[:, 0] - drawn[:, 2]) / (n + 1), None
    else:
        means = np.concatenate([weights @ (mine - theirs) / n for weights in _draws(n)])
    low, high = _percentiles(means, confidence, sample)
    return Difference(value, min(low, value), max(high, value), p_value, n)


@dataclass(frozen=True)
class Noise:
    """How much speed-ups vary from repeat to repeat.

    Attributes:
        variance: of the logarithm of a speed-up.
        freedom: the degrees of freedom with which it is known.
    """

    variance: float
    freedom: float


def pooled_noise(speedups: Sequence[Sequence[Sequence[float]]]) -> Noise | None:
    """The noise between repeats, from all that was measured on one machine: two or three repeats alone tell little.

    Args:
        speedups: for each baseline, for each run that is compared with it, its speed-up in each repeat.

    Returns:
        None where nothing was repeated. Runs with a common baseline share its noise: half the variance of each, if
        all are alike, so that the correlation of two estimates of it is 1/4, and K of them are worth
        K ÷ (1 + (K − 1)/4).
    """
    import numpy as np

    squares = known = freedom = 0.0
    for runs in speedups:
        logs = [np.log(ratios) for ratios in runs if len(ratios) > 1]
        degrees = sum(len(ratios) - 1 for ratios in logs)
        squares += sum(float(((ratios - ratios.mean()) ** 2).sum()) for ratios in logs)
        known += degrees
        freedom += degrees / (1 + (len(logs) - 1) / 4) if logs else 0
    return Noise(squares / known, freedom) if known else None


def bootstrap_speedup(
    tokens: "ArrayLike",
    seconds: "ArrayLike",
    base_tokens: "ArrayLike",
    base_seconds: "ArrayLike",
    noise: Noise | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Speed-up as a ratio of sums, with a bootstrap interval over paired requests and repeats.

    A draw takes requests with replacement, the same ones for both runs and in all repeats; its speed-up is the median
    over the repeats of (tokens ÷ seconds) ÷ (baseline tokens ÷ baseline seconds), each of these summed over the drawn
    requests. Repeats are too few to be drawn from: two or three of them drawn again never lie as far apart as new ones
    may. What they add is drawn from a normal distribution, with the standard error that the noise between repeats gives
    their median (at most √(π/2) times that of their mean), and Student's t widens the interval for how little is known
    of that noise, with degrees of freedom after B. L. Welch (1947) and F. E. Satterthwaite (1946). Where nothing is
    known of it, the interval is that of the choice of requests alone.

    Args:
        tokens, base_tokens: [repeats, requests], committed tokens.
        seconds, base_seconds: [repeats, requests], engine time that a request answers for.
        noise: between repeats; None takes that of these repeats alone, if there are several.
        confidence: the interval's coverage.

    Returns:
        The speed-up, as the median over repeats, and its interval; no bounds (NaN) for a single request.
    """
    import numpy as np
    from scipy import special

    arrays = [np.asarray(array, float) for array in (tokens, seconds, base_tokens, base_seconds)]
    repeats, requests = arrays[0].shape
    columns = np.concatenate(arrays).T  # [requests, 4 · repeats]

    def ratios(weights: "NDArray[np.float64]") -> "NDArray[np.float64]":  # [draws, requests] -> [draws, repeats]
        mine, time, theirs, base_time = np.split(weights @ columns, 4, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (mine / time) / (theirs / base_time)

    whole = ratios(np.ones((1, requests)))[0]
    drawn = np.concatenate([ratios(weights) for weights in _draws(requests)])
    value, medians = float(np.median(whole)), np.median(drawn, axis=1)
    logs = np.log(medians[np.isfinite(medians) & (medians > 0)])
    if not logs.size or requests < 2:
        return Interval(value, math.nan, math.nan)
    noise = noise or pooled_noise([[list(whole)]])
    freedom = requests - 1.0
    if noise and noise.variance:
        choice, error = float(np.var(logs)), noise.variance / repeats * (1 if repeats < 3 else math.pi / 2)
        freedom = (choice + error) ** 2 / (choice**2 / (requests - 1) + error**2 / noise.freedom)
        logs = logs + error**0.5 * np.random.default_rng(SEED).standard_normal(len(logs))
    tails = (1 - confidence) / 2, (1 + confidence) / 2
    wider = (requests / (requests - 1)) ** 0.5 * special.stdtrit(freedom, tails[1]) / special.ndtri(tails[1])
    low, high = value * np.exp(wider * (np.quantile(logs, tails) - math.log(value)))
    return Interval(value, float(low), float(high))


def _draws(requests: int) -> "Iterator[NDArray[np.float64]]":
    """How often each request, or document, is in each of `RESAMPLES` draws with replacement: chunks of rows."""
    step = max(1, min(RESAMPLES, 4_000_000 // requests))  # bounds the memory of a chunk to about 32 MB
    for start in range(0, RESAMPLES, step):
        yield _weights(requests, start, min(step, RESAMPLES - start))


@lru_cache(maxsize=2)  # runs of a task have equally many requests
def _weights(requests: int, start: int, draws: int) -> "NDArray[np.float64]":
    """How often each request is in each of the draws from number `start` on, [draws, requests]."""
    import numpy as np

    rng = np.random.default_rng([SEED, start])
    return rng.multinomial(requests, np.full(requests, 1 / requests), size=draws).astype(float)


def _percentiles(draws: "NDArray[np.float64]", confidence: float, n: int | None) -> tuple[float, float]:
    """The interval that bootstrap draws give: their percentiles, expanded for a small sample of `n` unless it is None.

    A sample's own spread is a little smaller than what it was drawn from, and unknown: hence √(n/(n − 1)), and
    Student's t in place of the normal distribution.

    Source: T. C. Hesterberg (2015), "What teachers should know about the bootstrap", section on expanded percentiles.
    """
    import numpy as np
    from scipy import special

    tail = (1 - confidence) / 2
    if n == 1:
        return math.nan, math.nan
    if n is not None:
        tail = special.ndtr((n / (n - 1)) ** 0.5 * special.stdtrit(n - 1, tail))
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)
