"""`decodebench run`: run a grid and record it."""

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodebench.cli.options import (
    DEFAULT_MODEL,
    Adapter,
    AllowCode,
    DataDir,
    Device,
    Dtype,
    Fresh,
    MaxNewTokens,
    Model,
    Prompts,
    ResultsFolder,
    TasksDir,
    Temperature,
)
from decodebench.errors import UserError

if TYPE_CHECKING:
    from decodebench.decoding import Knob
    from decodebench.evaluation.runner import Outcome

PANEL = "Knobs of the methods (comma lists make a grid)"


def with_knobs(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every knob of every installed method; it gets them as ``knobs``, by name."""
    from decodebench.decoding import Knob, knobs_of
    from decodebench.decoding.registry import method, method_names

    found: dict[str, dict[str, Knob]] = {}  # by name, and by method
    for name in method_names():
        for knob in knobs_of(method(name)).values():
            found.setdefault(knob.name, {})[name] = knob

    def wrapped(**values: Any) -> None:
        given = {name: text for name in found if (text := values.pop(name)) is not None}
        command(knobs={name: split(text) for name, text in given.items()}, **values)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "knobs"]
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, _option(knobs)]
        )
        for name, knobs in found.items()
    ]
    signature = inspect.Signature([*own, *options])
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    wrapped.__doc__ = command.__doc__
    return wrapped


def _option(knobs: Mapping[str, "Knob"]) -> Any:
    knob = next(iter(knobs.values()))
    texts: dict[str, list[str]] = {}  # methods may mean different things by one knob
    for name, own in knobs.items():
        default = "" if own.default is None else f" (default {own.default})"
        texts.setdefault(own.help + default, []).append(name)
    return typer.Option(
        knob.flag,
        help=". ".join(f"{', '.join(names)}: {text}" for text, names in texts.items()),
        metavar="|".join(knob.choices) if knob.choices else knob.type.__name__.upper(),
        show_default=False,
        rich_help_panel=PANEL,
    )


def run(
    *,
    knobs: Mapping[str, list[str]],
    method: Annotated[str, typer.Option(help="Methods, a comma list; see `decodebench methods`.")] = "ar",
    tasks: Annotated[str, typer.Option(help="Tasks, a comma list; see `decodebench tasks`.")] = "humaneval_chat",
    batch_size: Annotated[str, typer.Option(help="Most requests that run at a time; a comma list.")] = "1",
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    limit: Annotated[
        str | None,
        typer.Option(help="Documents of each task (of bbh and mmlu_pro: of each subtask): 20, or a share, 0.1 or 10%."),
    ] = None,
    limit_seed: Annotated[
        int | None,
        typer.Option(help="Draw the --limit at random, the same for every method.", show_default="the first ones"),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Run every cell N times, in turn with the others.")] = 1,
    batching: Annotated[
        str, typer.Option(help="continuous, or static: no new request before all of a batch are done.")
    ] = "continuous",
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus mass.", show_default=False)] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="0 is off.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    results: ResultsFolder = Path("results"),
    data_dir: DataDir = None,
    tasks_dir: TasksDir = None,
    prompts: Prompts = None,
    allow_code_execution: AllowCode = False,
    trace: Annotated[bool, typer.Option("--trace", help="Record how sure the method was of each token.")] = False,
    score_ar: Annotated[
        bool,
        typer.Option(
            "--score-ar", help="Record how likely the model's AR mode finds each output (untimed, may be later)."
        ),
    ] = False,
    roofline: Annotated[
        bool,
        typer.Option("--roofline", help="Measure the machine first, and say how near to its limits each cell came."),
    ] = False,
    graphs: Annotated[
        bool, typer.Option("--graphs/--no-graphs", help="On CUDA, record decoding passes as graphs and replay them.")
    ] = True,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="On a CPU, compile passes of one token first (a minute or two, recorded, in no other time).",
        ),
    ] = False,
    fresh: Fresh = False,
) -> None:
    """Run methods on tasks and record quality, tokens per pass and speed.

    Comma lists make a grid. Cells that are recorded already are skipped, and a killed run goes on where it stopped
    when the same command is given again.
    """
    # heavy imports only now, so that the other commands start at once
    from decodebench.analysis.load import load_runs
    from decodebench.analysis.roofline import roofline_table
    from decodebench.analysis.samples import read_columns
    from decodebench.decoding.compiled import check_compilable
    from decodebench.evaluation.catalog import load_tasks
    from decodebench.evaluation.grid import expand_grid
    from decodebench.evaluation.lm import GenerationSettings
    from decodebench.evaluation.runner import RunOptions, run_grid
    from decodebench.evaluation.selection import parse_limit
    from decodebench.models import load_model
    from decodebench.records import prepare_results

    if batching not in ("continuous", "static"):
        raise UserError(f"--batching {batching}: choose continuous or static")
    if limit_seed is not None and limit is None:
        raise UserError("--limit-seed needs --limit: it says which documents are drawn")
    if roofline:
        check_counted(split(method))
    documents = None if limit is None else parse_limit(limit)
    methods, batch_sizes = split(method), [whole("--batch-size", n) for n in split(batch_size)]
    expand_grid(methods, [], batch_sizes, knobs)  # names what is wrong before data are loaded
    if results.exists():
        prepare_results(results)
    loaded, left_out = load_tasks(
        split(tasks), data_dir=data_dir, tasks_dir=tasks_dir, prompts=prompts, allow_code=allow_code_execution
    )
    for name, error in left_out.items():
        print(f"{name}: {error.reason} ({error}): left out", file=sys.stderr)
    cells = expand_grid(methods, list(loaded), batch_sizes, knobs)
    if not cells:
        raise UserError("nothing to run: name a --method, a --batch-size, and one of --tasks whose data can be had")
    options = RunOptions(
        results=results,
        repeats=repeats,
        fresh=fresh,
        limit=documents,
        limit_seed=limit_seed if documents else None,
        batching="static" if batching == "static" else "continuous",
        settings=GenerationSettings(max_new_tokens, temperature, top_p, top_k, seed),
        trace=trace,
        score_ar=score_ar,
        roofline=roofline,
        compile=compile,
    )
    try:
        target = load_model(model, dtype, device, adapter)
        target.graphs = graphs or target.device.type != "cuda"
        if compile:
            check_compilable(target.model)
        outcomes = run_grid(cells, target, loaded, options)
    except KeyboardInterrupt:
        print(f"\nstopped: what is finished is recorded; go on with\n{resume_command(sys.argv[1:])}", file=sys.stderr)
        if fresh:
            print("(without --fresh: cells that had not begun keep what was recorded before)", file=sys.stderr)
        raise typer.Exit(130) from None
    for outcome in outcomes:
        typer.echo(_line(outcome))
        if outcome.folder and not outcome.error:
            read_columns(
                outcome.folder, outcome.aggregates["score"]["metric"]
            )  # leaves behind what `compare` reads fast
    done = [outcome.folder for outcome in outcomes if outcome.folder and not outcome.error]
    if roofline and done:
        try:
            typer.echo(roofline_table(load_runs(done)), nl=False)
        except UserError as error:  # what was asked for first is done and recorded
            print(error, file=sys.stderr)
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(1)


def check_counted(methods: Sequence[str]) -> None:
    """Refuse a roofline of methods whose passes nobody counts."""
    from decodebench.decoding import Decoder
    from decodebench.decoding.registry import method

    if methods and not any(issubclass(method(name), Decoder) for name in methods):
        raise UserError(
            f"--roofline: {', '.join(methods)} does not run in decodebench's engine, which counts passes: "
            "add a --method that does, such as ar"
        )


def _line(outcome: "Outcome") -> str:
    if outcome.error:
        return f"{outcome.cell}: failed: {outcome.error}"
    numbers = outcome.aggregates
    score, speed = numbers["score"], numbers["tokens_per_second"]["median"]
    parts = [f"{outcome.folder}:"]
    if score["value"] is not None:
        parts.append(f"{score['metric'].partition(',')[0]} {score['value']:.3f},")
    parts.append(f"{numbers['tokens_per_pass'] or 0:.2f} tokens/pass, {speed or 0:.1f} tokens/s")
    if numbers["failed_requests"]:
        parts.append(f"({numbers['failed_requests']} prompts longer than the context)")
    return " ".join(parts)


def resume_command(arguments: Sequence[str]) -> str:
    """The command that goes on where this one was stopped; --fresh would begin again."""
    return shlex.join(["decodebench", *(word for word in arguments if word != "--fresh")])


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def whole(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{flag} {text}: must be a whole number") from None
