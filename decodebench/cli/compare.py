"""`decodebench compare`: recorded runs side by side."""

import io
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from decodebench.cli.options import OnlyTasks, Results


class Format(StrEnum):
    """How the comparison is written."""

    table = "table"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    json = "json"


def compare(
    results: Results = None,
    baseline: Annotated[
        str, typer.Option(help="Method, or label of one of its settings, that the others are measured against.")
    ] = "ar",
    task: OnlyTasks = None,
    format: Annotated[
        Format | None, typer.Option(help="Default: what the suffix of --out says, else a table.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file and not to the terminal.")] = None,
    categories: Annotated[
        bool, typer.Option("--by-category", help="Also by kind of prompt, where the task (speed) has kinds.")
    ] = False,
    wide: Annotated[bool, typer.Option("--wide", help="All columns.")] = False,
) -> None:
    """Compare recorded runs: score with its 95 % interval, tokens per pass, tokens/s and speed-up over the baseline.

    Scores and their differences (Δ) are in percent, times in seconds.
    Differences are taken on the same documents; n.s. marks those that the
    data do not support (McNemar's exact test, 5 % level). Speed-ups have a
    95 % bootstrap interval over requests and repeats. Runs of a suite
    (paper) are also averaged over its tasks.
    """
    from decodebench.analysis.categories import by_category
    from decodebench.analysis.compare import compare_runs
    from decodebench.analysis.labels import in_common
    from decodebench.analysis.load import load_runs, select_tasks
    from decodebench.analysis.output import write_output
    from decodebench.analysis.suites import add_averages
    from decodebench.analysis.tables import SUFFIXES, caption, print_table, render

    chosen = format.value if format else SUFFIXES.get(out.suffix if out else "", "table")
    runs = select_tasks(load_runs(results or [Path("results")]), task or [])
    frame = add_averages(compare_runs(by_category(runs) if categories else runs, baseline), runs)
    buffer = io.StringIO()
    if chosen != "table":
        buffer.write(render(frame, chosen, wide=wide))
    else:
        print_table(frame, caption(frame, in_common(runs)), buffer if out else None, wide=wide)
    if out:
        write_output(out, buffer.getvalue().encode())
    else:
        typer.echo(buffer.getvalue(), nl=False)
