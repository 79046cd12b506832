"""Load against what it does: where each policy's latency turns up, and what happens when the load steps up."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decodebench.analysis.figures import QUIET, canvas, looks, settle
from decodebench.analysis.load import Run
from decodebench.analysis.placement import end_labels
from decodebench.analysis.service import mean_rate, service_frame, service_labels
from decodebench.errors import UserError
from decodebench.records import read_samples
from decodebench.records.passes import read_passes

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 40  # in the time of a load
PANELS = {"tau": "τ", "waiting": "requests that wait", "latency": "p95 latency (s)"}
Lines = list[tuple[float, float, str, object]]


def latency_against_load(runs: Sequence[Run], caption: str = "") -> "Figure":
    """The 95th percentile of latency and the goodput against the offered load, a line for each policy.

    Args:
        runs: under load, at several rates.
        caption: a line of small print.

    Raises:
        UserError: no policy was run at several rates.
    """
    frame = service_frame([run for run in runs if not _steps(run)] or runs)
    groups = [(f"{task} · {rows} rows", group) for (task, rows), group in frame.groupby(["task", "batch_size"])]
    groups = [(heading, group) for heading, group in groups if group["plan"].nunique() > 1]
    if not groups:
        raise UserError("plot load: no runs at several rates; --over-time draws a single load")
    with canvas([3.0] * len(groups), 2) as (figure, axes):
        ends: list[tuple[Any, Lines]] = []
        for panels, (heading, group) in zip(axes, groups, strict=True):
            panels[0].set_title(heading, loc="left", fontweight="bold")
            styles = _styles(list(dict.fromkeys(group["label"])))
            for panel, name, words in zip(
                panels, ("latency_p95", "goodput"), ("p95 latency (s)", "good requests per second"), strict=True
            ):
                lines = _against_rate(panel, group, name, styles)
                panel.set_xlabel("requests per second that arrive")
                panel.set_ylabel(words)
                if name == "goodput":
                    top = float(group["rate"].max())
                    panel.plot([0, top], [0, top], color=QUIET, linestyle=":", linewidth=1, zorder=1)
                    ends.append((panel, lines))
                else:
                    _seconds(panel, [run.config["target_latency"] for run in runs])
        settle(
            figure, "bars: 95 % intervals over requests · dotted: all that arrives is served within the target", caption
        )
        for panel, lines in ends:
            end_labels(panel, lines)
    return figure


def load_over_time(runs: Sequence[Run], caption: str = "") -> "Figure":
    """τ, queue and latency in the course of a load, a line for each policy; one column for each load.

    Args:
        runs: under load; those whose rate changes, if there are any, else all.
        caption: a line of small print.

    Raises:
        UserError: there are more loads than can be drawn side by side.
    """
    chosen = [run for run in runs if _steps(run)] or list(runs)
    loads: dict[tuple[Any, ...], list[Run]] = {}
    for run in sorted(chosen, key=mean_rate):
        loads.setdefault((run.config["task"], run.config["batch_size"], str(run.config["rate"])), []).append(run)
    if len(loads) > 3:
        raise UserError(f"plot load --over-time: {len(loads)} loads; choose some with --where rate=... or --task")
    styles = _styles(list(dict.fromkeys(service_labels(chosen))))
    with canvas([1.7] * len(PANELS), len(loads), sharex="col", sharey="row") as (figure, axes):
        ends = []
        for column, ((task, rows, rate), members) in enumerate(loads.items()):
            axes[0, column].set_title(f"{task} · {rate}/s · {rows} rows", loc="left", fontweight="bold")
            for panel, (name, words) in zip(axes[:, column], PANELS.items(), strict=True):
                lines: Lines = []
                for run, label in zip(members, service_labels(members), strict=True):
                    moments, values = _course(run, name)
                    style = {key: styles[label][key] for key in ("color", "linestyle")}
                    panel.plot(moments, values, linewidth=1.4, **style)
                    if len(moments):
                        lines.append((float(moments[-1]), float(values[-1]), label, style["color"]))
                _mark_steps(panel, members[0])
                if not column:
                    panel.set_ylabel(words)
                if name == "latency":
                    _seconds(panel, [run.config["target_latency"] for run in members])
                    panel.set_xlabel("seconds since the load began")
            ends.append((axes[-1, column], lines))
        settle(
            figure,
            "latency by the moment at which a request was due · dotted: the rate changes · dashed: target",
            caption,
        )
        for panel, lines in ends[-1:]:
            end_labels(panel, lines)
    return figure


def _steps(run: Run) -> bool:
    return "/" in str(run.config["rate"])


def _styles(names: list[str]) -> dict[str, dict[str, Any]]:
    import pandas as pd

    return looks(pd.DataFrame({"family": names, "series": names}))


def _against_rate(axes: "Axes", group: "pd.DataFrame", name: str, styles: dict[str, dict[str, Any]]) -> Lines:
    ends: Lines = []
    for label, line in group.dropna(subset=[name]).sort_values("rate").groupby("label", sort=False):
        low, high = (line[f"{name}_{side}"].astype(float).fillna(line[name]) for side in ("low", "high"))
        bars = [(line[name] - low).clip(lower=0), (high - line[name]).clip(lower=0)]
        style = styles[str(label)]
        axes.errorbar(line["rate"], line[name], bars, markersize=4.5, linewidth=1.4, elinewidth=0.8, **style)
        ends.append((line["rate"].iloc[-1], line[name].iloc[-1], str(label), style["color"]))
    return ends


def _course(run: Run, name: str) -> "tuple[np.ndarray, np.ndarray]":
    """Seconds, and what was seen around them, over all repeats."""
    import numpy as np

    if name == "latency":
        samples = [sample for sample in read_samples(run.folder) if sample["latency"] is not None]
        points = [(sample["due"], sample["latency"]) for sample in samples]
    else:
        passes = [each for repeat in range(run.record["repeats"]) for each in read_passes(run.folder, repeat)]
        points = [(each["t"], float(np.mean(each[name]))) for each in passes if each[name] is not None]
    if not points:
        return np.zeros(0), np.zeros(0)
    moments, values = np.array(points).T
    edges = np.linspace(0, float(run.config["duration"]), BINS + 1)
    place = np.digitize(moments, edges) - 1
    inside = [index for index in range(BINS) if (place == index).any()]
    seen = [values[place == index] for index in inside]
    summary = [np.percentile(each, 95) if name == "latency" else each.mean() for each in seen]
    return (edges[:-1] + edges[1:])[inside] / 2, np.array(summary)


def _seconds(axes: "Axes", targets: list[float | None]) -> None:
    """A logarithmic scale in plain numbers, with the target, where all have the same."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    if len(set(targets)) == 1 and targets[0] is not None:
        axes.axhline(targets[0], color=QUIET, linestyle="--", linewidth=1, zorder=1)


def _mark_steps(axes: "Axes", run: Run) -> None:
    if not _steps(run):
        return
    moment = 0.0
    for piece in str(run.config["rate"]).split("/")[:-1]:
        moment += float(piece.partition(":")[2])
        axes.axvline(moment, color=QUIET, linestyle=":", linewidth=1, zorder=1)
