"""Runs loads on one model."""

from collections.abc import Sequence
from contextlib import ExitStack

from decodebench.evaluation.catalog import LoadedTask
from decodebench.evaluation.environment import environment, fingerprint
from decodebench.evaluation.prepared import PreparedTask
from decodebench.evaluation.progress import GridProgress
from decodebench.evaluation.runner import RunOptions, bound_method, run_config
from decodebench.load.grid import LoadCell, LoadOptions, LoadOutcome, cell_policy, load_config
from decodebench.load.recording import LoadRun
from decodebench.models import LoadedModel
from decodebench.records import prepare_results


def run_loads(
    cells: Sequence[LoadCell],
    model: LoadedModel,
    tasks: dict[str, LoadedTask],
    run: RunOptions,
    load: LoadOptions,
) -> list[LoadOutcome]:
    """Run what is not recorded yet, repeat by repeat; a load that fails is recorded as failed and stops no other.

    A repeat that was cut off begins again: what a service does cannot be taken up in the middle.

    Raises:
        UserError: before anything is run, for what cannot work.
    """
    bound = {str(cell): bound_method(cell.cell, model, run.batching) for cell in cells}
    for cell in cells:
        cell_policy(cell, load, float(getattr(bound[str(cell)], "tau", 1.0)))
    prepared = {
        name: PreparedTask(task, model, run.settings, run.limit, run.limit_seed) for name, task in tasks.items()
    }
    prepare_results(run.results)
    weights, surroundings = fingerprint(model.model), environment(model.device)
    runs = []
    for cell in cells:
        config = run_config(cell.cell, bound[str(cell)], model, weights, run) | load_config(cell, load)
        runs.append(LoadRun(cell, prepared[cell.cell.task], model, run, load, config, surroundings))
    requests = {str(each.cell): sum(len(each.arrivals(r)) for r in range(run.repeats)) for each in runs}
    with ExitStack() as stack, GridProgress(requests) as progress:
        for repeat in range(run.repeats):
            for each in runs:
                if each.error is None:
                    each.guarded(repeat, stack, progress)
        for each in runs:
            each.finish()
    return [each.outcome() for each in runs]
