"""Which run each run is compared with, and what makes a comparison doubtful."""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from decodebench.analysis.load import Run
from decodebench.errors import UserError

log = logging.getLogger(__name__)

# What a run and its baseline must share, and what they should, the most important first.
REQUIRED = ("task", "batch_size", "arrivals", "rate", "duration")  # the last three of runs under load
PREFERRED = (
    *("model", "weights", "dtype", "device", "batching", "limit", "limit_seed", "max_new_tokens"),
    *("temperature", "top_p", "top_k", "seed", "trace", "graphs", "compile"),
)

SAME_MODEL = ("model", "weights")  # without which a difference says nothing of the method

# What should be equal among the runs of a task that are compared.
EQUAL_CONFIG = ("dtype", "device", "limit", "limit_seed", "max_new_tokens", "temperature", "top_p", "top_k", "seed")
TOLD_BY_SERVERS = ("dtype", "device")  # or not told, where another server is measured
EQUAL_TASK = ("headline", "version", "shots", "prompts_sha256")
EQUAL_ENVIRONMENT = ("cpu", "cores", "gpu", "threads", "python", "decodebench")


def find_baselines(runs: Sequence[Run], labels: Sequence[str], baseline: str) -> list[Run | None]:
    """For each run the one that it is measured against: same task and batch size, as like it as there is.

    Runs without one are named in a warning.

    Args:
        runs: the runs that are compared.
        labels: their labels.
        baseline: a method's name, or the label of one of its settings.

    Raises:
        UserError: several runs would do equally well.
    """
    candidates = [
        (run, label) for run, label in zip(runs, labels, strict=True) if baseline in (run.config["method"], label)
    ]
    fitting: defaultdict[tuple[Any, ...], list[tuple[Run, str]]] = defaultdict(list)
    for candidate in candidates:
        fitting[_required(candidate[0])].append(candidate)
    found = [_closest(run, fitting[_required(run)], baseline) for run in runs]
    if not candidates:
        log.warning("no run of the baseline '%s' is here: differences and speed-ups are left blank", baseline)
    else:
        for run, base in zip(runs, found, strict=True):
            if base is None:
                log.warning(
                    "no run of the baseline '%s' with task %s and batch size %s: '%s' has no speed-up",
                    *(baseline, run.config["task"], run.config["batch_size"], run.name),
                )
            elif other := [name for name in SAME_MODEL if base.config.get(name) != run.config.get(name)]:
                log.warning(
                    "'%s' is compared with '%s', which has another %s: its model differs, not only how it decodes",
                    *(run.name, base.name, " and ".join(other)),
                )
    return found


def _required(run: Run) -> tuple[Any, ...]:
    return tuple(run.config.get(field) for field in REQUIRED)


def _closest(run: Run, fitting: Sequence[tuple[Run, str]], baseline: str) -> Run | None:
    def likeness(other: Run) -> tuple[bool, ...]:
        return tuple(other.config.get(field) == run.config.get(field) for field in PREFERRED)

    if not fitting:
        return None
    if any(other is run for other, _ in fitting):
        return run
    best = max(likeness(other) for other, _ in fitting)
    closest = [pair for pair in fitting if likeness(pair[0]) == best]
    if len(closest) > 1:
        choice = ", ".join(f"'{label}'" for _, label in closest)
        raise UserError(f"baseline '{baseline}' is ambiguous for '{run.name}': choose one of {choice}")
    return closest[0][0]


def warn_of_differences(runs: Sequence[Run], labels: Sequence[str]) -> None:
    """Warn, by name, where runs of one task differ in what should be equal when they are compared."""
    holders: defaultdict[tuple[str, str], defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for run, label in zip(runs, labels, strict=True):
        for name, value in _should_be_equal(run):
            shown = json.dumps(value, ensure_ascii=False, sort_keys=True).strip('"')
            holders[run.config["task"], name][shown].append(f"{label} bs{run.config['batch_size']}")
    for (task, name), values in holders.items():
        if len(values) > 1:
            sides = "; ".join(f"{value[:40]} ({_some(names)})" for value, names in values.items())
            log.warning("%s: the runs differ in %s, compare with care: %s", task, name, sides)


def _should_be_equal(run: Run) -> Iterator[tuple[str, Any]]:
    task, environment = run.record.get("task") or {}, run.record.get("environment") or {}
    for name in EQUAL_CONFIG:
        told = run.config.get(name)
        yield name, "not told" if told is None and name in TOLD_BY_SERVERS else told
    yield from ((name, task.get(name)) for name in EQUAL_TASK)
    yield from ((name, environment.get(name)) for name in EQUAL_ENVIRONMENT)
    yield from sorted((environment.get("packages") or {}).items())


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
