"""The batch-size study: speed-ups with a column for each batch size, published ones in rows of their own."""

from typing import TYPE_CHECKING

from decodebench.analysis.labels import natural
from decodebench.analysis.published import SOURCE, published_beside
from decodebench.analysis.tables import known, speedup_cell
from decodebench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def study_cells(frame: "pd.DataFrame") -> tuple[list[str], list[list[str]], list[str]]:
    """The comparison turned so that a setting is a row and a batch size is a column.

    Args:
        frame: from `compare_runs`.

    Returns:
        The names of the columns; the rows as they are shown, task first; and the sources of what is not ours.

    Raises:
        UserError: no run has a speed-up.
    """
    others = frame[~frame["is_baseline"].astype(bool) & frame["speedup"].notna()]
    if others.empty:
        raise UserError("--by batch: no run has a speed-up; it needs runs of the baseline and of something else")
    sizes = sorted(set(others["batch_size"]))
    cells, theirs = [], False
    for task, group in others.groupby("task"):
        for label in sorted(set(group["label"]), key=natural):
            rows = {row["batch_size"]: row for row in group[group["label"] == label].to_dict("records")}
            cells.append([str(task), label, *(speedup_cell(rows[size]) if size in rows else "–" for size in sizes)])
        for paper in published_beside(str(task), set(group["method"])):
            shown = [paper.speedups.get(size) for size in sizes]
            if any(map(known, shown)):
                theirs = True
                cells.append([str(task), paper.label, *(f"{value:.2f}×" if value else "–" for value in shown)])
    return ["task", "method", *(f"batch {size}" for size in sizes)], cells, [SOURCE] if theirs else []
