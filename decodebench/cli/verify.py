"""`decodebench verify`: is a method lossless on this model, in this precision?"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from decodebench.cli.options import DEFAULT_MODEL, Adapter, DataDir, Device, Dtype, MaxNewTokens, Model, TasksDir
from decodebench.cli.run import split, whole
from decodebench.errors import UserError

if TYPE_CHECKING:
    from decodebench.evaluation.catalog import LoadedTask
    from decodebench.evaluation.verify import Verdict

DEFAULT_TASK, WITHOUT_DOWNLOAD = "gsm8k", "humaneval_chat"


class Format(StrEnum):
    """How the verdicts are written."""

    table = "table"
    json = "json"


def verify(
    *,
    knobs: Mapping[str, list[str]],
    method: Annotated[str, typer.Option(help="Methods, a comma list; see `decodebench methods`.")],
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks, a comma list.", show_default=f"{DEFAULT_TASK}, or else {WITHOUT_DOWNLOAD}"),
    ] = None,
    batch_size: Annotated[str, typer.Option(help="Most requests that run at a time; a comma list.")] = "4",
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    limit: Annotated[str, typer.Option(help="Documents of each task: 20, or a share, 0.1 or 10%.")] = "8",
    limit_seed: Annotated[
        int | None, typer.Option(help="Draw the --limit at random.", show_default="the first ones")
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Two tokens whose logits differ by no more are a tie; default: 0 in float32, 0.5 in bfloat16, "
            "0.0625 in float16.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    tasks_dir: TasksDir = None,
    prompts: Annotated[Path | None, typer.Option(help="Your own prompts for task speed.")] = None,
    format: Annotated[Format, typer.Option(help="How to write the verdicts.")] = Format.table,
) -> None:
    """Compare a method's greedy tokens with autoregressive ones, and show every request on which they part.

    Exit code 0: all are equal, or differ by ties alone (low precision);
    1: they differ. Code that a model writes is not run.
    """
    from decodebench.evaluation.grid import expand_grid
    from decodebench.evaluation.lm import GenerationSettings
    from decodebench.evaluation.prepared import PreparedTask
    from decodebench.evaluation.selection import parse_limit
    from decodebench.evaluation.verify import verify as run_and_compare
    from decodebench.models import load_model

    methods, batch_sizes = split(method), [whole("--batch-size", n) for n in split(batch_size)]
    documents = parse_limit(limit)
    expand_grid(methods, [], batch_sizes, knobs)  # names what is wrong before data are loaded
    loaded = _load(tasks, data_dir=data_dir, tasks_dir=tasks_dir, prompts=prompts)
    cells = expand_grid(methods, list(loaded), batch_sizes, knobs)
    if not cells:
        raise UserError("nothing to verify: name a --method, a --batch-size and one of --tasks")
    target = load_model(model, dtype, device, adapter)
    settings = GenerationSettings(max_new_tokens, temperature=0.0)
    requests = {
        name: PreparedTask(task, target, settings, documents, limit_seed).requests for name, task in loaded.items()
    }
    verdicts = run_and_compare(cells, target, requests, tolerance)
    precision = str(target.dtype).removeprefix("torch.")
    if format is Format.json:
        typer.echo(json.dumps([_as_json(verdict, model, precision) for verdict in verdicts], indent=2))
    else:
        for verdict in verdicts:
            _print(verdict, target.tokenizer, precision)
    if not all(verdict.lossless for verdict in verdicts):
        raise typer.Exit(1)


def _load(names: str | None, **where: Path | None) -> "dict[str, LoadedTask]":
    """The tasks asked for; the default one, or else one that needs no download. Nothing is scored, so no code runs."""
    from decodebench.evaluation.catalog import load_tasks
    from decodebench.tasks.hub import NoAccess

    try:
        loaded, left_out = load_tasks(split(names or DEFAULT_TASK), allow_code=True, **where)
    except NoAccess as error:
        if names is not None:
            raise
        print(f"{DEFAULT_TASK}: {error.reason}: taking {WITHOUT_DOWNLOAD}", file=sys.stderr)
        loaded, left_out = load_tasks([WITHOUT_DOWNLOAD], allow_code=True, **where)
    for name, lacking in left_out.items():
        print(f"{name}: {lacking.reason} ({lacking}): left out", file=sys.stderr)
    return loaded


def _as_json(verdict: "Verdict", model: str, dtype: str) -> dict[str, Any]:
    return {
        "model": model,
        "dtype": dtype,
        **asdict(verdict),
        "lossless": verdict.lossless,
        "divergences": [{**asdict(each), "tie": verdict.is_tie(each)} for each in verdict.divergences],
    }


def _print(verdict: "Verdict", tokenizer: Any, dtype: str) -> None:
    different, equal = len(verdict.divergences), verdict.requests - len(verdict.divergences)
    console = Console(highlight=False, markup=False)
    console.print(
        f"{verdict.cell}, {dtype}: {equal} of {verdict.requests} answers equal to AR's "
        f"({verdict.tokens} tokens): {_in_a_word(verdict)}",
        soft_wrap=True,
    )
    if not different:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("task", "document", "position", "AR", "method", "logit gap", ""):
        table.add_column(column, justify="right" if column in ("document", "position", "logit gap") else "left")
    for each in verdict.divergences:
        gap = "" if each.gap is None else f"{each.gap:.4g}"
        tokens = [_token(tokenizer, token) for token in (each.expected, each.found)]
        tie = "tie" if verdict.is_tie(each) else ""
        table.add_row(each.task, str(each.doc_id), str(each.position), *tokens, gap, tie)
    console.print(table)


def _in_a_word(verdict: "Verdict") -> str:
    if not verdict.divergences:
        return "lossless"
    ties = sum(map(verdict.is_tie, verdict.divergences))
    within = f"{ties} of {len(verdict.divergences)} differences are ties (within {verdict.tolerance:g})"
    return f"lossless up to ties: {within}" if verdict.lossless else f"not lossless: {within}"


def _token(tokenizer: Any, token: int | None) -> str:
    return "(end)" if token is None else f"{token} {tokenizer.decode([token])!r}"
