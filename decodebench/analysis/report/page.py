"""The page: its parts put together, everything that comes from records escaped."""

import base64
import hashlib
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from decodebench.analysis.compare import compare_runs
from decodebench.analysis.labels import in_common
from decodebench.analysis.load import Run
from decodebench.analysis.plot_calibration import BINS, FEWEST, sure_tokens
from decodebench.analysis.report.answers import collect_answers
from decodebench.analysis.report.settings import settings_section
from decodebench.analysis.report.summary import cards, table
from decodebench.analysis.statistics import mean_interval
from decodebench.analysis.suites import add_averages
from decodebench.errors import UserError
from decodebench.pieces import Decode
from decodebench.records.files import plain

if TYPE_CHECKING:
    import pandas as pd

SCRIPTS = ("common.js", "chart.js", "plots.js", "answers.js", "page.js")
CHARTED = [
    *("task", "batch_size", "label", "series", "family", "method", "tau", "model", "is_baseline", "metric"),
    *("score", "score_low", "score_high", "equal_outputs", "equal_tokens", "difference", "significant"),
    *("ar_logprob", "ar_logprob_low", "ar_logprob_high"),
    *("tokens_per_pass", "tokens_per_second", "tokens_per_second_min", "tokens_per_second_max"),
    *("speedup", "speedup_low", "speedup_high"),
]
QUANTILES = 41


def build_report(
    runs: Sequence[Run],
    baseline: str,
    decoder_of: Callable[[str], Decode],
    documents: int = 24,
    title: str = "decodebench report",
) -> str:
    """The page as HTML.

    The same runs give the same bytes. Only scripts and styles whose hashes the page names are allowed to run in it,
    and it may load nothing from anywhere.

    Args:
        runs: what `load_runs` gives.
        baseline: a method's name, or the label of one of its settings.
        decoder_of: for a model's name, how its token ids are written out; may raise a UserError.
        documents: whose answers are shown, of each task.
        title: of the page.

    Raises:
        UserError: the baseline is ambiguous.
    """
    with _warnings() as warnings:
        frame = add_averages(compare_runs(runs, baseline), runs)
        ordered = _in_order(frame, runs)
        shown, pool = collect_answers(ordered, decoder_of, documents)
    rows = [_charted(row, run) for row, run in zip(frame.to_dict("records"), ordered, strict=False)]
    data = json.dumps(plain({"rows": rows, "documents": shown, "pool": pool}), ensure_ascii=False)
    style, script = _asset("page.css"), '(() => {\n"use strict";\n' + "".join(map(_asset, SCRIPTS)) + "})();\n"
    parts = {
        "title": escape(title),
        "subtitle": escape(in_common(runs)),
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "style": style,
        "script": script,
        # in a script element only "<" can end the data or open a comment
        "data": data.replace("<", "\\u003c"),
        "cards": cards(frame),
        "table": table(frame),
        "warnings": "".join(f"<li>{escape(text)}</li>" for text in dict.fromkeys(warnings)),
        "settings": settings_section(ordered, list(frame["label"])),
        "baseline": escape(baseline),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _in_order(frame: "pd.DataFrame", runs: Sequence[Run]) -> list[Run]:
    """The runs as the rows of the frame have them; rows of averages come after all of these."""
    by_name: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    return [by_name[name].pop(0) for name in frame["run"] if by_name.get(name)]


def _charted(row: dict[Any, Any], run: Run) -> dict[str, Any]:
    """What the plots need of a run."""
    latency = run.samples["latency"].dropna()
    steps = [step / (QUANTILES - 1) for step in range(QUANTILES)]
    return {
        **{name: row[name] for name in CHARTED},
        "metric_of_confidence": run.knobs.get("metric"),
        "calibration": _calibration(run),
        "committed": run.aggregates.get("committed_histogram") or {},
        "latency": [round(float(latency.quantile(step)), 4) for step in steps] if len(latency) else [],
    }


def _calibration(run: Run) -> list[list[float]]:
    """Of tokens in bins of rising confidence: mean confidence, share that is AR's, and its 95 % interval."""
    if not (run.config.get("trace") and run.aggregates.get("ar_logprob")):
        return []
    import numpy as np

    try:
        confidence, equal = sure_tokens(run)
    except UserError:  # warned of where the answers were read
        return []
    if len(confidence) < FEWEST:
        return []
    order = np.argsort(confidence, kind="stable")
    found = []
    for part in np.array_split(order, min(BINS, len(order) // FEWEST)):
        share = mean_interval(float(equal[part].mean()), float(equal[part].std()), len(part))
        found.append([float(confidence[part].mean()), share.value, share.low, share.high])
    return found


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the analysis warns of, for the page to repeat."""
    texts: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    logger, handler = logging.getLogger("decodebench"), Collect(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a content security policy names an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
