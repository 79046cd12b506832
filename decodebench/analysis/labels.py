"""Short names for runs: the method, and what tells a run apart from the others beside it."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from decodebench.analysis.load import Run

# How a value is shown, in this order; what is not named here follows as "name=value".
SHOWN = {
    "block_size": "B={}",
    "tau": "τ={}",
    "cache": "{}",
    "metric": "{}",
    "model": "{}",
    "dtype": "{}",
    "device": "{}",
    "batching": "{}",
    "policy": "{}",
    "weights": "({})",
    "trace": "traced",
    "graphs": "no graphs",
    "compile": "compiled",
}
COMMON = {
    "model": "{}",
    "dtype": "{}",
    "gpu": "{}",
    "cpu": "{}",
    "threads": "{} threads",
    "max_new_tokens": "≤ {} tokens",
}
APART = {"task", "batch_size", "method", "knobs"}  # columns of their own, or in the label already


def labels(runs: Sequence[Run], leave_out: Collection[str] = ()) -> list[str]:
    """A label for each run, such as "mars B=8 τ=0.9 block/16".

    It names the knobs in which the runs of its method differ, then whatever else differs between the runs of its
    task. τ is always named: it is the dial that trades quality for speed.

    Args:
        runs: the runs that stand beside each other.
        leave_out: knobs that the labels shall not name.
    """
    knobs = [_knobs(run) for run in runs]
    varied_knobs = _varied(zip((run.config["method"] for run in runs), knobs, strict=True))
    varied_fields = _varied((run.config["task"], run.config) for run in runs)
    result = []
    for run, own in zip(runs, knobs, strict=True):
        fields = varied_fields[run.config["task"]] - APART
        if "model" in fields:  # which says enough
            fields -= {"weights"}
        named = (varied_knobs[run.config["method"]] | {"tau"}) - set(leave_out)
        shown = {name: value for name, value in own.items() if name in named}
        shown |= {name: run.config[name] for name in sorted(fields) if name in run.config}
        result.append(" ".join([run.config["method"], *_parts(shown)]))
    return result


def in_common(runs: Sequence[Run]) -> str:
    """What all runs share, in one line: model, dtype, hardware, and how tokens are chosen."""
    facts = []
    for name, text in COMMON.items():
        values = {json.dumps(run.config.get(name) or run.record["environment"].get(name)) for run in runs}
        if len(values) == 1 and (value := json.loads(values.pop())) is not None:
            facts.append(text.format(value))
    if all(run.config.get("temperature") == 0 for run in runs):
        facts.append("greedy")
    return " · ".join(facts)


def natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """A sorting key under which "B=8" comes before "B=16", and "τ=0.65" before "τ=0.8"."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return tuple((0, float(part), "") if i % 2 else (1, 0.0, part) for i, part in enumerate(parts))


def _knobs(run: Run) -> dict[str, Any]:
    """The knobs of a run, with the size of a cache block as a part of its cache mode."""
    knobs = dict(run.knobs)
    size = knobs.pop("cache_block", None)
    if knobs.get("cache") == "block" and size is not None:
        knobs["cache"] = f"block/{size}"
    return knobs


def _varied(groups: Iterable[tuple[str, Mapping[str, Any]]]) -> defaultdict[str, set[str]]:
    """For each group the names whose values differ within it, or that some of it lack."""
    mappings = defaultdict(list)
    for group, mapping in groups:
        mappings[group].append(mapping)
    varied: defaultdict[str, set[str]] = defaultdict(set)
    for group, members in mappings.items():
        for name in set().union(*members):
            if len({json.dumps(member.get(name), sort_keys=True) for member in members}) > 1:
                varied[group].add(name)
    return varied


def _parts(values: Mapping[str, Any]) -> Iterable[str]:
    order = [name for name in SHOWN if name in values] + [name for name in values if name not in SHOWN]
    for name in order:
        value = values[name]
        text = f"{value:g}" if isinstance(value, float) else str(value)
        yield SHOWN.get(name, name + "={}").format(text)
