"""Runs the cells of a grid on one model, and records them."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decodebench.decoding import Batching, Generator, Method, knobs_of
from decodebench.decoding.compiled import compile_pass
from decodebench.errors import UserError
from decodebench.evaluation.catalog import LoadedTask
from decodebench.evaluation.environment import environment, fingerprint
from decodebench.evaluation.grid import Cell
from decodebench.evaluation.lm import GenerationSettings
from decodebench.evaluation.prepared import PreparedTask
from decodebench.evaluation.progress import GridProgress
from decodebench.evaluation.recorder import Recorder
from decodebench.evaluation.roofline import roofline
from decodebench.evaluation.score_ar import score_run
from decodebench.models import LoadedModel
from decodebench.records import RunStore, prepare_results

WARM_UP_TOKENS = 4
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """What holds for every cell of a grid.

    Attributes:
        results: folder of runs.
        repeats: every cell is run so many times, in turn with the others.
        fresh: run cells again that are recorded.
        limit, limit_seed: which documents, of a group of each of its tasks; see :func:`.selection.select_documents`.
        batching: see :class:`decodebench.decoding.engine.Engine`.
        settings: generation settings that override the tasks' own.
        trace: record how sure the method was of each token.
        score_ar: record how likely the model's autoregressive mode finds each output; untimed.
        roofline: measure before the grid what the machine allows at best, and record it with every cell.
        compile: compile the pass of one token before the first cell that is not recorded yet; see
            :func:`.compile_pass`.
    """

    results: Path
    repeats: int = 1
    fresh: bool = False
    limit: float | None = None
    limit_seed: int | None = None
    batching: Batching = "continuous"
    settings: GenerationSettings = field(default_factory=GenerationSettings)
    trace: bool = False
    score_ar: bool = False
    roofline: bool = False
    compile: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: its folder and aggregates, or the error."""

    cell: Cell
    folder: Path | None
    aggregates: dict[str, Any]
    error: str | None = None


def run_grid(
    cells: Sequence[Cell], model: LoadedModel, tasks: dict[str, LoadedTask], options: RunOptions
) -> list[Outcome]:
    """Run what is not recorded yet, repeat by repeat, so that what is compared is interleaved in time.

    A cell that fails is recorded as failed and does not stop the others.

    Args:
        cells: of the grid.
        model: loaded once for all of them.
        tasks: by the names that the cells use.

    Raises:
        UserError: before anything is run or written, for what cannot work (a method that lacks something on this
            model, a results folder that cannot be used).
    """
    methods = [bound_method(cell, model, options.batching) for cell in cells]
    prepared = {
        name: PreparedTask(task, model, options.settings, options.limit, options.limit_seed)
        for name, task in tasks.items()
    }
    prepare_results(options.results)
    weights, surroundings = fingerprint(model.model), environment(model.device)
    limits = roofline(model) if options.roofline else None
    runs = [
        _CellRun(
            cell,
            prepared[cell.task],
            model,
            options,
            run_config(cell, bound, model, weights, options),
            surroundings,
            limits,
        )
        for cell, bound in zip(cells, methods, strict=True)
    ]
    requests = {str(run.cell): len(run.prepared.requests) * options.repeats for run in runs}
    with ExitStack() as stack, GridProgress(requests) as progress:
        for repeat in range(options.repeats):
            for run in runs:
                if run.error is None:
                    _guarded(run, repeat, stack, progress)
        for run in runs:
            run.finish()
    return [run.outcome() for run in runs]


def _guarded(run: "_CellRun", repeat: int, stack: ExitStack, progress: GridProgress) -> None:
    """Run one repeat of one cell; whatever goes wrong ends this cell only."""
    try:
        run.repeat(repeat, stack, progress)
    except Exception as error:
        log.debug("cell %s", run.cell, exc_info=True)
        progress.fail(str(run.cell), run.fail(error))


def bound_method(cell: Cell, model: LoadedModel, batching: Batching) -> Method:
    """The cell's method after it has looked at the model, so that its knobs hold what will be used."""
    built = cell.build()
    built.generator(model, cell.batch_size, batching)
    return built


class _CellRun:
    """One cell while its grid is running."""

    def __init__(
        self,
        cell: Cell,
        prepared: PreparedTask,
        model: LoadedModel,
        options: RunOptions,
        config: dict[str, Any],
        surroundings: dict[str, Any],
        limits: dict[str, Any] | None,
    ) -> None:
        self.cell, self.prepared, self.model, self.options = cell, prepared, model, options
        self.config, self.surroundings, self.limits = config, surroundings, limits
        self.store: RunStore | None = None
        self.warm = False
        self.error: str | None = None

    def repeat(self, repeat: int, stack: ExitStack, progress: GridProgress) -> None:
        if self.store is None:
            self.store = stack.enter_context(RunStore.open_or_create(
                self.options.results, self.config, self.prepared.info, self.surroundings, fresh=self.options.fresh
            ))  # fmt: skip
            if self.limits:
                self.store.add_to_environment(roofline=self.limits)
        if repeat < self.store.repeats:
            progress.skip(str(self.cell), len(self.prepared.requests))
            self._score_ar(self.store)
            return
        if self.options.compile:
            self._compile(progress, self.store)
        progress.begin(str(self.cell), f", repeat {repeat + 1}" if self.options.repeats > 1 else "")
        progress.skip(str(self.cell), len(self.store.samples(repeat)))
        if self.store.timing(repeat) is None:
            self._warm_up()
        category = self.prepared.task.category
        recorder = Recorder(self.store, repeat, self._generator(), self.model.device, category, progress.advance)
        scores = self.prepared.score(recorder)
        self.store.finish_repeat(repeat, self.store.timing(repeat) or {}, scores)
        self._score_ar(self.store)

    def _compile(self, progress: GridProgress, store: RunStore) -> None:
        """Once for all cells, and outside of all times."""
        if self.model.compiled is None:
            progress.say("compiling the pass of one token: a minute or two")
            self.model.compiled = compile_pass(self.model.model)
        store.add_to_environment(compile_seconds=self.model.compiled.seconds)

    def _score_ar(self, store: RunStore) -> None:
        if self.options.score_ar:
            score_run(self.model, store, self.prepared.requests)

    def _generator(self) -> Generator:
        generator = self.cell.build().generator(self.model, self.cell.batch_size, self.options.batching)
        generator.trace = self.options.trace
        return generator

    def _warm_up(self) -> None:
        """A few uncounted passes at every number of rows: the first pass of each shape compiles kernels."""
        if not self.warm:
            requests = list(self.prepared.requests.values())
            first = requests[: self.cell.batch_size]
            short = [
                replace(request, max_new_tokens=min(WARM_UP_TOKENS + i, request.max_new_tokens))
                for i, request in enumerate(first)
            ]
            generator = self._generator()
            generator.room = max(len(request.prompt) + request.max_new_tokens for request in requests)
            generator.generate(short)
            self.warm = True

    def finish(self) -> None:
        if self.store and self.error is None and not self.store.is_complete(self.options.repeats):
            self.store.finish()

    def fail(self, error: Exception) -> str:
        """Record the error, and say it in one line."""
        self.error = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, UserError):
            self.error = f"{type(error).__name__}: {self.error}"
        if self.store:
            self.store.fail(self.error)
        return self.error

    def outcome(self) -> Outcome:
        folder = self.store.folder if self.store else None
        return Outcome(self.cell, folder, self.store.run["aggregates"] if self.store else {}, self.error)


def run_config(cell: Cell, bound: Method, model: LoadedModel, weights: str, options: RunOptions) -> dict[str, Any]:
    """Everything that makes this run differ from another one."""
    settings = options.settings
    return {
        "model": model.name,
        "weights": weights,
        "task": cell.task,
        "method": cell.method,
        "knobs": {name: getattr(bound, name) for name in knobs_of(bound)},
        "batch_size": cell.batch_size,
        "batching": options.batching,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "limit": options.limit,
        "limit_seed": options.limit_seed,
        "max_new_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "seed": settings.seed,
        # named only where asked for, so that other runs keep the identity that they had before there were such options
        **({"trace": True} if options.trace else {}),
        **({} if model.graphs else {"graphs": False}),
        **({"compile": True} if options.compile else {}),
    }
