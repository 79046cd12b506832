"""The command line."""

import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from decodebench import __version__
from decodebench.cli.compare import compare
from decodebench.cli.listing import methods, models
from decodebench.cli.load import load
from decodebench.cli.plot import plot_app
from decodebench.cli.race import race
from decodebench.cli.report import report
from decodebench.cli.run import run, with_knobs
from decodebench.cli.serve import serve
from decodebench.cli.tasks import tasks_app
from decodebench.cli.train import train_app
from decodebench.cli.verify import verify
from decodebench.errors import UserError


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The application.

    Args:
        arguments: of the command line. Knobs become options only where a command that takes them is asked for: to know
            them, every installed method has to be imported, and torch with it.
    """
    app = typer.Typer(name="decodebench", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_options)
    app.command("run")(with_knobs(run) if "run" in arguments else run)
    app.command("load")(with_knobs(load) if "load" in arguments else load)
    app.command("serve")(with_knobs(serve) if "serve" in arguments else serve)
    app.command("verify")(with_knobs(verify) if "verify" in arguments else verify)
    app.command("race")(with_knobs(race) if "race" in arguments else race)
    app.command("compare")(compare)
    app.add_typer(plot_app, name="plot")
    app.command("report")(report)
    app.add_typer(train_app, name="train")
    app.command("methods")(methods)
    app.add_typer(tasks_app, name="tasks")
    app.command("models")(models)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Which decoding method is fastest for my model, at the quality I need?"""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 a run failed, 2 the user's mistake (one line on stderr), 130 interrupted."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        sys.exit(build_app(sys.argv[1:])(standalone_mode=False))
    except UserError as error:
        _usage_error(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output (head, less) has left
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        # typer's own usage errors, whose class lives in click or in typer as versions go
        if not hasattr(error, "format_message"):
            raise
        _usage_error(error.format_message())


def _usage_error(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
