"""The comparison of runs as a table of numbers: one row for each task, batch size and setting of a method."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from decodebench.analysis.baselines import find_baselines, warn_of_differences
from decodebench.analysis.labels import labels, natural
from decodebench.analysis.load import Run
from decodebench.analysis.paired import compare_requests, machine, noise_by_machine, speedup
from decodebench.analysis.selection import pareto
from decodebench.analysis.statistics import mean_interval
from decodebench.records.aggregates import number

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    *("task", "batch_size", "label", "series", "family", "method", "tau", "model", "run", "baseline", "is_baseline"),
    *("documents", "failed_requests", "metric", "score", "score_low", "score_high"),
    *("difference", "difference_low", "difference_high", "p_value", "significant", "paired"),
    *("equal_outputs", "equal_tokens", "first_difference", "ar_logprob", "ar_logprob_low", "ar_logprob_high"),
    *("ar_logprob_difference", "ar_logprob_difference_low", "ar_logprob_difference_high"),
    *("tokens_per_pass", "repeats", "tokens_per_second", "tokens_per_second_min", "tokens_per_second_max"),
    "draft_share",
    *("speedup", "speedup_min", "speedup_max", "speedup_low", "speedup_high"),
    *("latency_p50", "latency_p95", "latency_p99", "ttft_p50", "ttft_p95", "ttft_p99", "peak_memory_bytes", "pareto"),
]


def compare_runs(runs: Sequence[Run], baseline: str = "ar", *, paired: bool = True) -> "pd.DataFrame":
    """Compare runs with their baselines; doubts are logged as warnings that name the runs.

    Args:
        runs: what `load_runs` gives.
        baseline: a method's name, or the label of one of its settings.
        paired: also compute what needs the samples: differences, equal outputs, intervals of speed-ups.

    Returns:
        A frame with `COLUMNS`. `series` is the label without τ, `family` the label without τ and cache mode. Scores
        and differences are shares (not percent), times in seconds, memory in bytes; `_low` and `_high` bound 95 %
        intervals, `_min` and `_max` are over the repeats; `significant` says whether the data support the difference
        at the 5 % level. `equal_outputs` is the share of requests whose tokens equal the baseline's, `equal_tokens`
        the share of equal tokens (at the same position, of the longer output), `first_difference` the median position
        of the first one that differs, where one does; `ar_logprob` the mean log-probability of a token in the model's
        AR mode (nats), averaged over outputs; `draft_share` the share of the time that went into making drafts.
        `pareto` says whether no other setting of the task and batch size is better in score or speed without being
        worse in the other. Blank where a run cannot give a number. Sorted by task and batch size, the baseline first,
        then by method and falling τ.

    Raises:
        UserError: the baseline is ambiguous.
    """
    import pandas as pd

    names = labels(runs)
    series = labels(runs, leave_out={"tau"})
    families = labels(runs, leave_out={"tau", "cache"})
    bases = find_baselines(runs, names, baseline)
    warn_of_differences(runs, names)
    noise = noise_by_machine(runs, bases)
    rows = []
    for run, label, line, family, base in zip(runs, names, series, families, bases, strict=True):
        row = _own_row(run) | {"label": label, "series": line, "family": family, "is_baseline": base is run}
        if base is not None:
            row |= {"baseline": base.name} | speedup(run, base)
            if paired and base is not run:
                row |= compare_requests(run, base, noise.get(machine(run)))
        rows.append(row)
    rows.sort(key=_order)
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame["pareto"] = pareto(frame)
    return frame


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    tau = float("inf") if row["tau"] is None else row["tau"]
    return (
        row["task"],
        row["batch_size"],
        not row["is_baseline"],
        row["method"],
        natural(row["series"]),
        -tau,
        row["run"],
    )


def _own_row(run: Run) -> dict[str, Any]:
    config, aggregates = run.config, run.aggregates
    score = aggregates["score"]
    row = {name: config[name] for name in ("task", "batch_size", "method", "model")}
    row |= {"run": run.name, "tau": number(run.knobs.get("tau")), "metric": score["metric"], "score": score["value"]}
    if score["n"]:
        interval = mean_interval(score["value"], score["sd"], score["n"])
        row |= {"score_low": interval.low, "score_high": interval.high}
    row |= {name: aggregates[name] for name in ("documents", "failed_requests", "tokens_per_pass")}
    speed, repeats = aggregates["tokens_per_second"], aggregates["repeats"]
    drafting, whole = (sum(repeat[name] or 0 for repeat in repeats) for name in ("draft_seconds", "seconds"))
    row |= {
        "repeats": run.record["repeats"],
        "tokens_per_second": speed["median"],
        "tokens_per_second_min": speed["min"],
        "tokens_per_second_max": speed["max"],
        "draft_share": drafting / whole if drafting else None,
        "peak_memory_bytes": max((repeat["peak_memory_bytes"] or 0 for repeat in repeats), default=0) or None,
    }
    row |= {f"latency_{name}": aggregates["latency"][name] for name in ("p50", "p95", "p99")}
    row |= {f"ttft_{name}": aggregates["ttft"].get(name) for name in ("p50", "p95", "p99")}
    if likely := aggregates.get("ar_logprob"):
        interval = mean_interval(likely["value"], likely["sd"], likely["n"])
        row |= {"ar_logprob": interval.value, "ar_logprob_low": interval.low, "ar_logprob_high": interval.high}
    return row
