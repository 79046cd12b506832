"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Results = Annotated[list[Path] | None, typer.Argument(help="Folders of runs, or single runs.", show_default="results")]
OnlyTasks = Annotated[list[str] | None, typer.Option(help="Only these tasks (a comma list, or several times).")]
OnlyWhere = Annotated[
    list[str] | None, typer.Option(help="Only runs with these settings: tau=0.9, cache=block,none, 'batch_size>=4'.")
]
DataDir = Annotated[Path | None, typer.Option(help="Local copies of data sets.")]
TasksDir = Annotated[Path | None, typer.Option(help="Your own lm-eval task files.")]
DEFAULT_MODEL = "smollm2-135m-mars"  # one set of weights for all methods, so that only decoding differs
Model = Annotated[str, typer.Option(help="A built-in name, a folder, or a hub id.")]
