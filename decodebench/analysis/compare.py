"""The comparison of runs as a table of numbers: one row for each task, batch size and setting of a method."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from decodebench.analysis.baselines import find_baselines, warn_of_differences
from decodebench.analysis.labels import labels, natural
from decodebench.analysis.load import DOCUMENT, Run
from decodebench.analysis.statistics import bootstrap_speedup, mean_interval, paired_difference, repeat_ratios
from decodebench.records.aggregates import number

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

COLUMNS = [
    *("task", "batch_size", "label", "series", "family", "method", "tau", "model", "run", "baseline", "is_baseline"),
    *("documents", "failed_requests", "metric", "score", "score_low", "score_high"),
    *("difference", "difference_low", "difference_high", "p_value", "significant", "paired", "equal_outputs"),
    *("tokens_per_pass", "repeats", "tokens_per_second", "tokens_per_second_min", "tokens_per_second_max"),
    *("speedup", "speedup_min", "speedup_max", "speedup_low", "speedup_high"),
    *("latency_p50", "latency_p95", "latency_p99", "ttft_p50", "ttft_p95", "peak_memory_bytes"),
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
        at the 5 % level; `equal_outputs` is the share of requests whose tokens equal the baseline's. Blank where a run
        cannot give a number. Sorted by task and batch size, the baseline first, then by method and falling τ.

    Raises:
        UserError: the baseline is ambiguous.
    """
    import pandas as pd

    names = labels(runs)
    series = labels(runs, leave_out={"tau"})
    families = labels(runs, leave_out={"tau", "cache"})
    bases = find_baselines(runs, names, baseline)
    warn_of_differences(runs, names)
    rows = []
    for run, label, line, family, base in zip(runs, names, series, families, bases, strict=True):
        row = _own_row(run) | {"label": label, "series": line, "family": family, "is_baseline": base is run}
        if base is not None:
            row |= {"baseline": base.name} | _speedup(run, base)
            if paired and base is not run:
                row |= _paired(run, base)
        rows.append(row)
    rows.sort(key=_order)
    return pd.DataFrame(rows, columns=COLUMNS)


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
    speed = aggregates["tokens_per_second"]
    row |= {
        "repeats": run.record["repeats"],
        "tokens_per_second": speed["median"],
        "tokens_per_second_min": speed["min"],
        "tokens_per_second_max": speed["max"],
        "peak_memory_bytes": max((repeat["peak_memory_bytes"] or 0 for repeat in aggregates["repeats"]), default=0)
        or None,
    }
    row |= {f"latency_{name}": aggregates["latency"][name] for name in ("p50", "p95", "p99")}
    return row | {f"ttft_{name}": aggregates["ttft"][name] for name in ("p50", "p95")}


def _counted(run: Run, base: Run) -> list[int]:
    """The repeats in which the speeds of two runs are compared: those that neither was interrupted in, if any."""
    pairs = list(enumerate(zip(run.aggregates["repeats"], base.aggregates["repeats"], strict=False)))
    known = [(index, pair) for index, pair in pairs if all(one["tokens_per_second"] for one in pair)]
    return [index for index, pair in known if not any(one["interrupted"] for one in pair)] or [i for i, _ in known]


def _speedup(run: Run, base: Run) -> dict[str, Any]:
    counted = _counted(run, base)
    repeats = [[one.aggregates["repeats"][index] for index in counted] for one in (run, base)]
    if not counted:
        return {}
    for one, its in zip((run, base), repeats, strict=True):
        if any(repeat["interrupted"] for repeat in its):
            log.warning("'%s' was interrupted while it was timed: its speed is approximate", one.name)
    ratios = repeat_ratios(*([repeat["tokens_per_second"] for repeat in its] for its in repeats))
    return {"speedup": ratios.value, "speedup_min": ratios.low, "speedup_max": ratios.high}


def _paired(run: Run, base: Run) -> dict[str, Any]:
    """What comes from comparing two runs request by request."""
    pairs = run.samples.merge(base.samples, on=["repeat", *DOCUMENT], suffixes=("", "_base"))
    first = pairs[pairs["repeat"] == 0]
    if first.empty:
        log.warning("'%s' and its baseline '%s' have no request in common", run.name, base.name)
        return {}
    if len(first) < max(len(one.samples[one.samples["repeat"] == 0]) for one in (run, base)):
        log.warning("'%s' and its baseline '%s' have only %d requests in common", run.name, base.name, len(first))
    row: dict[str, Any] = {"equal_outputs": (first["output"] == first["output_base"]).mean()}
    scored = first.drop_duplicates(["task", "doc_id"]).dropna(subset=["score", "score_base"])
    if not scored.empty:
        difference = paired_difference(scored["score"], scored["score_base"])
        row |= {
            "paired": difference.n,
            "difference": difference.value,
            "difference_low": difference.low,
            "difference_high": difference.high,
            "p_value": difference.p_value,
            "significant": difference.significant,
        }
    return row | _speedup_interval(run, base, pairs)


def _speedup_interval(run: Run, base: Run, pairs: "pd.DataFrame") -> dict[str, Any]:
    """The bootstrap interval of the speed-up, from the requests that both runs have in all repeats that count."""
    import numpy as np

    counted = _counted(run, base)
    values = ["tokens", "tokens_base", "latency", "latency_base"]
    known = pairs[pairs["repeat"].isin(counted)].set_index([*DOCUMENT, "repeat"])[values]
    table = known.unstack("repeat").dropna()
    if len(table) < 2:  # one request tells nothing of the spread
        return {}
    # Requests share a batch, so the engine's time has to be divided among them: each answers for it in proportion to
    # how long it was there. The sums over all requests are then the measured times.
    seconds = {}
    for name, one in (("latency", run), ("latency_base", base)):
        measured = np.array([one.aggregates["repeats"][repeat]["seconds"] for repeat in counted])
        seconds[name] = table[name] / table[name].sum() * measured
    interval = bootstrap_speedup(
        table["tokens"].T, seconds["latency"].T, table["tokens_base"].T, seconds["latency_base"].T
    )
    return {"speedup_low": interval.low, "speedup_high": interval.high}
