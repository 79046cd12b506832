"""How many tokens a pass commits, and how far along its block it gets."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from decodebench.analysis.figures import canvas, settle
from decodebench.analysis.labels import labels, natural
from decodebench.analysis.load import Run
from decodebench.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WRITTEN = 0.055  # shares smaller than this have no room for their number
MOST = 8  # tokens that have a colour of their own; more are counted with the last


def acceptance(runs: Sequence[Run], caption: str = "") -> "Figure":
    """For each task, beside each other: the shares of passes that commit 1, 2, … tokens, and of those that take the
    token at each position of their block, which is the share that commits at least so many.

    Passes of all batch sizes are counted together. Settings that never commit two tokens are left out.

    Args:
        runs: what `load_runs` gives.
        caption: a line of small print.

    Raises:
        UserError: no run commits more than one token in any pass.
    """
    counts: dict[str, dict[str, Counter[int]]] = {}
    for run, label in zip(runs, labels(runs), strict=True):
        histogram = Counter({int(size): n for size, n in run.aggregates["committed_histogram"].items()})
        counts.setdefault(run.config["task"], {}).setdefault(label, Counter()).update(histogram)
    shown = {
        task: {label: its[label] for label in sorted(its, key=natural) if max(its[label], default=0) > 1}
        for task, its in sorted(counts.items())
    }
    shown = {task: its for task, its in shown.items() if its}
    if not shown:
        raise UserError("no run commits more than one token in any pass: there is nothing to plot")
    with canvas([0.9 + max(1.2, 0.3 * len(its)) for its in shown.values()], 2) as (figure, axes):
        for (left, right), (task, its) in zip(axes, shown.items(), strict=True):
            left.set_title(task, loc="left", fontweight="bold")
            _shares(left, its)
            _reach(right, its)
        settle(
            figure, "passes over all batch sizes, prefill included; the first token of a pass is always taken", caption
        )
    return figure


def _shares(axes: "Axes", counts: dict[str, Counter[int]]) -> None:
    """A bar for each setting, cut into the shares of passes by the tokens that they commit."""
    import seaborn as sns

    most = min(MOST, max(max(its) for its in counts.values()))
    colors = [(0.93, 0.93, 0.93), *sns.color_palette("viridis_r", most)]
    for row, its in enumerate(counts.values()):
        total, start = sum(its.values()), 0.0
        for size in range(most + 1):
            share = sum(n for counted, n in its.items() if min(counted, most) == size) / total
            axes.barh(row + 0.5, share, left=start, color=colors[size], edgecolor="white", linewidth=0.8, height=0.7)
            if share > WRITTEN:
                more = "+" if size == most and max(its) > most else ""
                dark = sum(colors[size][:3]) < 1.5
                axes.text(
                    *(start + share / 2, row + 0.5, f"{size}{more}"),
                    ha="center", va="center", size=7, color="white" if dark else "0.1",
                )  # fmt: skip
            start += share
    axes.set_yticks([row + 0.5 for row in range(len(counts))], list(counts))
    axes.set_ylim(len(counts), 0)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of passes, by tokens committed")


def _reach(axes: "Axes", counts: dict[str, Counter[int]]) -> None:
    """A row for each setting: the share of passes that take the token at each position."""
    import numpy as np
    import seaborn as sns

    most = max(max(its) for its in counts.values())
    shares = np.array(
        [
            [
                sum(n for size, n in its.items() if size >= position) / sum(its.values())
                for position in range(1, most + 1)
            ]
            for its in counts.values()
        ]
    )
    written = np.vectorize(lambda share: f"{100 * share:.0f}" if share >= 0.005 else "")(shares)
    sns.heatmap(
        shares, vmin=0, vmax=1, cmap="Blues", cbar=False, linewidths=0.5,
        annot=written if most <= 16 else False, fmt="", annot_kws={"size": 7},
        xticklabels=list(range(1, most + 1)) if most <= 16 else 4, yticklabels=False, ax=axes,
    )  # fmt: skip
    axes.set_xlabel("passes that take the token at this position (%)")
