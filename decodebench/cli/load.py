"""`decodebench load`: serve requests as they arrive, and record what a service is measured by."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    Prompts,
    ResultsFolder,
    TasksDir,
    Temperature,
)
from decodebench.cli.run import resume_command, split
from decodebench.errors import UserError

if TYPE_CHECKING:
    from decodebench.load.arrivals import Arrivals
    from decodebench.load.grid import LoadOutcome
    from decodebench.load.remote import Server

TauLow = Annotated[float, typer.Option(min=0, max=1, help="Lowest τ of policies that move it.")]
TauHigh = Annotated[float, typer.Option(min=0, max=1, help="Highest τ of policies that move it.")]
TargetLatency = Annotated[
    float | None, typer.Option(help="Seconds from arrival to end that a good request takes at most.")
]
TargetPerToken = Annotated[float | None, typer.Option(help="Seconds per token after the first that it takes at most.")]


def load(
    *,
    knobs: Mapping[str, list[str]],
    method: Annotated[
        str | None, typer.Option(help="Methods, a comma list; see `decodebench methods`.", show_default="mars")
    ] = None,
    rate: Annotated[
        str, typer.Option(help="Requests per second, a comma list; steps as RATE:SECONDS/RATE:SECONDS.")
    ] = "1",
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds in which requests arrive.", show_default="60, of a file as long as it is"),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="poisson, constant, or a file of timestamps in seconds, one per line.")
    ] = "poisson",
    policy: Annotated[
        str, typer.Option(help="Policies for τ, a comma list: fixed, queue, slo, or a plug-in's.")
    ] = "fixed",
    tau_low: TauLow = 0.6,
    tau_high: TauHigh = 1.0,
    target_latency: TargetLatency = None,
    target_per_token: TargetPerToken = None,
    max_rows: Annotated[
        int,
        typer.Option(min=1, help="Most requests that run at a time; with --url, for the record."),
    ] = 8,
    max_queue: Annotated[int, typer.Option(min=0, help="Most that wait for a row; others are refused.")] = 64,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds after its arrival at which a request ends with what it has.")
    ] = None,
    cancel: Annotated[float, typer.Option(min=0, max=1, help="Share of requests that their clients give up.")] = 0.0,
    cancel_within: Annotated[float, typer.Option(help="Each within so many seconds of its arrival.")] = 10.0,
    url: Annotated[
        str | None,
        typer.Option(
            help="Load a server that speaks OpenAI's protocol, ours or another, instead of a model here.",
            show_default=False,
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="That the server wants.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="With --url, a model whose tokenizer and chat template it has.", show_default="--model"),
    ] = None,
    tasks: Annotated[str, typer.Option(help="Tasks to draw requests from, a comma list.")] = "humaneval_chat",
    model: Annotated[
        str | None,
        typer.Option(
            help="A built-in name, a folder, or a hub id; with --url, the name that the server gives it.",
            show_default=DEFAULT_MODEL,
        ),
    ] = None,
    adapter: Adapter = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    limit: Annotated[str | None, typer.Option(help="Documents of each task: 20, or a share, 0.1 or 10%.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Run every load N times, with other arrivals.")] = 1,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    seed: Annotated[int, typer.Option(help="Of arrivals, the order of requests, and sampling.")] = 0,
    results: ResultsFolder = Path("results"),
    data_dir: DataDir = None,
    tasks_dir: TasksDir = None,
    prompts: Prompts = None,
    allow_code_execution: AllowCode = False,
    fresh: Fresh = False,
) -> None:
    """Serve requests as they arrive, with τ as a live knob, and record latency, goodput and quality.

    Requests arrive on schedule, however slow the service is, and latency
    counts from there. What does not fit into the queue is refused and counted.
    Policies change τ while requests run: queue lowers it as the queue fills,
    slo holds a target with the highest τ that can. Comma lists make a grid.
    With --url, a server gets the same requests at the same moments, and is
    measured from outside; --method and --tau are then asked for only if given.
    """
    from decodebench.evaluation.catalog import load_tasks
    from decodebench.evaluation.grid import expand_grid
    from decodebench.evaluation.lm import GenerationSettings
    from decodebench.evaluation.runner import RunOptions
    from decodebench.evaluation.selection import parse_limit
    from decodebench.load.grid import LoadOptions, load_cells, remote_cells
    from decodebench.load.policies import Target
    from decodebench.load.run import run_loads, run_remote_loads
    from decodebench.models import load_model
    from decodebench.records import prepare_results

    check_positive(
        duration=duration, target_latency=target_latency, target_per_token=target_per_token, deadline=deadline,
        cancel_within=cancel_within,
    )  # fmt: skip
    check_policy(policy, tau_low, tau_high, target_latency, target_per_token)
    plans = _plans(arrivals, rate, duration)
    documents = None if limit is None else parse_limit(limit)
    methods, server = split(method or ("" if url else "mars")), None
    if url:
        _refuse_with_url(policy=policy != "fixed", adapter=adapter, dtype=dtype != "auto", device=device != "auto")
        server = _connect(url, model, api_key, methods, tokenizer, max_rows)
    else:
        expand_grid(methods, [], [max_rows], knobs)  # names what is wrong before data are loaded
    if results.exists():
        prepare_results(results)
    loaded, left_out = load_tasks(
        split(tasks), data_dir=data_dir, tasks_dir=tasks_dir, prompts=prompts, allow_code=allow_code_execution
    )
    for name, error in left_out.items():
        print(f"{name}: {error.reason} ({error}): left out", file=sys.stderr)
    if server:
        cells = remote_cells(server.methods, list(loaded), server.rows, knobs, plans)
    else:
        cells = load_cells(expand_grid(methods, list(loaded), [max_rows], knobs), plans, split(policy), tau_high)
    if not cells:
        raise UserError("nothing to run: name a --method, a --rate, and one of --tasks whose data can be had")
    settings = GenerationSettings(max_new_tokens, temperature, seed=seed)
    run_options = RunOptions(results, repeats, fresh, documents, settings=settings)
    target = Target(target_latency, target_per_token)
    load_options = LoadOptions(max_queue, deadline, cancel, cancel_within, target, tau_low, tau_high, seed)
    try:
        if server:
            outcomes = run_remote_loads(cells, server, loaded, run_options, load_options)
        else:
            here = load_model(model or DEFAULT_MODEL, dtype, device, adapter)
            outcomes = run_loads(cells, here, loaded, run_options, load_options)
    except KeyboardInterrupt:
        print(
            "\nstopped: loads that were done are recorded; this one begins again with\n"
            f"{resume_command(_without_key(sys.argv[1:]))}", file=sys.stderr,
        )  # fmt: skip
        raise typer.Exit(130) from None
    finally:
        if server:
            server.close()
    for outcome in outcomes:
        typer.echo(_line(outcome))
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(1)


def _connect(
    url: str, model: str | None, key: str | None, methods: list[str], tokenizer: str | None, rows: int
) -> "Server":
    try:
        from decodebench.load.remote import connect
    except ModuleNotFoundError as error:
        raise UserError(f"--url needs {error.name}: pip install 'decodebench[serve]'") from None
    return connect(url, model, key or None, methods, tokenizer, rows)


def _refuse_with_url(**given: object) -> None:
    if wrong := [name for name, value in given.items() if value]:
        raise UserError(f"--{wrong[0]}: with --url the server has its own; give it to decodebench serve")


def _without_key(arguments: list[str]) -> list[str]:
    """The arguments without an API key, which does not belong on a screen."""
    kept = [word for word in arguments if not word.startswith("--api-key=")]
    return [word for place, word in enumerate(kept) if "--api-key" not in kept[max(place - 1, 0) : place + 1]]


def check_policy(
    policy: str, low: float, high: float, target_latency: float | None, target_per_token: float | None
) -> None:
    """Whether a policy has what it needs.

    Raises:
        UserError: it has not.
    """
    if low > high:
        raise UserError(f"--tau-low {low:g}: must be at most --tau-high, {high:g}")
    if "slo" in split(policy) and target_latency is None and target_per_token is None:
        raise UserError("--policy slo holds a target: give --target-latency or --target-per-token, in seconds")


def _plans(arrivals: str, rate: str, duration: float | None) -> "list[Arrivals]":
    from decodebench.load.arrivals import KINDS, plan, trace

    if arrivals in KINDS or not Path(arrivals).exists():
        return [plan(arrivals, each, duration or 60.0) for each in split(rate)]
    return [trace(Path(arrivals), duration)]


def check_positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"--{name.replace('_', '-')} {value:g}: must be above 0 seconds")


def _line(outcome: "LoadOutcome") -> str:
    if outcome.error:
        return f"{outcome.cell}: failed: {outcome.error}"
    numbers = outcome.numbers
    latency = numbers["latency"]
    parts = [
        f"{outcome.folder}:",
        f"{numbers['finished']} of {numbers['offered']} finished,",
        f"goodput {numbers['goodput']:.2f}/s of {numbers['offered_rate']:.2f},",
        f"p50 {latency['p50'] or float('nan'):.2f} s, p95 {latency['p95'] or float('nan'):.2f} s",
    ]
    if numbers["tau"] is not None:
        parts.append(f"τ {numbers['tau']:.2f},")
    gone = [f"{numbers[name]} {name}" for name in ("refused", "cancelled", "deadline", "failed") if numbers.get(name)]
    return " ".join([*parts, *([f"({', '.join(gone)})"] if gone else [])])
