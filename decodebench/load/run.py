"""Runs loads, on a model here or on a server elsewhere."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from decodebench.evaluation.catalog import LoadedTask
from decodebench.evaluation.environment import environment, fingerprint
from decodebench.evaluation.prepared import PreparedTask
from decodebench.evaluation.progress import GridProgress
from decodebench.evaluation.runner import RunOptions, bound_method, run_config
from decodebench.load.grid import LoadCell, LoadOptions, LoadOutcome, cell_policy, load_config
from decodebench.load.place import Engines
from decodebench.load.recording import LoadRun
from decodebench.models import LoadedModel
from decodebench.records import prepare_results

if TYPE_CHECKING:
    from decodebench.load.remote import Server
    from decodebench.serve.client import Client


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
    prepared = _prepared(tasks, model, run)
    prepare_results(run.results)
    weights, surroundings = fingerprint(model.model), environment(model.device)
    runs = []
    for cell in cells:
        config = run_config(cell.cell, bound[str(cell)], model, weights, run) | load_config(cell, load)
        place = Engines(cell, model, run, load)
        runs.append(LoadRun(cell, prepared[cell.cell.task], place, run, load, config, surroundings))
    return _run_all(runs, run)


def run_remote_loads(
    cells: Sequence[LoadCell],
    server: "Server",
    tasks: dict[str, LoadedTask],
    run: RunOptions,
    load: LoadOptions,
) -> list[LoadOutcome]:
    """The same on a server elsewhere, with the same arrivals and requests.

    What is not known from outside is not in the record: weights, number format, queue, passes and the τ that a policy
    of the server's chose. Versions and hardware are those of this machine, where latencies are measured.

    Args:
        server: that has a client for each method that cells name.

    Raises:
        UserError: before anything is run, for what cannot work.
    """
    from decodebench.load.remote import Remote

    client = server.client
    asked = LoadedModel(client.model, None, server.tokenizer, frozenset())  # only its name and tokenizer are looked at
    prepared = _prepared(tasks, asked, run)
    prepare_results(run.results)
    software = {"server_software": str(client.about.get("owned_by")), "measured": "from outside"}
    surroundings = environment(torch.device("cpu")) | software
    runs = []
    for cell in cells:
        own = server.clients[cell.cell.method]
        config = remote_config(cell, own, run) | load_config(cell, load)
        del config["max_queue"]
        place = Remote(own, cell.cell.knobs.get("tau"), server.tokenizer, load.deadline)
        runs.append(LoadRun(cell, prepared[cell.cell.task], place, run, load, config, surroundings))
    return _run_all(runs, run)


def remote_config(cell: LoadCell, client: "Client", run: RunOptions) -> dict[str, Any]:
    """What :func:`.runner.run_config` says, of what is known from outside."""
    settings, policy = run.settings, client.about.get("policy")
    return {
        "server": client.address,
        **({"server_policy": policy} if policy not in (None, "fixed") else {}),
        "model": client.model,
        "task": cell.cell.task,
        "method": cell.cell.method,
        "knobs": cell.cell.knobs,
        "batch_size": cell.cell.batch_size,
        "limit": run.limit,
        "limit_seed": run.limit_seed,
        **{name: getattr(settings, name) for name in ("max_new_tokens", "temperature", "top_p", "top_k", "seed")},
    }


def _prepared(tasks: dict[str, LoadedTask], model: LoadedModel, run: RunOptions) -> dict[str, PreparedTask]:
    return {name: PreparedTask(task, model, run.settings, run.limit, run.limit_seed) for name, task in tasks.items()}


def _run_all(runs: Sequence[LoadRun], run: RunOptions) -> list[LoadOutcome]:
    requests = {str(each.cell): sum(len(each.arrivals(r)) for r in range(run.repeats)) for each in runs}
    with ExitStack() as stack, GridProgress(requests) as progress:
        for repeat in range(run.repeats):
            for each in runs:
                if each.error is None:
                    each.guarded(repeat, stack, progress)
        for each in runs:
            each.finish()
    return [each.outcome() for each in runs]
