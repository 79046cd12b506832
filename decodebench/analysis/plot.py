"""Speed against quality: what a method gives for what it costs."""

from typing import TYPE_CHECKING, Any

from decodebench.analysis.figures import BASELINE, NAME, canvas, groups, looks, save_figure, settle
from decodebench.analysis.placement import Label, place_labels
from decodebench.analysis.selection import pareto
from decodebench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PANELS", "QUALITIES", "frontier", "save_figure"]

PANELS = {"tokens_per_pass": "tokens per pass", "tokens_per_second": "tokens/s"}
QUALITIES = {
    "score": "{} (%)",
    "equal_tokens": "tokens equal to the baseline's (%)",
    "ar_logprob": "log p per token in AR mode (nats)",
}
SMALL_PRINT = (
    "numbers at the points: τ · bars: 95 % intervals, of tokens/s the range of the repeats · grey: Pareto front"
)


def frontier(frame: "pd.DataFrame", caption: str = "", quality: str = "score") -> "Figure":
    """Speed against quality: the score against tokens per pass and against tokens/s.

    A row for each task and batch size; a line for each method and setting along falling τ, whose values stand at the
    points; the baseline's quality as a dotted line; bars are 95 % intervals of the quality and the range of tokens/s
    over the repeats. The grey band joins the Pareto set: the settings that no other one beats in both.

    Args:
        frame: from `compare_runs`.
        caption: a line of small print.
        quality: one of `QUALITIES`: the score, or what needs no right answers.

    Raises:
        UserError: no run has the quality.
    """
    known = frame.copy()
    if quality == "equal_tokens":
        known.loc[known["is_baseline"].astype(bool), quality] = 1.0
    known = known.dropna(subset=[quality])
    if known.empty:
        raise UserError(f"no run has a {quality.replace('_', ' ')}: there is nothing to plot")
    for name in ("quality", "quality_low", "quality_high"):
        column = name.replace("quality", quality)
        factor = 1 if quality == "ar_logprob" else 100
        known[name] = factor * known[column].astype(float) if column in known else known["quality"]
    styles = looks(known[~known["is_baseline"].astype(bool)])
    rows = groups(known)
    with canvas([2.9] * len(rows), len(PANELS), sharey="row") as (figure, axes):
        panels = []
        for row, (heading, group) in zip(axes, rows, strict=True):
            row[0].set_title(heading, loc="left", fontweight="bold")
            row[0].set_ylabel(QUALITIES[quality].format(str(group["metric"].iloc[0]).split(",")[0]))
            for panel, (x, name) in zip(row, PANELS.items(), strict=True):
                panels.append((panel, *_panel(panel, group.dropna(subset=[x]), x, styles)))
                panel.set_xlabel(name)
        settle(figure, SMALL_PRINT, caption)
        for panel, labels, lines in panels:
            place_labels(panel, labels, lines)
    return figure


def _panel(
    axes: "Axes", group: "pd.DataFrame", x: str, styles: dict[str, dict[str, Any]]
) -> tuple[list[Label], list[list[tuple[float, float]]]]:
    """Draw one panel. Returns its labels, the most important first, and its lines."""
    import seaborn as sns

    names, values, lines = [], [], []
    front = group[pareto(group, x, "quality")].sort_values([x, "quality"])
    axes.plot(front[x], front["quality"], color="0.88", linewidth=7, solid_capstyle="round", zorder=0)
    is_baseline = group["is_baseline"].astype(bool)
    for _, base in group[is_baseline].iterrows():
        axes.axhline(base["quality"], color=BASELINE, linestyle=":", linewidth=1, zorder=1)
        axes.plot(base[x], base["quality"], marker="*", color=BASELINE, markersize=9, linestyle="", zorder=4)
        names.append(Label(base[x], base["quality"], base["label"], NAME | {"color": BASELINE}, name=True))
    for series, line in group[~is_baseline].groupby("series", sort=False):
        style = styles[str(series)]
        color = style["color"]
        line = line.sort_values("tau", ascending=False, na_position="first")
        sns.lineplot(line, x=x, y="quality", sort=False, estimator=None, ax=axes, zorder=3, **style)
        bars: dict[str, Any] = {"yerr": [line["quality"] - line["quality_low"], line["quality_high"] - line["quality"]]}
        if x == "tokens_per_second":
            bars["xerr"] = [line[x] - line[f"{x}_min"], line[f"{x}_max"] - line[x]]
        axes.errorbar(line[x], line["quality"], color=color, alpha=0.3, linewidth=1, linestyle="", zorder=2, **bars)
        points = list(zip(line[x], line["quality"], strict=True))
        lines.append(points)
        names.append(Label(*points[-1], str(series), NAME | {"color": color}, name=True))
        known = line.dropna(subset=["tau"])
        values += [
            Label(speed, good, f"{tau:g}", {"color": color, "size": 7})
            for speed, good, tau in zip(known[x], known["quality"], known["tau"], strict=True)
        ]
    left, right = axes.get_xlim()
    right += 0.2 * (right - left)  # room for the names of the lines
    axes.set_xlim(left, right)
    lines += [[(left, base.y), (right, base.y)] for base in names[: int(is_baseline.sum())]]
    return names + values, lines
