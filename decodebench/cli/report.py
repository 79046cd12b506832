"""`decodebench report`: recorded runs as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from decodebench.cli.options import OnlyTasks, Results


def report(
    results: Results = None,
    baseline: Annotated[
        str, typer.Option(help="Method, or label of one of its settings, that the others are measured against.")
    ] = "ar",
    task: OnlyTasks = None,
    documents: Annotated[int, typer.Option(min=0, help="Documents of each task whose answers are shown.")] = 24,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "decodebench report",
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML file: comparison, plots, answers token by token, configuration of every run.

    It opens from disk in any current browser and loads nothing from the
    network. Answers need the tokenizer of the runs' model; where it cannot be
    had, token ids are shown.
    """
    from decodebench.analysis.load import load_runs, select_tasks
    from decodebench.analysis.output import write_output
    from decodebench.analysis.report import build_report
    from decodebench.pieces import Decode, decoder

    def decoder_of(model: str) -> Decode:
        from decodebench.models import load_tokenizer  # torch comes with it

        return decoder(load_tokenizer(model))

    runs = select_tasks(load_runs(results or [Path("results")]), task or [])
    write_output(out, build_report(runs, baseline, decoder_of, documents, title).encode())
    typer.echo(out)
