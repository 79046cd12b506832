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
Adapter = Annotated[str | None, typer.Option(help="A PEFT adapter to merge into the model.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens; default: what the task says (256).", show_default=False)
]
Temperature = Annotated[float | None, typer.Option(min=0, help="0 is greedy; default: the task's.", show_default=False)]
Prompts = Annotated[Path | None, typer.Option(help="Your own prompts for task speed: JSON Lines with a 'prompt' each.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code-execution", help="Run code that the model writes, in a sandbox.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run again what is recorded.")]
ResultsFolder = Annotated[Path, typer.Option(help="Folder of runs.")]
