"""Pictures of a comparison, made for print: colours that the colour-blind can tell apart, labels instead of legends."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodebench.analysis.output import write_output
from decodebench.analysis.placement import Label, place_labels
from decodebench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vPX"
DASHES = ["-", "--", "-.", (0, (1, 1))]
BASELINE = "0.2"
QUIET = "0.45"
NAME = {"weight": "bold", "size": 8}
PANELS = {"tokens_per_pass": "tokens per pass", "tokens_per_second": "tokens/s"}

# No dates and no random ids, so that the same records give the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


def frontier(frame: "pd.DataFrame", caption: str = "") -> "Figure":
    """Speed against quality: the score against tokens per pass and against tokens/s.

    A row for each task and batch size; a line for each method and setting along falling τ, whose values stand at the
    points; the baseline's score as a dotted line; bars are 95 % intervals of the score.

    Args:
        frame: from `compare_runs`.
        caption: a line of small print.

    Raises:
        UserError: no run has a score.
    """
    import seaborn as sns
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scored = frame.dropna(subset=["score"]).copy()
    if scored.empty:
        raise UserError("no run has a score: there is nothing to plot")
    for name in ("score", "score_low", "score_high"):
        scored[name] = 100 * scored[name].astype(float)
    looks = _looks(scored[~scored["is_baseline"]])
    groups = list(scored.groupby(["task", "batch_size"]))
    with rc_context({**sns.plotting_context("paper"), **sns.axes_style("ticks"), "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(8.4, 0.6 + 2.9 * len(groups)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(groups), len(PANELS), sharey="row", squeeze=False)
        panels = []
        for row, ((task, batch_size), group) in zip(axes, groups, strict=True):
            row[0].set_title(f"{task} · batch {batch_size}", loc="left", fontweight="bold")
            row[0].set_ylabel(f"{group['metric'].iloc[0].split(',')[0]} (%)")
            for panel, (x, name) in zip(row, PANELS.items(), strict=True):
                panels.append((panel, *_panel(panel, group.dropna(subset=[x]), x, looks)))
                panel.set_xlabel(name)
                sns.despine(ax=panel)
        small_print = "numbers at the points: τ · bars: 95 % intervals" + (f"\n{caption}" if caption else "")
        figure.supxlabel(small_print, fontsize=7, color=QUIET)
        figure.draw_without_rendering()  # settles the layout
        for panel, labels, lines in panels:
            place_labels(panel, labels, lines)
    return figure


def _looks(others: "pd.DataFrame") -> dict[str, dict[str, Any]]:
    """How each line is drawn: a colour and marker for each method and block size, dashes for each cache mode."""
    import seaborn as sns

    families = list(dict.fromkeys(others["family"]))
    looks: dict[str, dict[str, Any]] = {}
    for number, (color, family) in enumerate(
        zip(sns.color_palette("colorblind", len(families)), families, strict=True)
    ):
        for index, series in enumerate(dict.fromkeys(others.loc[others["family"] == family, "series"])):
            marker, linestyle = MARKERS[number % len(MARKERS)], DASHES[index % len(DASHES)]
            looks[series] = {"color": color, "marker": marker, "linestyle": linestyle}
    return looks


def _panel(
    axes: "Axes", group: "pd.DataFrame", x: str, looks: dict[str, dict[str, Any]]
) -> tuple[list[Label], list[list[tuple[float, float]]]]:
    """Draw one panel. Returns its labels, the most important first, and its lines."""
    import seaborn as sns

    names, values, lines = [], [], []
    for _, base in group[group["is_baseline"]].iterrows():
        axes.axhline(base["score"], color=BASELINE, linestyle=":", linewidth=1, zorder=1)
        axes.plot(base[x], base["score"], marker="*", color=BASELINE, markersize=9, linestyle="", zorder=4)
        names.append(Label(base[x], base["score"], base["label"], NAME | {"color": BASELINE}, name=True))
    for series, line in group[~group["is_baseline"]].groupby("series", sort=False):
        look = looks[str(series)]
        color = look["color"]
        line = line.sort_values("tau", ascending=False, na_position="first")
        sns.lineplot(line, x=x, y="score", sort=False, estimator=None, ax=axes, zorder=3, **look)
        errors = [line["score"] - line["score_low"], line["score_high"] - line["score"]]
        axes.errorbar(line[x], line["score"], errors, color=color, alpha=0.25, linewidth=1, linestyle="", zorder=2)
        points = list(zip(line[x], line["score"], strict=True))
        lines.append(points)
        names.append(Label(*points[-1], str(series), NAME | {"color": color}, name=True))
        known = line.dropna(subset=["tau"])
        values += [
            Label(speed, score, f"{tau:g}", {"color": color, "size": 7})
            for speed, score, tau in zip(known[x], known["score"], known["tau"], strict=True)
        ]
    left, right = axes.get_xlim()
    right += 0.2 * (right - left)  # room for the names of the lines
    axes.set_xlim(left, right)
    lines += [[(left, base.y), (right, base.y)] for base in names[: int(group["is_baseline"].sum())]]
    return names + values, lines


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure in the format that the suffix says; the same figure gives the same bytes.

    Raises:
        UserError: the format is unknown, or the file cannot be written.
    """
    from matplotlib import rc_context

    format = path.suffix[1:].lower()
    if format not in METADATA:
        raise UserError(f"cannot write '{path}': the name must end in .png, .svg or .pdf")
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "decodebench", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=format, dpi=200, metadata=METADATA[format])
    write_output(path, buffer.getvalue())
