"""What all pictures share: made for print, colours that the colour-blind can tell apart, labels instead of legends."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodebench.analysis.output import write_output
from decodebench.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

MARKERS = "osD^vPX"
DASHES = ["-", "--", "-.", (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1))]
BASELINE = "0.2"
QUIET = "0.45"
NAME: dict[str, Any] = {"weight": "bold", "size": 8}
WIDTH = 8.4  # inches

# No dates and no random ids, so that the same records give the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


@contextmanager
def canvas(heights: Sequence[float], columns: int = 1, **subplots: Any) -> "Iterator[tuple[Figure, np.ndarray]]":
    """A figure with a row of panels for each height (inches), in the house style while inside.

    Yields the figure and its axes, [rows, columns].
    """
    import seaborn as sns
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({**sns.plotting_context("paper"), **sns.axes_style("ticks"), "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(WIDTH, 0.6 + sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        ratios = {"height_ratios": list(heights)}
        yield figure, figure.subplots(len(heights), columns, squeeze=False, gridspec_kw=ratios, **subplots)
        for axes in figure.axes:
            sns.despine(ax=axes)


def settle(figure: "Figure", small_print: str, caption: str) -> None:
    """Write what is said below the panels, and lay them out: labels can be placed from then on."""
    figure.supxlabel("\n".join(filter(None, (small_print, caption))), fontsize=7, color=QUIET)
    figure.draw_without_rendering()


def looks(frame: "pd.DataFrame") -> dict[str, dict[str, Any]]:
    """How each series is drawn: a colour and marker for each method and block size, dashes for each cache mode."""
    import seaborn as sns

    families = list(dict.fromkeys(frame["family"]))
    found: dict[str, dict[str, Any]] = {}
    # yellow and light blue fade in print: darker colours of the palette first
    palette = [sns.color_palette("colorblind")[place] for place in (0, 3, 2, 4, 1, 5, 7, 9, 6, 8)]
    for number, family in enumerate(families):
        color, marker = palette[number % len(palette)], MARKERS[number % len(MARKERS)]
        for index, series in enumerate(dict.fromkeys(frame.loc[frame["family"] == family, "series"])):
            found[series] = {"color": color, "marker": marker, "linestyle": DASHES[index % len(DASHES)]}
    return found


def groups(frame: "pd.DataFrame") -> "list[tuple[str, pd.DataFrame]]":
    """The rows of each task and batch size, with its heading."""
    return [(f"{task} · batch {size}", group) for (task, size), group in frame.groupby(["task", "batch_size"])]


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
