"""`decodebench plot`: pictures of recorded runs."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decodebench.cli.options import OnlyTasks, OnlyWhere, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from decodebench.analysis.load import Run

plot_app = typer.Typer(no_args_is_help=True, help="Draw recorded runs.")

Baseline = Annotated[str, typer.Option(help="Method, or label of one of its settings, drawn as the baseline.")]
Out = Annotated[
    list[Path] | None,
    typer.Option(
        help="A file to write (.png, .svg or .pdf; several times for several).",
        show_default="NAME.png, NAME.svg",
    ),
]


class Quality(StrEnum):
    """What stands for quality."""

    score = "score"
    equal_tokens = "equal-tokens"
    ar_logprob = "ar-logprob"


@plot_app.command()
def frontier(
    results: Results = None,
    baseline: Baseline = "ar",
    task: OnlyTasks = None,
    where: OnlyWhere = None,
    quality: Annotated[
        Quality, typer.Option(help="The task's score, or, without right answers, likeness to the baseline's or log p.")
    ] = Quality.score,
    out: Out = None,
) -> None:
    """Speed against quality: score against tokens per pass and tokens/s, τ along each line, the Pareto front marked."""
    from decodebench.analysis.compare import compare_runs
    from decodebench.analysis.plot import frontier

    runs, caption = _runs(results, task, where)
    frame = compare_runs(runs, baseline, paired=quality == Quality.equal_tokens)
    _save(frontier(frame, caption, quality.value.replace("-", "_")), "frontier", out)


@plot_app.command()
def batch(
    results: Results = None,
    baseline: Baseline = "ar",
    task: OnlyTasks = None,
    where: OnlyWhere = None,
    out: Out = None,
) -> None:
    """Speed-up against batch size, a line for each setting, with published numbers in grey."""
    from decodebench.analysis.compare import compare_runs
    from decodebench.analysis.plot_batch import batch

    runs, caption = _runs(results, task, where)
    _save(batch(compare_runs(runs, baseline), caption), "batch", out)


@plot_app.command()
def acceptance(results: Results = None, task: OnlyTasks = None, where: OnlyWhere = None, out: Out = None) -> None:
    """Shares of passes that commit 1, 2, … tokens, and that take the token at each position of their block."""
    from decodebench.analysis.plot_acceptance import acceptance

    _save(acceptance(*_runs(results, task, where)), "acceptance", out)


@plot_app.command()
def calibration(results: Results = None, task: OnlyTasks = None, where: OnlyWhere = None, out: Out = None) -> None:
    """Confidence against how often the token is AR's, for runs made with --trace --score-ar."""
    from decodebench.analysis.plot_calibration import calibration

    _save(calibration(*_runs(results, task, where)), "calibration", out)


@plot_app.command()
def latency(
    results: Results = None,
    baseline: Baseline = "ar",
    task: OnlyTasks = None,
    where: OnlyWhere = None,
    out: Out = None,
) -> None:
    """The distribution of latencies and of times to the first token, a box for each setting."""
    from decodebench.analysis.plot_latency import latency

    runs, caption = _runs(results, task, where)
    _save(latency(runs, baseline, caption), "latency", out)


@plot_app.command()
def load(
    results: Results = None,
    task: OnlyTasks = None,
    where: OnlyWhere = None,
    over_time: Annotated[
        bool, typer.Option("--over-time", help="τ, queue and latency in the course of a load.")
    ] = False,
    out: Out = None,
) -> None:
    """Latency and goodput against the offered load, a line for each policy; for runs of `decodebench load`."""
    from decodebench.analysis.plot_load import latency_against_load, load_over_time

    runs, caption = _runs(results, task, where, under_load=True)
    _save((load_over_time if over_time else latency_against_load)(runs, caption), "load", out)


def _runs(
    results: list[Path] | None, tasks: Sequence[str] | None, where: Sequence[str] | None, under_load: bool = False
) -> "tuple[list[Run], str]":
    """The runs that are asked for, and what they have in common."""
    from decodebench.analysis.labels import in_common
    from decodebench.analysis.load import load_runs, select_tasks
    from decodebench.analysis.selection import select_where

    runs = select_where(select_tasks(load_runs(results or [Path("results")], under_load), tasks or []), where or [])
    return runs, in_common(runs)


def _save(figure: "Figure", name: str, out: Sequence[Path] | None) -> None:
    from decodebench.analysis.figures import save_figure

    for path in out or [Path(f"{name}.png"), Path(f"{name}.svg")]:
        save_figure(figure, path)
        typer.echo(path)
