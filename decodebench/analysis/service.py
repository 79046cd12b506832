"""Runs under load as a table of numbers: what a service gave, of what was asked of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decodebench.analysis.baselines import find_baselines, warn_of_differences
from decodebench.analysis.labels import labels, natural
from decodebench.analysis.load import Run
from decodebench.analysis.statistics import RESAMPLES, SEED, mean_interval, paired_difference
from decodebench.records import read_samples

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

COUNTS = ("offered", "finished", "good", "refused", "cancelled", "deadline", "prompt_too_long", "failed")
LEFT_OUT = ("rate", "arrivals", "duration", "tau_low", "server")  # of labels, or put into words there
MEASURES = ("latency", "ttft", "per_token")
COLUMNS = [
    *("task", "batch_size", "plan", "rate", "label", "method", "policy", "tau", "model", "run", "baseline"),
    *("is_baseline", "repeats", *COUNTS, "goodput", "goodput_low", "goodput_high", "goodput_ratio", "attainment"),
    *(f"{measure}_p{p}" for measure in MEASURES for p in (50, 95, 99)),
    *("latency_p95_low", "latency_p95_high", "tokens_per_second", "mean_rows", "max_waiting"),
    *("metric", "score", "score_low", "score_high", "difference", "difference_low", "difference_high", "p_value"),
    *("significant", "equal_outputs"),
]


def service_frame(runs: Sequence[Run], baseline: str = "ar") -> "pd.DataFrame":
    """One row for each run under load; doubts are logged as warnings that name the runs.

    Args:
        runs: what `load_runs` gives of runs under load.
        baseline: a method's name, or the label of one of its settings.

    Returns:
        A frame with `COLUMNS`, over all repeats. `plan` is the rate as it was asked for, `rate` the mean of what was
        offered (requests per second). Counts and goodput are as in `decodebench.load.report.measure`, percentiles in
        seconds from the moment at which requests were due. Bounds of goodput and p95 are 95 % intervals over requests
        (circular block bootstrap, because neighbours share a queue), `goodput_ratio` is to the baseline under the same
        arrivals, as are differences of scores, on documents that both answered. `equal_outputs` is over requests that
        both finished.

    Raises:
        UserError: the baseline is ambiguous.
    """
    import pandas as pd

    names = service_labels(runs)
    bases = find_baselines(runs, names, baseline)
    warn_of_differences(runs, names)
    samples = {run.name: read_samples(run.folder) for run in runs}
    rows = []
    for run, name, base in zip(runs, names, bases, strict=True):
        row = _own_row(run, samples[run.name]) | {"label": name, "is_baseline": base is run}
        if base is not None:
            row["baseline"] = base.name
            if base is not run:
                row |= _beside(samples[run.name], samples[base.name], run.aggregates["score"]["metric"])
        rows.append(row)
    goodput = {row["run"]: row["goodput"] for row in rows}
    for row in rows:
        if goodput.get(row.get("baseline")):
            row["goodput_ratio"] = row["goodput"] / goodput[row["baseline"]]
    rows.sort(key=_order)
    return pd.DataFrame(rows, columns=COLUMNS)


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["batch_size"], row["rate"], row["plan"], not row["is_baseline"], natural(row["label"])


def service_labels(runs: Sequence[Run]) -> list[str]:
    """Labels as everywhere, with the policy and its bounds in the place of τ where it moves, and without the rate.

    Loads of a server say where it is, and are told apart by themselves: less is known of them than of an engine here.
    """
    found: dict[Run, str] = {}
    for there in (False, True):
        some = [run for run in runs if ("server" in run.config) == there]
        shown = labels([replace(run, record=run.record | {"config": _told_apart(run.config)}) for run in some])
        for run, label in zip(some, shown, strict=True):
            found[run] = f"{label} at {run.config['server']}" if there else label
    return [found[run] for run in runs]


def mean_rate(run: Run) -> float:
    """Requests per second that were offered, over all repeats."""
    loads = [timing["load"] for timing in run.record["timings"]]
    return sum(load["offered"] for load in loads) / (len(loads) * float(run.config["duration"]))


def _told_apart(config: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in config.items() if name not in LEFT_OUT}
    knobs = dict(config["knobs"])
    if config["policy"] in (None, "fixed"):
        del told["policy"]
    else:
        told["policy"] = f"{config['policy']} τ={config['tau_low']:g}–{knobs.pop('tau'):g}"
    return told | {"knobs": knobs}


def _own_row(run: Run, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import numpy as np

    config, score = run.config, run.aggregates["score"]
    loads = [timing["load"] for timing in run.record["timings"]]
    seconds = len(loads) * float(config["duration"])
    counts: dict[str, Any] = {name: sum(load[name] for load in loads) for name in COUNTS}
    asked = counts["offered"] - counts["cancelled"]
    row: dict[str, Any] = {name: config[name] for name in ("task", "batch_size", "method", "model", "policy")}
    row |= {"run": run.name, "plan": str(config["rate"]), "rate": mean_rate(run), "repeats": len(loads), **counts}
    row |= {"goodput": counts["good"] / seconds, "attainment": counts["good"] / asked if asked else None}
    for name in MEASURES:
        values = [sample[name] for sample in samples if sample["latency"] is not None and sample[name] is not None]
        row |= {f"{name}_p{p}": float(np.percentile(values, p)) if values else None for p in (50, 95, 99)}
    for name in ("tau", "tokens_per_second", "mean_rows", "max_waiting"):
        known = [load[name] for load in loads if load[name] is not None]
        row[name] = sum(known) / len(known) if known else None
    row |= _intervals(samples, seconds)
    row |= {"metric": score["metric"], "score": score["value"]}
    if score["n"]:
        interval = mean_interval(score["value"], score["sd"], score["n"])
        row |= {"score_low": interval.low, "score_high": interval.high}
    return row


def _intervals(samples: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, float]:
    """Of goodput and of the 95th percentile of latency."""
    import numpy as np

    if len(samples) < 2:
        return {}
    ordered = sorted(samples, key=lambda sample: (sample["repeat"], sample["due"]))
    good = np.array([sample["good"] for sample in ordered], float)
    latency = np.array([math.nan if sample["latency"] is None else sample["latency"] for sample in ordered])
    places = block_resamples(len(ordered))
    rates = good[places].sum(1) / seconds
    bounds = dict(zip(("goodput_low", "goodput_high"), np.percentile(rates, (2.5, 97.5)).tolist(), strict=True))
    drawn = latency[places]
    drawn = drawn[~np.isnan(drawn).all(1)]
    if len(drawn):
        low, high = np.percentile(np.nanpercentile(drawn, 95, axis=1), (2.5, 97.5)).tolist()
        bounds |= {"latency_p95_low": low, "latency_p95_high": high}
    return bounds


def block_resamples(n: int) -> "np.ndarray":
    """`[RESAMPLES, n]` places: blocks of about √n neighbours, drawn with replacement from a circle of n.

    Source: D. N. Politis, J. P. Romano (1992), "A circular block-resampling procedure for stationary data".
    """
    import numpy as np

    size = max(1, round(math.sqrt(n)))
    starts = np.random.default_rng(SEED).integers(0, n, (RESAMPLES, -(-n // size)))
    return ((starts[:, :, None] + np.arange(size)) % n).reshape(RESAMPLES, -1)[:, :n]


def _beside(
    samples: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], metric: str | None
) -> dict[str, Any]:
    """What two runs say of each other on the requests that both finished."""
    theirs = {_key(sample): sample for sample in others if sample["latency"] is not None}
    pairs = [(s, theirs[_key(s)]) for s in samples if s["latency"] is not None and _key(s) in theirs]
    if not pairs:
        return {}
    row: dict[str, Any] = {"equal_outputs": sum(_same(a, b) for a, b in pairs) / len(pairs)}
    by_document: dict[Any, tuple[float, float]] = {}
    for mine, other in pairs:
        if metric and mine["scores"] and other["scores"] and {metric} <= {*mine["scores"]} & {*other["scores"]}:
            by_document.setdefault((mine["task"], mine["doc_id"]), (mine["scores"][metric], other["scores"][metric]))
    if by_document:
        difference = paired_difference(*zip(*by_document.values(), strict=True))
        row |= {"difference": difference.value, "difference_low": difference.low, "difference_high": difference.high}
        row |= {"p_value": difference.p_value, "significant": difference.significant}
    return row


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two outputs are equal; not all servers tell their tokens."""
    what = "text" if None in (a["passes"], b["passes"]) else "tokens"
    return bool(a[what] == b[what])


def _key(sample: Mapping[str, Any]) -> tuple[Any, ...]:
    return sample["repeat"], sample["task"], sample["doc_id"], sample["idx"]
