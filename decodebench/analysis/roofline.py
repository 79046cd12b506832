"""How near to the machine's limits decoding passes came, and where the rest of their time went."""

import io
import logging
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from decodebench.analysis.labels import in_common, labels, natural
from decodebench.analysis.load import Run
from decodebench.analysis.tables import number, print_cells, render, render_cells
from decodebench.errors import UserError

PARTS = ("model", "acceptance", "draft", "host")
COLUMNS = (
    *("method", "slots", "MB", "GFLOP", "read", "math", "binds"),
    *("model", "accept", "draft", "host", "model%", "pass%"),
)
NOTES = (
    "a mean decoding pass of the target model, in the repeat with the median time; times in ms",
    "MB: weights and cache read; GFLOP: of weights and attention; read, math: what these take at the limits",
    "model, accept, draft, host: where the time went; model%, pass%: the limit's part of the model's time and of all",
)

log = logging.getLogger(__name__)


def roofline_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row for each run whose passes were counted on a machine that was measured; others are named in a warning.

    Returns:
        Sorted by task, batch size and label, with the numbers of a mean decoding pass: slots, bytes, FLOPs, seconds;
        "read_seconds" and "math_seconds" are what they take at the limits, "binds" which is larger;
        "model_share" and "pass_share" are the larger one's part of the time of the model and of the whole pass.
    """
    rows, uncounted = [], []
    for run, label in zip(runs, labels(runs), strict=True):
        limits = (run.record.get("environment") or {}).get("roofline")
        passes = _median_repeat(run)
        if limits is None:
            log.warning("left out: '%s' was recorded without --roofline", run.name)
        elif passes is None:
            uncounted.append(run.name)
        else:
            about = {"task": run.config["task"], "batch_size": run.config["batch_size"], "label": label}
            rows.append(about | {"run": run.name} | _row(passes, limits["machine"], limits["model"]))
    if uncounted:
        log.warning(
            "left out, without counts of their decoding passes (hf-generate keeps none, nor did older versions, and "
            "those of an interrupted repeat are lost): %s",
            ", ".join(uncounted),
        )
    return sorted(rows, key=lambda row: (row["task"], row["batch_size"], natural(row["label"])))


def roofline_table(runs: Sequence[Run], format: str = "table") -> str:
    """The table in one of the formats of `compare`.

    Raises:
        UserError: no run has what it needs.
    """
    import pandas as pd

    rows = roofline_rows(runs)
    if not rows:
        raise UserError(
            "no run here has a roofline: `decodebench run --roofline` records it, for methods other than hf-generate"
        )
    if format in ("csv", "json"):
        return render(pd.DataFrame(rows), format)
    cells = [(f"{row['task']} · batch {row['batch_size']}", _cells(row)) for row in rows]
    if format != "table":
        flat = [[row["task"], str(row["batch_size"]), *own] for row, (_, own) in zip(rows, cells, strict=True)]
        return render_cells(["task", "batch", *COLUMNS], flat, format)
    machines = dict.fromkeys(
        f"limits: {row['bytes_per_second'] / 1e9:,.1f} GB/s, {row['flops_per_second'] / 1e9:,.0f} GFLOP/s"
        for row in rows
    )
    buffer = io.StringIO()
    print_cells(list(COLUMNS), cells, "\n".join([in_common(runs), *machines, *NOTES]), buffer)
    return buffer.getvalue()


def _median_repeat(run: Run) -> Mapping[str, Any] | None:
    """The counts of the repeat whose time per decoding pass is the median; None if none was counted."""
    repeats = [repeat.get("decoding") or {} for repeat in run.aggregates["repeats"]]
    counted = {_seconds(passes) / passes["passes"]: passes for passes in repeats if passes.get("passes")}
    return counted[median_low(counted)] if counted else None


def _seconds(passes: Mapping[str, Any]) -> float:
    return float(sum(passes[f"{part}_seconds"] for part in PARTS))


def _row(passes: Mapping[str, Any], machine: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    count = passes["passes"]
    read = model["weight_bytes"] + passes["keys_read"] / count * model["key_bytes"]
    flops = (
        passes["slots"] * model["slot_flops"]
        + passes["unembedded"] * model["unembedding_flops"]
        + passes["scores"] * model["score_flops"]
    ) / count
    memory, matrix = read / machine["bytes_per_second"], flops / machine["flops_per_second"]
    times = {f"{part}_seconds": passes[f"{part}_seconds"] / count for part in PARTS}
    limit, whole = max(memory, matrix), sum(times.values())
    return {
        "passes": count,
        "slots": passes["slots"] / count,
        "bytes": read,
        "flops": flops,
        **machine,
        "read_seconds": memory,
        "math_seconds": matrix,
        "binds": "read" if memory >= matrix else "math",
        **times,
        "pass_seconds": whole,
        "model_share": limit / times["model_seconds"],
        "pass_share": limit / whole,
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    milliseconds = [number(1e3 * row[f"{name}_seconds"]) for name in ("read", "math", *PARTS)]
    return [
        row["label"],
        f"{row['slots']:.1f}",
        number(row["bytes"] / 1e6),
        number(row["flops"] / 1e9),
        *milliseconds[:2],
        row["binds"],
        *milliseconds[2:],
        *(f"{100 * row[f'{name}_share']:.0f}" for name in ("model", "pass")),
    ]
