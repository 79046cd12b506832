"""`decodebench tasks`: the benchmarks, and what a model is asked in them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from decodebench.cli.options import DEFAULT_MODEL, DataDir, TasksDir

tasks_app = typer.Typer()


@tasks_app.callback(invoke_without_command=True)
def tasks(context: typer.Context, data_dir: DataDir = None, tasks_dir: TasksDir = None) -> None:
    """Benchmarks, with where their data would come from; `tasks show NAME` prints a prompt."""
    if context.invoked_subcommand:
        return
    from decodebench.evaluation.task_list import list_tasks

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for info in list_tasks(data_dir=data_dir, tasks_dir=tasks_dir):
        facts = [
            f"{info.documents} documents" if info.documents else "",
            f"{info.shots} shots" if info.shots is not None else "",
            info.metric or "no score",
        ]
        lines = [info.description, " · ".join(filter(None, facts)), info.data]
        table.add_row(info.name, "\n".join(filter(None, lines)))
    Console(highlight=False, markup=False).print(table)


@tasks_app.command("show")
def show(
    task: Annotated[str, typer.Argument(help="A task, your own or one that lm-eval ships.")],
    doc: Annotated[int, typer.Option(min=0, help="Which document, counted from 0 as in the records.")] = 0,
    subtask: Annotated[
        str | None, typer.Option(help="Of a group such as bbh: which task.", show_default="its first")
    ] = None,
    model: Annotated[str, typer.Option(help="Whose chat template and tokenizer are used.")] = DEFAULT_MODEL,
    data_dir: DataDir = None,
    tasks_dir: TasksDir = None,
    prompts: Annotated[Path | None, typer.Option(help="Your own prompts for task speed.")] = None,
) -> None:
    """Print the exact prompt that a model gets for a document, its length, how is generated, and the right answer."""
    from decodebench.evaluation.catalog import load_task
    from decodebench.evaluation.prompt import show_prompt
    from decodebench.models import load_tokenizer

    tokenizer = load_tokenizer(model)
    loaded = load_task(task, data_dir=data_dir, tasks_dir=tasks_dir, prompts=prompts)
    shown = show_prompt(loaded, doc, subtask, model, tokenizer)
    heading = f"{shown.subtask}, document {doc} of 0 to {shown.documents - 1}"
    prompt = f"prompt ({shown.prompt_tokens} tokens of {model})"
    parts = {"": heading, prompt: shown.prompt, "generation": shown.generation, "target": shown.target}
    for title, text in parts.items():
        typer.echo(f"--- {title}\n{text}" if title else text)
