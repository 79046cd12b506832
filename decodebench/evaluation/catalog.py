"""Finds benchmarks by name: the toolkit's own, the user's (`--tasks-dir`), and all that lm-eval ships."""

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from decodebench.errors import UserError
from decodebench.evaluation import taskfiles
from decodebench.evaluation.lm_eval_tasks import load_other
from decodebench.evaluation.quiet import quiet
from decodebench.tasks import data as documents
from decodebench.tasks.data import DATA_DIR_VARIABLE, DataSource
from decodebench.tasks.hub import NoAccess

# lm-eval's own defaults, so that few-shot examples are the ones it would draw.
FEWSHOT_SEED, RANDOM_SEED = 1234, 0

SPEED = "speed"  # the benchmark that takes the user's own prompts
UNSAFE = (
    "task '{}' runs code that the model writes. It runs in a separate process with limits on time, memory, processes "
    "and files, but no sandbox is perfect: add --allow-code-execution if you accept that"
)


@dataclass(frozen=True)
class Suite:
    """Benchmarks that are run and averaged together.

    Args:
        name: as asked for.
        tasks: all that it stands for.
        left_out: those of them that could not be run, with the reason in a word or two.
    """

    name: str
    tasks: list[str]
    left_out: dict[str, str]


class NoLeave(UserError):
    """A benchmark runs code that the model writes, to which the user has not agreed."""

    reason = "code execution not allowed"


@dataclass(frozen=True)
class LoadedTask:
    """A benchmark, ready to run.

    Args:
        name: as asked for; of the user's own prompts "speed:<name of the file>".
        task_dict: what `lm_eval.evaluator.evaluate` takes; a group's tasks and the group itself are in there.
        headline: the one number that stands for the benchmark, as a key ("metric,filter") of what lm-eval reports
            under `name`, be it a task or a group; None where there is no score.
        data: what its documents are, of all of a group's tasks together.
        unsafe_code: whether scoring runs code that the model wrote.
        shots: worked examples in each prompt.
        version: of the task's definition.
        category: the column of a document that says of what kind it is, if records shall keep it.
        suite: in which it was asked for, if not by itself.
    """

    name: str
    task_dict: dict[str, Any]
    headline: str | None
    data: DataSource
    unsafe_code: bool
    shots: int
    version: str
    category: str | None = None
    suite: Suite | None = None

    @property
    def tasks(self) -> dict[str, Task]:
        """lm-eval's task objects by name: one, or a group's many."""
        return self.task_dict["tasks"]

    @property
    def task(self) -> Task:
        """The one task object of a benchmark that is no group."""
        (task,) = self.tasks.values()
        return task


def load_tasks(
    names: Sequence[str],
    *,
    data_dir: Path | None = None,
    tasks_dir: Path | None = None,
    prompts: Path | None = None,
    allow_code: bool = False,
) -> tuple[dict[str, LoadedTask], dict[str, NoAccess | NoLeave]]:
    """Build benchmarks, those that a suite stands for in its place, each once.

    Args:
        names: of benchmarks and suites.
        prompts: the user's own prompts for `speed`, if that is among the names; the rest as for `load_task`.
        allow_code: whether the user agrees to running code that the model writes.

    Returns: the benchmarks by their names, and what is left out of suites, with the reason.

    Raises:
        NoAccess, NoLeave: for a benchmark that was asked for by itself, or where nothing of a suite is left.
        UserError: as `load_task`.
    """
    if prompts and SPEED not in names:
        raise UserError(f"--prompts {prompts} is for task {SPEED}, which is not among --tasks {','.join(names)}")
    own = taskfiles.own_files()
    configs = {name: taskfiles.read(own[name], resolve=False) for name in names if name in own}
    suites: dict[str, list[str]] = {name: config["suite"] for name, config in configs.items() if "suite" in config}
    loaded: dict[str, LoadedTask] = {}
    left_out: dict[str, NoAccess | NoLeave] = {}
    for name in dict.fromkeys(part for asked in names for part in suites.get(asked, [asked])):
        try:
            task = load_task(name, data_dir=data_dir, tasks_dir=tasks_dir, prompts=prompts if name == SPEED else None)
            if task.unsafe_code and not allow_code:
                raise NoLeave(UNSAFE.format(name))
            loaded[name] = task
        except (NoAccess, NoLeave) as error:
            if name in names:
                raise
            left_out[name] = error
    if not loaded and left_out:
        raise next(iter(left_out.values()))
    for suite, members in suites.items():
        info = Suite(suite, members, {name: left_out[name].reason for name in members if name in left_out})
        loaded |= {name: replace(loaded[name], suite=info) for name in members if name in loaded}
    return {task.name: task for task in loaded.values()}, left_out


def load_task(
    name: str, *, data_dir: Path | None = None, tasks_dir: Path | None = None, prompts: Path | None = None
) -> LoadedTask:
    """Build a benchmark with its documents.

    Args:
        name: one of the toolkit's own, else one in `tasks_dir`, else one that lm-eval ships; no suite.
        data_dir: folder with local copies of data sets; by default the environment's DECODEBENCH_DATA.
        tasks_dir: folder with the user's lm-eval task files.
        prompts: the user's own prompts for `speed`, JSON Lines with "prompt" or "turns", and "category" if wanted.

    Raises:
        NoAccess: the hub is out of reach or refuses.
        UserError: no task of that name, a task file that does not load, or data that are missing or malformed.
    """
    data_dir = resolve_data_dir(data_dir)
    with quiet(), _lm_eval_seed():
        own = taskfiles.own_files()
        if name not in own:
            return _loaded(name, load_other(name, data_dir, tasks_dir), {})
        config = taskfiles.read(own[name], data_dir=data_dir)
        if "suite" in config:
            raise UserError(f"'{name}' stands for several tasks: {', '.join(config['suite'])}")
        if prompts:
            config["dataset_kwargs"] = {"prompts": prompts}
        task_dict = TaskManager(include_defaults=False).load(taskfiles.build(config, data_dir))
        task = _loaded(name, task_dict, config["metadata"])
        return replace(task, name=f"{name}:{prompts.stem}") if prompts else task


def resolve_data_dir(given: Path | None) -> Path | None:
    """The data folder that the user names, by itself or in the environment, if any.

    Raises:
        UserError: it does not exist.
    """
    folder = given or os.environ.get(DATA_DIR_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise UserError(f"no data folder {folder}: --data-dir and {DATA_DIR_VARIABLE} name a folder that exists")
    return Path(folder)


def _loaded(name: str, task_dict: dict[str, Any], metadata: Mapping[str, Any]) -> LoadedTask:
    tasks: list[Task] = list(task_dict["tasks"].values())
    for task in tasks:  # what lm-eval's simple_evaluate does before it evaluates
        if task.get_config("num_fewshot") is None:
            task.set_config("num_fewshot", 0)
        task.set_fewshot_seed(FEWSHOT_SEED)
    group = task_dict["groups"].get(name)
    return LoadedTask(
        name,
        task_dict,
        metadata["headline"] if "headline" in metadata else _headline(group or tasks[0]),
        _source(tasks),
        any(getattr(task, "UNSAFE_CODE", False) for task in tasks),
        tasks[0].get_config("num_fewshot"),
        str(group.version if group else tasks[0].VERSION),
        metadata.get("category"),
    )


def _headline(item: Any) -> str | None:
    """The first metric under the first filter, of a group the first that it aggregates."""
    if isinstance(item, Task):
        metric = next(iter(item.aggregation()), None)
        filters = [each["name"] for each in item.get_config("filter_list") or []]
    else:
        first = (item.aggregate_metric_list or [None])[0]
        metric, filters = (first.metric, first.filter_list) if first else (None, [])
    return metric and f"{metric},{filters[0] if filters else 'none'}"


def _source(tasks: list[Task]) -> DataSource:
    sources = []
    for task in tasks:
        path = str(task.get_config("dataset_path"))
        source = getattr(task.dataset, "source", None) or documents.find(path, None, None)
        sources.append(documents.describe(source, path, task.eval_docs))
    if len(sources) == 1:
        return sources[0]
    names = sorted({source.source for source in sources})
    digest = hashlib.sha256("".join(source.sha256 for source in sources).encode()).hexdigest()
    name = names[0] if len(names) == 1 else f"{os.path.dirname(names[0])}/*"  # parts of one data set, in one folder
    return DataSource(name, digest, sum(source.rows for source in sources))


@contextlib.contextmanager
def _lm_eval_seed() -> Iterator[None]:
    """Some task files draw from the global generator while they load; lm-eval seeds it so."""
    state = random.getstate()
    random.seed(RANDOM_SEED)
    try:
        yield
    finally:
        random.setstate(state)
