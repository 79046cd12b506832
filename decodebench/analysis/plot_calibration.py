"""Confidence against truth: how often a token that a method was so sure of is the one that AR would have taken."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from decodebench.analysis.figures import NAME, QUIET, canvas, looks, settle
from decodebench.analysis.labels import labels
from decodebench.analysis.load import Run
from decodebench.analysis.placement import Label, place_labels
from decodebench.analysis.statistics import mean_interval
from decodebench.errors import UserError
from decodebench.records import read_samples
from decodebench.records.aggregates import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

BINS = 10
FEWEST = 20  # tokens in a bin
SMALL_PRINT = "tokens that were taken after the first of their pass; AR: the most probable token after the same text"


def sure_tokens(run: Run) -> "tuple[NDArray[Any], NDArray[Any]]":
    """The confidence of each token that a method took because it was sure, and whether it is AR's (1 or 0).

    The first token of each pass is left out: it is AR's own. Both are empty where they are not recorded.

    Raises:
        UserError: the samples cannot be read.
    """
    import numpy as np

    found = list(_tokens(read_samples(run.folder)))
    return np.array([sure for sure, _ in found]), np.array([equal for _, equal in found])


def _tokens(samples: Sequence[dict[str, Any]]) -> Iterator[tuple[float, float]]:
    for sample in samples:
        first, place = set(), 0
        for count in sample.get("committed") or ():
            first.add(place)
            place += count
        pairs = zip(sample.get("confidence") or (), sample.get("ar_equal") or (), strict=False)
        for place, (confidence, equal) in enumerate(pairs):
            if place not in first and number(confidence) is not None:
                yield confidence, equal


def calibration(runs: Sequence[Run], caption: str = "") -> "Figure":
    """For each task and confidence metric: how often a token of some confidence is AR's, and what a threshold buys.

    Left: tokens in bins of equal number, with 95 % intervals. Right: of the tokens at least as sure as a threshold τ,
    the share that is AR's. All batch sizes are counted together.

    Args:
        runs: what `load_runs` gives; those that were recorded with confidences and AR scores are drawn.
        caption: a line of small print.

    Raises:
        UserError: there is none, or samples cannot be read.
    """
    import numpy as np
    import pandas as pd

    found: defaultdict[tuple[str, str], defaultdict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    names = labels(runs)
    for run, label in zip(runs, names, strict=True):
        if run.config.get("trace") and run.aggregates.get("ar_logprob"):
            tokens = sure_tokens(run)
            if len(tokens[0]) >= FEWEST:
                found[run.config["task"], str(run.knobs.get("metric", "confidence"))][label].append(tokens)
    if not found:
        raise UserError("no run holds confidences and AR scores: record some with 'run --trace --score-ar'")
    drawn = list(dict.fromkeys(label for lines in found.values() for label in lines))
    styles = looks(pd.DataFrame({"series": drawn, "family": drawn}))
    with canvas([3.1] * len(found), 2, sharey="row") as (figure, axes):
        ends = []
        for (left, right), ((task, metric), lines) in zip(axes, sorted(found.items()), strict=True):
            left.set_title(task, loc="left", fontweight="bold")
            left.set_ylabel("tokens that are AR's (%)")
            left.set_xlabel({"entropy": "entropy (nats)"}.get(metric, metric))
            right.set_xlabel(f"threshold τ on the {metric}")
            if metric == "probability":
                left.plot([0, 1], [0, 100], color=QUIET, linestyle=":", linewidth=1, zorder=1)
                left.set_xlim(min(its.min() for parts in lines.values() for its, _ in parts) - 0.02, 1.01)
            marks, threshold_lines = [], []
            for label, parts in lines.items():
                confidence, equal = (np.concatenate(its) for its in zip(*parts, strict=True))
                _bins(left, confidence, equal, styles[label])
                line = _threshold(right, confidence, equal, metric == "entropy", styles[label])
                marks.append(Label(*line[-1], label, NAME | {"color": styles[label]["color"]}, name=True))
                threshold_lines.append(line)
            ends.append((right, marks, threshold_lines))
            left.set_ylim(left.get_ylim()[0], 101)
        settle(figure, SMALL_PRINT, caption)
        for right, marks, threshold_lines in ends:
            place_labels(right, marks, threshold_lines)
    return figure


def _bins(axes: "Axes", confidence: "NDArray[Any]", equal: "NDArray[Any]", style: dict[str, Any]) -> None:
    """Share of AR's tokens in bins of equal number."""
    import numpy as np

    order = np.argsort(confidence, kind="stable")
    parts = np.array_split(order, max(1, min(BINS, len(order) // FEWEST)))
    x = [float(confidence[part].mean()) for part in parts]
    intervals = [mean_interval(float(equal[part].mean()), float(equal[part].std()), len(part)) for part in parts]
    y = np.array([interval.value for interval in intervals])
    bars = 100 * np.array([[i.value - i.low for i in intervals], [i.high - i.value for i in intervals]])
    axes.errorbar(x, 100 * y, bars.clip(min=0), markersize=4, linewidth=1.2, elinewidth=0.8, **style)


def _threshold(
    axes: "Axes", confidence: "NDArray[Any]", equal: "NDArray[Any]", falling: bool, style: dict[str, Any]
) -> list[tuple[float, float]]:
    """Share of AR's tokens among those that pass a threshold; returns the line, which ends at the method's own τ."""
    import numpy as np

    order = np.argsort(confidence if falling else -confidence, kind="stable")
    share = 100 * np.cumsum(equal[order]) / np.arange(1, len(order) + 1)
    # a share of fewer tokens says little, and more points than this are not seen
    places = np.unique(np.linspace(min(FEWEST, len(order)) - 1, len(order) - 1, 200).round().astype(int))
    x, y = confidence[order][places], share[places]
    axes.plot(x, y, color=style["color"], linewidth=1.4)
    axes.plot(x[-1:], y[-1:], marker=style["marker"], color=style["color"], markersize=5)
    return list(zip(x.tolist(), y.tolist(), strict=True))
