"""The average over a suite's benchmarks, such as the paper's six, or over all tasks, in rows of its own."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decodebench.analysis.load import Run

if TYPE_CHECKING:
    import pandas as pd


def add_averages(frame: "pd.DataFrame", runs: Sequence[Run]) -> "pd.DataFrame":
    """The comparison with an average over every suite that a run was wanted in, or over all tasks where there is none.

    There is one for each setting that at least two of the suite's benchmarks have a score for: the plain mean of their
    headline metrics and of their tokens per pass, and the geometric mean of their speed-ups. The name under "task"
    says which of the suite's benchmarks are missing, so that only means over the same ones stand together, and
    "metric" says why.

    Args:
        frame: from `compare_runs`.
        runs: those that were compared.
    """
    import pandas as pd

    averages = []
    by_run = frame.dropna(subset=["score"]).drop_duplicates("run").set_index("run", drop=False)
    for suite in _suites(runs):
        settings: defaultdict[str, dict[str, str]] = defaultdict(dict)  # run names by task
        for run in runs:
            if run.config["task"] in suite["tasks"] and run.name in by_run.index:
                setting = {name: value for name, value in run.config.items() if name != "task"}
                settings[json.dumps(setting, sort_keys=True)][run.config["task"]] = run.name
        groups = [by_run.loc[list(names.values())] for names in settings.values() if len(names) > 1]
        averages += [_average(group, suite) for group in groups]
    order = {label: place for place, label in enumerate(dict.fromkeys(frame["label"]))}
    averages.sort(key=lambda row: (row["task"], row["batch_size"], not row["is_baseline"], order[row["label"]]))
    return pd.DataFrame([*frame.to_dict("records"), *averages], columns=frame.columns)


def _suites(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The suites by name, with all of their benchmarks that any of the runs had to do without.

    Runs that were wanted in none are averaged over all of their tasks.
    """
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        if suite := (run.record.get("task") or {}).get("suite"):
            known = found.setdefault(suite["name"], {**suite, "left_out": {}})
            known["left_out"] |= suite["left_out"]
    tasks = sorted({run.config["task"] for run in runs})
    return list(found.values()) or [{"name": "all tasks", "tasks": tasks, "left_out": {}}]


def _average(rows: "pd.DataFrame", suite: dict[str, Any]) -> dict[str, Any]:
    present = [name for name in suite["tasks"] if name in set(rows["task"])]
    missing = [name for name in suite["tasks"] if name not in present]
    reasons = [f"{name}: {suite['left_out'].get(name, 'not run')}" for name in missing]
    average = {name: rows.iloc[0][name] for name in ("batch_size", "series", "family", "method", "tau", "model")}
    average |= {
        "task": suite["name"] + (f" without {', '.join(missing)}" if missing else ""),
        "label": min(rows["label"], key=len),
        "is_baseline": bool(rows["is_baseline"].all()),
        "metric": f"mean over {', '.join(present)}" + (f" ({', '.join(reasons)})" if reasons else ""),
        "documents": int(rows["documents"].sum()),
        "failed_requests": int(rows["failed_requests"].sum()),
        "tokens_per_pass": _mean(rows["tokens_per_pass"]),
        "speedup": _geometric_mean(rows["speedup"]),
    }
    average |= _interval(rows, "score") | _interval(rows, "difference")
    return average | {"significant": average["difference_low"] > 0 or average["difference_high"] < 0}


def _interval(rows: "pd.DataFrame", name: str) -> dict[str, float]:
    """A mean of independent estimates with its interval, which may be lopsided as theirs are.

    Source: G. Y. Zou, A. Donner (2008), "Construction of confidence limits about effect measures".
    """
    value = _mean(rows[name])
    low = _root_of_squares(rows[name] - rows[f"{name}_low"]) / len(rows)
    high = _root_of_squares(rows[f"{name}_high"] - rows[name]) / len(rows)
    return {name: value, f"{name}_low": value - low, f"{name}_high": value + high}


def _mean(values: "pd.Series[float]") -> float:
    return float(values.astype(float).mean(skipna=False))


def _geometric_mean(values: "pd.Series[float]") -> float:
    known = values.astype(float)
    return math.exp(sum(map(math.log, known)) / len(known)) if known.notna().all() else math.nan


def _root_of_squares(values: "pd.Series[float]") -> float:
    return float((values.astype(float) ** 2).sum(skipna=False)) ** 0.5
