"""`decodebench compare`: recorded runs side by side."""

import io
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decodebench.cli.options import OnlyTasks, OnlyWhere, Results
from decodebench.errors import UserError

if TYPE_CHECKING:
    from decodebench.analysis.load import Run


class Format(StrEnum):
    """How the comparison is written."""

    table = "table"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    json = "json"


class By(StrEnum):
    """What the table's headings name."""

    task = "task"
    method = "method"
    batch = "batch"


def compare(
    results: Results = None,
    baseline: Annotated[
        str, typer.Option(help="Method, or label of one of its settings, that the others are measured against.")
    ] = "ar",
    task: OnlyTasks = None,
    where: OnlyWhere = None,
    by: Annotated[
        By, typer.Option(help="Headings: tasks and batch sizes, or methods. batch: speed-ups by batch size alone.")
    ] = By.task,
    sort: Annotated[
        str | None, typer.Option(help="Column to sort by, the best first (speedup, score, latency_p95 …).")
    ] = None,
    best: Annotated[
        float | None,
        typer.Option(help="Only the fastest setting that loses at most so many points, and the Pareto set.", min=0),
    ] = None,
    format: Annotated[
        Format | None, typer.Option(help="Default: what the suffix of --out says, else a table.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file and not to the terminal.")] = None,
    categories: Annotated[
        bool, typer.Option("--by-category", help="Also by kind of prompt, where the task (speed) has kinds.")
    ] = False,
    wide: Annotated[bool, typer.Option("--wide", help="All columns.")] = False,
    load: Annotated[
        bool, typer.Option("--load", help="Runs of `decodebench load`, which have a table of their own.")
    ] = False,
    roofline: Annotated[
        bool,
        typer.Option(
            "--roofline", help="How near to the machine's limits passes came (of `decodebench run --roofline`)."
        ),
    ] = False,
) -> None:
    """Compare recorded runs: score with its 95 % interval, tokens per pass, tokens/s and speed-up over the baseline.

    Scores and their differences (Δ) are in percent, times in seconds.
    Differences are taken on the same documents; n.s. marks those that the
    data do not support (McNemar's exact test, 5 % level). Speed-ups have a
    95 % bootstrap interval over requests and repeats. Runs of a suite
    (paper) are also averaged over its tasks, others over all tasks.
    same %: tokens equal to the baseline's; log p: mean log-probability of
    a token in the model's AR mode, in nats, where it was recorded.
    """
    from decodebench.analysis.categories import by_category
    from decodebench.analysis.compare import compare_runs
    from decodebench.analysis.labels import in_common
    from decodebench.analysis.load import load_runs, select_tasks
    from decodebench.analysis.output import write_output
    from decodebench.analysis.roofline import roofline_table
    from decodebench.analysis.selection import choose_best, select_where, sort_rows
    from decodebench.analysis.study import study_cells
    from decodebench.analysis.suites import add_averages
    from decodebench.analysis.tables import SUFFIXES, caption, print_cells, print_table, render, render_cells

    if load and roofline:
        raise UserError("--load and --roofline: give one of them; loads record no roofline")
    chosen = format.value if format else SUFFIXES.get(out.suffix if out else "", "table")
    runs = select_where(select_tasks(load_runs(results or [Path("results")], load), task or []), where or [])
    if load or roofline:
        text = roofline_table(runs, chosen) if roofline else _under_load(runs, baseline, chosen, wide)
        write_output(out, text.encode()) if out else typer.echo(text, nl=False)
        return
    frame = compare_runs(by_category(runs) if categories else runs, baseline)
    remarks: list[str] = []
    if best is not None:
        frame, remarks = choose_best(frame, best)
    elif by != By.batch:
        frame = add_averages(frame, runs)
    if sort:
        frame = sort_rows(frame, sort)
    buffer = io.StringIO()
    file = buffer if out else None
    if by == By.batch and chosen not in ("csv", "json"):
        columns, cells, sources = study_cells(frame)
        if chosen == "table":
            rows = [(row[0], row[1:]) for row in cells]
            print_cells(columns[1:], rows, "\n".join([in_common(runs), *sources]), file)
        else:
            buffer.write(render_cells(columns, cells, chosen))
    elif chosen != "table":
        buffer.write(render(frame, chosen, wide=wide))
    else:
        about = "\n".join([*remarks, caption(frame, in_common(runs))])
        print_table(frame, about, file, wide=wide, by=by.value)
    if out:
        write_output(out, buffer.getvalue().encode())
    else:
        typer.echo(buffer.getvalue(), nl=False)


def _under_load(runs: "Sequence[Run]", baseline: str, format: str, wide: bool) -> str:
    """The comparison of runs under load, in this format."""
    from decodebench.analysis.labels import in_common
    from decodebench.analysis.service import service_frame
    from decodebench.analysis.service_table import service_caption, service_cells
    from decodebench.analysis.tables import print_cells, render, render_cells

    frame = service_frame(runs, baseline)
    if format in ("csv", "json"):
        return render(frame, format)
    columns, cells = service_cells(frame, wide)
    if format != "table":
        return render_cells(columns, cells, format)
    buffer = io.StringIO()
    print_cells(columns[1:], [(row[0], row[1:]) for row in cells], service_caption(in_common(runs)), buffer)
    return buffer.getvalue()
