"""A comparison in the format that it is needed in: terminal table, Markdown, LaTeX, CSV or JSON."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from decodebench.records.files import plain

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[Any, Any]

SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}


def render(frame: "pd.DataFrame", format: str, *, wide: bool = False) -> str:
    """The comparison as text.

    Args:
        frame: from `compare_runs`.
        format: "markdown" or "latex", with the numbers as people read them, or "csv" or "json", which hold every
            column of the frame as it is.
        wide: all columns, not only the most important ones; CSV and JSON always have all.
    """
    if format == "csv":
        return frame.to_csv(index=False, lineterminator="\n")
    if format == "json":
        return json.dumps(plain(frame.to_dict("records")), ensure_ascii=False, indent=2) + "\n"
    return render_cells(*_cells(frame, wide), format)


def render_cells(columns: list[str], cells: list[list[str]], format: str) -> str:
    """A table that is made already, as "markdown" or "latex"."""
    return _markdown(columns, cells) if format == "markdown" else _latex(columns, cells)


def print_table(
    frame: "pd.DataFrame", caption: str, file: TextIO | None = None, *, wide: bool = False, by: str = "task"
) -> None:
    """Print the comparison for people, with a heading for each task and batch size, or for each method.

    Args:
        frame: from `compare_runs`.
        caption: what is said below the table.
        file: where to; standard output if None.
        wide: all columns; without them the table fits 100 columns as long as the labels are short.
        by: "task" or "method", which the headings name.
    """
    columns, cells = _cells(frame, wide)
    if by == "method":
        order = {name: place for place, name in enumerate(dict.fromkeys(row[2] for row in cells))}
        cells.sort(key=lambda row: order[row[2]])
        print_cells([*columns[:2], *columns[3:]], [(row[2], [*row[:2], *row[3:]]) for row in cells], caption, file)
    else:
        quiet = frame["is_baseline"].astype(bool)
        rows = [(f"{row[0]} · batch {row[1]}", row[2:]) for row in cells]
        print_cells(columns[2:], rows, caption, file, quiet=list(quiet))


def print_cells(
    columns: list[str],
    rows: list[tuple[str, list[str]]],
    caption: str,
    file: TextIO | None = None,
    quiet: Sequence[bool] = (),
) -> None:
    """Print a table for people.

    Args:
        columns: their names.
        rows: each with the heading that it belongs under, and its cells.
        caption: what is said below the table.
        file: where to; standard output if None.
        quiet: which rows are dimmed; none if empty.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=name not in LEFT)
    for index, (heading, row) in enumerate(rows):
        if not index or heading != rows[index - 1][0]:
            table.add_section()
            table.add_row(heading, style="bold")
        table.add_row(*row, style="dim" if quiet and quiet[index] else None)
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console.width = 1000  # what reads a file or a pipe has no width to fit
    console.print(table)
    console.print(caption, style="dim", markup=False)


def caption(frame: "pd.DataFrame", common: str) -> str:
    """What the table leaves unsaid: what all runs have in common, and for each task its metric and size."""
    tasks = frame.groupby("task").agg({"metric": "first", "documents": "max"})
    about = [
        f"{task}: {f'{row.metric} of ' if known(row.metric) else ''}{row.documents} documents"
        for task, row in tasks.iterrows()
    ]
    if frame["speedup_low"].notna().any() and (frame["repeats"].dropna() == 1).all():
        about.append("one repeat: the intervals of speed-ups leave out what changes from one to the next")
    return "\n".join([common, *about])


def known(value: Any) -> bool:
    """Whether there is a number at all: neither None nor NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _if_known(name: str, write: Callable[[Row], str]) -> Callable[[Row], str]:
    """A column that is a dash where its main number is missing."""
    return lambda row: write(row) if known(row[name]) else "–"


def _score(row: Row) -> str:
    if not known(row["score_low"]):
        return f"{100 * row['score']:.1f}"
    return f"{100 * row['score']:.1f} [{100 * row['score_low']:.0f}, {100 * row['score_high']:.0f}]"


def _difference(row: Row) -> str:
    return f"{100 * row['difference']:+.1f}".replace("-", "−") + ("" if row["significant"] else " n.s.")


def _difference_interval(row: Row) -> str:
    return f"[{100 * row['difference_low']:+.1f}, {100 * row['difference_high']:+.1f}]".replace("-", "−")


def _ar_difference(row: Row) -> str:
    bounds = row["ar_logprob_difference_low"], row["ar_logprob_difference_high"]
    return f"[{bounds[0]:+.3f}, {bounds[1]:+.3f}]".replace("-", "−")


def _p_value(row: Row) -> str:
    return "<0.001" if row["p_value"] < 0.001 else f"{row['p_value']:.3f}"


def _speed(row: Row) -> str:
    return number(row["tokens_per_second"])


def _speed_spread(row: Row) -> str:
    return f"{number(row['tokens_per_second_min'])}–{number(row['tokens_per_second_max'])}"


def speedup_cell(row: Row) -> str:
    """A speed-up with its interval, where there is one."""
    text = f"{row['speedup']:.2f}×"
    if not known(row["speedup_low"]):
        return text
    return f"{text} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"


def number(value: float) -> str:
    """Three significant digits, never in scientific notation."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}"


# When a column is in the usual table.
ALWAYS, SCORED, UNSCORED, NEVER = "always", "where there is a score", "where there is none", "never"
LIKELY = "where the AR mode was asked"

# Name of a column, when the usual table has it, and how a row shows it.
VIEW: list[tuple[str, str, Callable[[Row], str]]] = [
    ("task", ALWAYS, lambda row: row["task"]),
    ("batch", ALWAYS, lambda row: str(row["batch_size"])),
    ("method", ALWAYS, lambda row: row["label"]),
    ("n", NEVER, lambda row: str(row["documents"])),
    ("score %", SCORED, _if_known("score", _score)),
    ("Δ", SCORED, _if_known("difference", _difference)),
    ("Δ 95 %", NEVER, _if_known("difference", _difference_interval)),
    ("p", NEVER, _if_known("p_value", _p_value)),
    ("same %", UNSCORED, _if_known("equal_tokens", lambda row: f"{100 * row['equal_tokens']:.0f}")),
    ("same out %", NEVER, _if_known("equal_outputs", lambda row: f"{100 * row['equal_outputs']:.0f}")),
    ("1st diff", NEVER, _if_known("first_difference", lambda row: f"{row['first_difference']:.0f}")),
    ("log p", LIKELY, _if_known("ar_logprob", lambda row: f"{row['ar_logprob']:.3f}".replace("-", "−"))),
    ("Δ log p 95 %", NEVER, _if_known("ar_logprob_difference", _ar_difference)),
    ("tok/pass", ALWAYS, _if_known("tokens_per_pass", lambda row: f"{row['tokens_per_pass']:.2f}")),
    ("tok/s", ALWAYS, _if_known("tokens_per_second", _speed)),
    ("min–max", NEVER, _if_known("tokens_per_second", _speed_spread)),
    ("draft %", NEVER, _if_known("draft_share", lambda row: f"{100 * row['draft_share']:.1f}")),
    ("speed-up", ALWAYS, _if_known("speedup", speedup_cell)),
    ("p50 s", ALWAYS, _if_known("latency_p50", lambda row: number(row["latency_p50"]))),
    ("p95 s", UNSCORED, _if_known("latency_p95", lambda row: number(row["latency_p95"]))),
    ("p99 s", UNSCORED, _if_known("latency_p99", lambda row: number(row["latency_p99"]))),
    ("TTFT s", NEVER, _if_known("ttft_p50", lambda row: number(row["ttft_p50"]))),
    ("GB", NEVER, _if_known("peak_memory_bytes", lambda row: f"{row['peak_memory_bytes'] / 1e9:.2f}")),
    ("failed", NEVER, lambda row: str(row["failed_requests"])),
    ("front", NEVER, lambda row: "•" if row["pareto"] is True else ""),
]
LEFT = {"task", "method"}


def _cells(frame: "pd.DataFrame", wide: bool) -> tuple[list[str], list[list[str]]]:
    usual = {ALWAYS, SCORED if frame["score"].notna().any() else UNSCORED, LIKELY}
    rows = frame.to_dict("records")
    columns = {name: [write(row) for row in rows] for name, when, write in VIEW if wide or when in usual}
    shown = {name: cells for name, cells in columns.items() if any(cell != "–" for cell in cells)}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def _markdown(columns: list[str], cells: list[list[str]]) -> str:
    rule = [":--" if name in LEFT else "--:" for name in columns]
    lines = [columns, rule, *([cell.replace("|", "\\|") for cell in row] for row in cells)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# What LaTeX reads as an instruction, and what its usual fonts lack.
LATEX = str.maketrans(
    {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
    | {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "τ": r"$\tau$", "Δ": r"$\Delta$", "×": r"$\times$"}
    | {"−": "$-$", "–": "--"}
)


def _latex(columns: list[str], cells: list[list[str]]) -> str:
    """A booktabs table; a rule between groups of the same task and batch size."""
    lines = [rf"\begin{{tabular}}{{{''.join('l' if name in LEFT else 'r' for name in columns)}}}", r"\toprule"]
    lines += [_latex_row(columns), r"\midrule"]
    for index, row in enumerate(cells):
        if index and row[:2] != cells[index - 1][:2]:
            lines.append(r"\midrule")
        lines.append(_latex_row(row))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_row(cells: list[str]) -> str:
    return " & ".join(cell.translate(LATEX) for cell in cells) + r" \\"
