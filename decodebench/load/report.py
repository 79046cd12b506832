"""What a service is measured by, from what became of its requests and from its passes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from decodebench.load.drive import Outcome
from decodebench.load.policies import Target

PERCENTILES = (50, 95, 99)
GONE = ("refused", "cancelled", "deadline", "prompt_too_long", "failed")


def measure(
    outcomes: Sequence[Outcome], passes: Sequence[Mapping[str, Any]], begun: float, duration: float, target: Target
) -> dict[str, Any]:
    """The numbers of one repeat.

    Args:
        outcomes: of all requests that were due.
        passes: as the trace has them.
        begun: when the load began.
        duration: seconds in which requests arrived.
        target: what a good request meets.

    Returns:
        "offered", "finished" and "good" count requests, as do the reasons for which others were not finished;
        "offered_rate" and "goodput" are per second of the duration; "attainment" is the share of good ones among all
        that were offered and not cancelled by their clients. "tokens_per_second" and "mean_rows" are over the duration
        and leave out what comes after it, while the rest is drained. Percentiles (seconds) are over finished requests,
        from the moment at which each was due. "tau" is the mean over rows and passes of the duration, None where the
        method has none. What comes from passes is None for generators and servers that tell of none. "late"
        is how much later than due a request was sent, at most (seconds).
    """
    finish = Counter(outcome.finish for outcome in outcomes)
    good = sum(outcome.meets(target.latency, target.per_token) for outcome in outcomes)
    asked = len(outcomes) - finish["cancelled"]
    inside = [each for each in passes if each["t"] <= duration]
    rows = sum(each["rows"] for each in inside)
    taus = [(each["tau"], each["rows"]) for each in inside if each["tau"] is not None]
    return {
        "offered": len(outcomes),
        "offered_rate": len(outcomes) / duration,
        "finished": sum(outcome.finished for outcome in outcomes),
        "good": good,
        "goodput": good / duration,
        "attainment": good / asked if asked else None,
        **{reason: finish[reason] for reason in GONE},
        "tokens_per_second": sum(each["tokens"] for each in inside) / duration if passes else None,
        "mean_rows": rows / len(inside) if inside else None,
        "max_waiting": max(each["waiting"] for each in passes) if passes else None,
        "latency": percentiles(outcome.latency for outcome in outcomes),
        "ttft": percentiles(outcome.ttft for outcome in outcomes if outcome.finished),
        "per_token": percentiles(outcome.per_token for outcome in outcomes),
        "tau": sum(_mean(tau) * n for tau, n in taus) / sum(n for _, n in taus) if taus else None,
        "late": max((outcome.sent - outcome.due for outcome in outcomes), default=0.0),
        "seconds": max((outcome.ended for outcome in outcomes), default=begun) - begun,
    }


def percentiles(values: Iterable[float | None]) -> dict[str, float | None]:
    """p50, p95 and p99 of what is known, interpolated linearly; None of nothing."""
    import numpy as np

    known = [value for value in values if value is not None]
    return {f"p{p}": float(np.percentile(known, p)) if known else None for p in PERCENTILES}


def _mean(tau: float | Sequence[float]) -> float:
    return tau if isinstance(tau, float | int) else sum(tau) / len(tau)
