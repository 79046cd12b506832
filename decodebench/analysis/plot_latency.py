"""How long requests take: not only on average."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from decodebench.analysis.compare import compare_runs
from decodebench.analysis.figures import QUIET, canvas, groups, looks, settle
from decodebench.analysis.load import Run
from decodebench.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURES = {"latency": "seconds per request", "ttft": "seconds to the first token"}


def latency(runs: Sequence[Run], baseline: str = "ar", caption: str = "") -> "Figure":
    """The distribution of latencies and of times to the first token, a box for each setting.

    A row for each task and batch size. Boxes hold the middle half of the requests, whiskers reach from the 5th to the
    95th percentile, a bar stands at the 99th; the numbers are the 50th, 95th and 99th.

    Args:
        runs: what `load_runs` gives.
        baseline: a method's name, or the label of one of its settings; stands first.
        caption: a line of small print.

    Raises:
        UserError: no run has latencies.
    """
    frame = compare_runs(runs, baseline, paired=False).dropna(subset=["latency_p50"])
    if frame.empty:
        raise UserError("no run has latencies: there is nothing to plot")
    by_name = {run.name: run for run in runs}
    styles = looks(frame)
    rows = groups(frame)
    with canvas([0.8 + 0.34 * len(group) for _, group in rows], 2, sharey="row") as (figure, axes):
        for panels, (heading, group) in zip(axes, rows, strict=True):
            panels[0].set_title(heading, loc="left", fontweight="bold")
            colors = [styles[series]["color"] for series in group["series"]]
            for panel, (name, words) in zip(panels, MEASURES.items(), strict=True):
                seconds = [by_name[run].samples[name].dropna().to_numpy() for run in group["run"]]
                _boxes(panel, group, seconds, colors)
                panel.set_xlabel(words)
        settle(figure, "boxes: middle half · whiskers: 5–95 % · bar: 99 % · numbers: p50 · p95 · p99", caption)
    return figure


def _boxes(axes: "Axes", group: "pd.DataFrame", seconds: "list[np.ndarray]", colors: list[str]) -> None:
    import numpy as np
    import pandas as pd
    import seaborn as sns

    places = [place for place, values in enumerate(seconds) if len(values)]
    data = pd.DataFrame(
        {
            "seconds": np.concatenate([seconds[place] for place in places] or [np.zeros(0)]),
            "place": np.repeat(places, [len(seconds[place]) for place in places]).astype(int),
        }
    )
    palette = {place: colors[place] for place in places}
    if places:
        sns.boxplot(
            data, x="seconds", y="place", hue="place", palette=palette, order=range(len(seconds)), orient="h",
            whis=(5, 95), showfliers=False, width=0.6, linewidth=0.8, legend=False, ax=axes,
        )  # fmt: skip
    tops = {place: np.percentile(seconds[place], [50, 95, 99]) for place in places}
    end = max((top[2] for top in tops.values()), default=1.0)
    for place, top in tops.items():
        axes.plot([top[2]] * 2, [place - 0.25, place + 0.25], color=colors[place], linewidth=1.6)
        axes.annotate(
            " · ".join(f"{value:.3g}" for value in top),
            (top[2], place), (6, 0), textcoords="offset points", va="center", size=7, color=QUIET,
        )  # fmt: skip
    axes.set_xlim(0, 1.55 * end)
    axes.set_ylim(len(seconds) - 0.5, -0.5)
    axes.set_yticks(range(len(seconds)), list(group["label"]))
    axes.set_ylabel("")
