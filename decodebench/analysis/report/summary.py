"""The comparison as an HTML table, and its main findings as cards."""

from html import escape
from math import isnan
from typing import TYPE_CHECKING, Any

from decodebench.analysis.tables import ALWAYS, LEFT, LIKELY, SCORED, UNSCORED, VIEW, number

if TYPE_CHECKING:
    import pandas as pd

# What the headings stand for.
MEANING = {
    "batch": "most requests that run at a time",
    "n": "documents",
    "score %": "headline metric of the task, with its 95 % interval",
    "Δ": "difference to the baseline on the same documents, in points; n.s.: the data do not support a difference",
    "Δ 95 %": "95 % interval of the difference",
    "p": "McNemar's exact test",
    "same %": "share of tokens that equal the baseline's at the same position",
    "same out %": "share of outputs whose tokens all equal the baseline's",
    "1st diff": "median position of the first token that differs from the baseline's, where one does",
    "log p": "mean log-probability of a token in the model's autoregressive mode, in nats",
    "Δ log p 95 %": "its difference to the baseline, with its 95 % interval",
    "tok/pass": "committed tokens ÷ forward passes of the model, prefill included",
    "tok/s": "committed tokens per second, median over the repeats",
    "min–max": "tokens per second, slowest and fastest repeat",
    "speed-up": "tokens/s ÷ tokens/s of the baseline, with its 95 % bootstrap interval over requests and repeats",
    "p50 s": "latency of a request, median",
    "p95 s": "latency of a request, 95th percentile",
    "p99 s": "latency of a request, 99th percentile",
    "TTFT s": "time to first token, median",
    "GB": "peak memory",
    "failed": "prompts longer than the context",
    "front": "no other setting of the task and batch size is better in score or speed and no worse in the other",
}
CARDS_MOST = 4


def table(frame: "pd.DataFrame") -> str:
    """One row for each run, with every column; the page's script sorts it and hides the less usual columns."""
    usual = {ALWAYS, LIKELY, SCORED if frame["score"].notna().any() else UNSCORED}
    rows = frame.to_dict("records")
    written = [(name, when, [write(row) for row in rows]) for name, when, write in VIEW]
    columns = [
        (name, _classes("left" if name in LEFT else "", "" if when in usual else "more"), cells)
        for name, when, cells in written
        if any(cell not in ("", "–") for cell in cells)
    ]
    head = "".join(
        f'<th scope="col"{classes} title="{escape(MEANING.get(name, name))}">'
        f'<button type="button">{escape(name)}</button></th>'
        for name, classes, _ in columns
    )
    body = []
    for place, row in enumerate(rows):
        tds = "".join(f"<td{classes}>{_cell(cells[place])}</td>" for _, classes, cells in columns)
        task, batch = escape(str(row["task"])), row["batch_size"]
        body.append(
            f'<tr data-task="{task}" data-batch="{batch}"{_classes("base" if row["is_baseline"] else "")}>{tds}</tr>'
        )
    return f"<table id='comparison-table'><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _classes(*names: str) -> str:
    given = " ".join(filter(None, names))
    return f' class="{given}"' if given else ""


def _cell(text: str) -> str:
    """The number, and what says how sure it is in small print."""
    value, space, rest = text.partition(" ")
    if space and (rest.startswith("[") or rest == "n.s."):
        return f"{escape(value)} <small>{escape(rest)}</small>"
    return escape(text)


def cards(frame: "pd.DataFrame") -> str:
    """For each task the fastest setting that is not the baseline, and what it costs."""
    found = []
    measured = frame.dropna(subset=["speedup"])
    others = measured[~measured["is_baseline"].astype(bool)]
    for _, group in others.groupby("task", sort=False):
        found.append(_card(group.sort_values("speedup").iloc[-1].to_dict()))
    return "".join(found[:CARDS_MOST])


def _card(row: dict[Any, Any]) -> str:
    spread = "" if _blank(row["speedup_low"]) else f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}"
    facts = [f"{number(row['tokens_per_pass'])} tokens per pass"] if not _blank(row["tokens_per_pass"]) else []
    if not _blank(row["difference"]):
        points = f"{100 * row['difference']:+.1f}".replace("-", "−")
        facts.append(f"score {points} points" + ("" if row["significant"] else ", not significant"))
    elif not _blank(row["equal_outputs"]):
        facts.append(f"{100 * row['equal_outputs']:.0f} % of outputs equal")
    return (
        f'<div class="card"><p class="where">{escape(str(row["task"]))} · batch {row["batch_size"]}</p>'
        f'<p class="figure">{row["speedup"]:.2f}×<span>{spread}</span></p>'
        f'<p class="who">{escape(str(row["label"]))}</p><p class="facts">{escape(" · ".join(facts))}</p></div>'
    )


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, float) and isnan(value))
