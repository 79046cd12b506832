"""Runs under load for people: what was offered, what was good, how long it took, at which τ and quality."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from decodebench.analysis.tables import Row, known, number

if TYPE_CHECKING:
    import pandas as pd


def service_cells(frame: "pd.DataFrame", wide: bool = False) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the rows as they are shown, the heading first.

    Args:
        frame: from `service_frame`.
        wide: all columns, not only the most important ones.
    """
    rows = frame.to_dict("records")
    cells = {name: [write(row) for row in rows] for name, write in VIEW if wide or name not in WIDE}
    shown = {name: column for name, column in cells.items() if any(cell not in ("–", "0") for cell in column)}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def _number(name: str) -> Callable[[Row], str]:
    return lambda row: number(row[name]) if known(row[name]) else "–"


def _with_interval(name: str) -> Callable[[Row], str]:
    def write(row: Row) -> str:
        if not known(row[name]):
            return "–"
        if not known(row[f"{name}_low"]):
            return number(row[name])
        return f"{number(row[name])} [{number(row[f'{name}_low'])}, {number(row[f'{name}_high'])}]"

    return write


def _score(row: Row) -> str:
    if not known(row["score"]) or not known(row["score_low"]):
        return "–"
    return f"{100 * row['score']:.1f} [{100 * row['score_low']:.0f}, {100 * row['score_high']:.0f}]"


def _difference(row: Row) -> str:
    if not known(row["difference"]):
        return "–"
    return f"{100 * row['difference']:+.1f}".replace("-", "−") + ("" if row["significant"] else " n.s.")


WIDE = {"finished", "TTFT p95 s", "s/token p95", "same out %"}
VIEW: list[tuple[str, Callable[[Row], str]]] = [
    ("load", lambda row: f"{row['task']} · {row['plan']}/s · {row['batch_size']} rows"),
    ("method", lambda row: row["label"]),
    ("offered", lambda row: str(row["offered"])),
    ("finished", lambda row: str(row["finished"])),
    ("refused", lambda row: str(row["refused"])),
    ("cancelled", lambda row: str(row["cancelled"])),
    ("too late", lambda row: str(row["deadline"])),
    ("goodput/s", _with_interval("goodput")),
    ("× base", lambda row: f"{row['goodput_ratio']:.2f}×" if known(row["goodput_ratio"]) else "–"),
    ("p50 s", _number("latency_p50")),
    ("p95 s", _with_interval("latency_p95")),
    ("TTFT p95 s", _number("ttft_p95")),
    ("s/token p95", lambda row: f"{row['per_token_p95']:.3f}" if known(row["per_token_p95"]) else "–"),
    ("tok/s", _number("tokens_per_second")),
    ("mean τ", lambda row: f"{row['tau']:.3g}" if known(row["tau"]) else "–"),
    ("score %", _score),
    ("Δ", _difference),
    ("same out %", lambda row: f"{100 * row['equal_outputs']:.0f}" if known(row["equal_outputs"]) else "–"),
]


def service_caption(common: str) -> str:
    """What the table leaves unsaid."""
    return f"""{common}
latency counts from the scheduled arrival · goodput: requests finished within the target, per second
intervals: 95 %, block bootstrap over requests"""
