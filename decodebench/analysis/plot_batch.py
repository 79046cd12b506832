"""Speed-up against batch size: what is gained while the hardware still has room, and what is left when it has none."""

from typing import TYPE_CHECKING, Any

from decodebench.analysis.figures import BASELINE, DASHES, MARKERS, QUIET, canvas, looks, settle
from decodebench.analysis.placement import end_labels
from decodebench.analysis.published import SOURCE, published_beside
from decodebench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 4.0  # speed-ups that are further apart than this are drawn on a logarithmic scale


def batch(frame: "pd.DataFrame", caption: str = "") -> "Figure":
    """Speed-up over the baseline against batch size, a line for each setting, published ones in grey.

    Args:
        frame: from `compare_runs`; bars are the intervals of the speed-ups, or their ranges where it has none.
        caption: a line of small print.

    Raises:
        UserError: no run has a speed-up.
    """
    others = frame[~frame["is_baseline"].astype(bool) & frame["speedup"].notna()]
    if others.empty:
        raise UserError("no run has a speed-up: there is nothing to plot")
    tasks = list(others.groupby("task"))
    theirs = False
    with canvas([3.4] * len(tasks)) as (figure, axes):
        panels = []
        for (axis,), (task, group) in zip(axes, tasks, strict=True):
            axis.set_title(task, loc="left", fontweight="bold")
            labels = _ours(axis, group)
            published = _published(axis, str(task), group)
            theirs |= bool(published)
            _scale(axis, group)
            axis.set_xlabel("batch size")
            axis.set_ylabel(f"speed-up over {_baseline(frame, str(task))}")
            panels.append((axis, labels + published))
        settle(figure, "bars: 95 % intervals" + (f" · grey: {SOURCE}" if theirs else ""), caption)
        for axis, labels in panels:
            end_labels(axis, labels)
    return figure


def _baseline(frame: "pd.DataFrame", task: str) -> str:
    return str(min(frame.loc[frame["is_baseline"].astype(bool) & (frame["task"] == task), "label"], key=len))


def _ours(axes: "Axes", group: "pd.DataFrame") -> list[tuple[float, float, str, object]]:
    """A line for each setting; returns the labels of their ends."""
    styles = looks(group)
    labels: list[tuple[float, float, str, object]] = []
    for label, line in group.sort_values("batch_size").groupby("label", sort=False):
        style = styles[line["series"].iloc[0]]
        low = line["speedup_low"].astype(float).fillna(line["speedup_min"])
        high = line["speedup_high"].astype(float).fillna(line["speedup_max"])
        bars = [(line["speedup"] - low).clip(lower=0), (high - line["speedup"]).clip(lower=0)]
        axes.errorbar(line["batch_size"], line["speedup"], bars, markersize=4.5, linewidth=1.4, elinewidth=0.8, **style)
        labels.append((line["batch_size"].iloc[-1], line["speedup"].iloc[-1], str(label), style["color"]))
    return labels


def _published(axes: "Axes", task: str, group: "pd.DataFrame") -> list[tuple[float, float, str, object]]:
    labels: list[tuple[float, float, str, object]] = []
    for number, paper in enumerate(published_beside(task, set(group["method"]))):
        sizes = [size for size in paper.speedups if size in set(group["batch_size"])]
        if sizes:
            values = [paper.speedups[size] for size in sizes]
            look: dict[str, Any] = {"color": QUIET, "linestyle": DASHES[number + 1], "marker": MARKERS[-1 - number]}
            axes.plot(sizes, values, markerfacecolor="white", linewidth=1, zorder=1, **look)
            labels.append((sizes[-1], values[-1], paper.label, QUIET))
    return labels


def _scale(axes: "Axes", group: "pd.DataFrame") -> None:
    import numpy as np
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    sizes = sorted(set(group["batch_size"]))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    axes.axhline(1, color=BASELINE, linestyle=":", linewidth=1, zorder=1)
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()])
    if drawn.max() > WIDE * drawn.min():
        axes.set_yscale("log")
        low, high = axes.dataLim.intervaly  # bars included
        axes.set_ylim(max(low, drawn.min() / 2) / 1.15, high * 1.15)
        axes.yaxis.set_major_locator(FixedLocator([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
