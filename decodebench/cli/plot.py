"""`decodebench plot`: pictures of recorded runs."""

from pathlib import Path
from typing import Annotated

import typer

from decodebench.cli.options import OnlyTasks, Results

plot_app = typer.Typer(no_args_is_help=True, help="Draw recorded runs.")


@plot_app.callback()
def plot() -> None:
    """Draw recorded runs."""


@plot_app.command("frontier")
def frontier(
    results: Results = None,
    baseline: Annotated[
        str, typer.Option(help="Method, or label of one of its settings, drawn as the baseline.")
    ] = "ar",
    task: OnlyTasks = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file to write (.png, .svg or .pdf; several times for several).",
            show_default="frontier.png, frontier.svg",
        ),
    ] = None,
) -> None:
    """Speed against quality: score against tokens per pass and against tokens/s, τ along each line."""
    from decodebench.analysis import plot
    from decodebench.analysis.compare import compare_runs
    from decodebench.analysis.labels import in_common
    from decodebench.analysis.load import load_runs, select_tasks

    runs = select_tasks(load_runs(results or [Path("results")]), task or [])
    figure = plot.frontier(compare_runs(runs, baseline, paired=False), in_common(runs))
    for path in out or [Path("frontier.png"), Path("frontier.svg")]:
        plot.save_figure(figure, path)
        typer.echo(path)
