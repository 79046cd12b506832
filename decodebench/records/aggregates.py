"""From the samples and timings of a run to the numbers that comparisons start from."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median, pstdev
from typing import Any

Sample = dict[str, Any]
Timing = dict[str, Any]

TIMES = ("seconds", "prefill_seconds", "decode_seconds", "draft_seconds")


def aggregate(samples: Sequence[Sample], timings: Sequence[Timing], headline: str | None) -> dict[str, Any]:
    """Summarise the complete repeats of a run.

    Quality and the counts of documents, failures and finish reasons come from the first repeat, since a repeat
    differs from the next in time only; tokens, passes and times come from all of them. Tokens are the committed ones,
    passes the target-model passes that a row took part in, prefill included.

    Args:
        samples: those of the repeats in `timings`; others are left out.
        timings: one for each complete repeat, in order; times in seconds, memory in bytes, `passes` of the engine.
        headline: the metric that stands for the task; None where there is no score.

    Returns:
        What `run.json` holds under "aggregates". A number that the run cannot give (no tokens, no score) is None.
        "sd" is the standard deviation over the documents. Percentiles interpolate linearly. Tokens/s over the repeats
        leave out interrupted ones if there are others: what a killed process was working on is lost, and so is the
        time that it took.
    """
    by_repeat: list[list[Sample]] = [[] for _ in timings]
    for sample in samples:
        if sample["repeat"] < len(timings):
            by_repeat[sample["repeat"]].append(sample)
    kept = [sample for repeat in by_repeat for sample in repeat]
    first = by_repeat[0] if by_repeat else []

    metrics = _metrics(first)
    scores = metrics.get(headline, []) if headline else []
    repeats = [_repeat(*pair) for pair in zip(by_repeat, timings, strict=True)]
    tokens = sum(repeat["tokens"] for repeat in repeats)
    passes = sum(repeat["passes"] for repeat in repeats)
    finish = Counter(sample["finish"] for sample in first)
    committed = Counter(count for sample in kept for count in sample.get("committed") or ())
    return {
        "documents": len({(sample["task"], sample["doc_id"]) for sample in first}),
        "failed_requests": finish["prompt_too_long"],
        "score": {
            "metric": headline,
            "value": fmean(scores) if scores else None,
            "sd": pstdev(scores) if scores else None,
            "n": len(scores),
        },
        "metrics": {name: fmean(values) for name, values in metrics.items()},
        "tokens": tokens,
        "passes": passes,
        "tokens_per_pass": _ratio(tokens, passes),
        "repeats": repeats,
        "tokens_per_second": _spread(repeats),
        "latency": _percentiles(sample.get("latency") for sample in kept if sample["finish"] != "prompt_too_long"),
        "ttft": _percentiles(sample.get("ttft") for sample in kept if sample["finish"] != "prompt_too_long"),
        "committed_histogram": {str(count): committed[count] for count in sorted(committed)},
        "finish": dict(sorted(finish.items())),
        "ar_logprob": _ar_logprob(first),
    }


def mean_ar_logprob(sample: Sample) -> float | None:
    """Mean log-probability (nats) of an output's tokens in the model's autoregressive mode; None if not recorded."""
    known = [value for value in map(number, sample.get("ar_logprobs") or ()) if value is not None]
    return fmean(known) if known else None


def _ar_logprob(samples: Iterable[Sample]) -> dict[str, Any] | None:
    """Over the outputs that were scored, each counting alike; None where none was."""
    if not any("ar_logprobs" in sample for sample in samples):
        return None
    means = [value for value in map(mean_ar_logprob, samples) if value is not None]
    return {"value": fmean(means), "sd": pstdev(means), "n": len(means)} if means else None


def token_count(sample: Sample) -> int:
    """Tokens that were committed for a request; generators that keep no trace are counted by their output."""
    return sum(sample.get("committed") or ()) or len(sample.get("tokens") or ())


def number(value: Any) -> float | None:
    """`value` as a finite float, or None if it is not one (null, NaN, a list …)."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _metrics(samples: Iterable[Sample]) -> dict[str, list[float]]:
    """For each metric the values of the documents that have it."""
    # a document that was asked several times may have had an answer only once
    scores = {(sample["task"], sample["doc_id"]): sample["scores"] for sample in samples if sample.get("scores")}
    values: defaultdict[str, list[float]] = defaultdict(list)
    for document in scores.values():
        for name, value in document.items():
            if (score := number(value)) is not None:
                values[name].append(score)
    return dict(sorted(values.items()))


def _repeat(samples: Sequence[Sample], timing: Timing) -> dict[str, Any]:
    tokens = sum(map(token_count, samples))
    return {
        "tokens": tokens,
        "passes": sum(sample.get("passes") or 0 for sample in samples),
        "engine_passes": timing.get("passes"),
        "tokens_per_second": _ratio(tokens, number(timing.get("seconds"))),
        **{name: number(timing.get(name)) for name in TIMES},
        "decoding": timing.get("decoding"),
        "peak_memory_bytes": timing.get("peak_memory_bytes"),
        "interrupted": bool(timing.get("interrupted")),
    }


def _spread(repeats: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    trusted = [repeat for repeat in repeats if not repeat["interrupted"]] or repeats
    speeds = [repeat["tokens_per_second"] for repeat in trusted if repeat["tokens_per_second"] is not None]
    if not speeds:
        return {"median": None, "min": None, "max": None}
    return {"median": median(speeds), "min": min(speeds), "max": max(speeds)}


def _percentiles(values: Iterable[Any]) -> dict[str, float | None]:
    ordered = sorted(value for value in map(number, values) if value is not None)
    return {f"p{percent}": _quantile(ordered, percent / 100) for percent in (50, 95, 99)}


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def _ratio(numerator: float, denominator: float | None) -> float | None:
    return numerator / denominator if denominator else None
