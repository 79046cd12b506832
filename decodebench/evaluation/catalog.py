"""Finds benchmarks by name: the toolkit's own, the user's (`--tasks-dir`), and all that lm-eval ships."""

import contextlib
import functools
import hashlib
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Kind
from lm_eval.tasks._yaml_loader import load_yaml

from decodebench.errors import UserError, unknown
from decodebench.evaluation import taskfiles
from decodebench.tasks import data as documents
from decodebench.tasks.data import DATA_DIR_VARIABLE, KNOWN, DataSource
from decodebench.tasks.hub import impatient_hub

# lm-eval's own defaults, so that few-shot examples are the ones it would draw.
FEWSHOT_SEED, RANDOM_SEED = 1234, 0


@dataclass(frozen=True)
class LoadedTask:
    """A benchmark, ready to run.

    Args:
        name: as asked for.
        task_dict: what `lm_eval.evaluator.evaluate` takes; a group's tasks and the group itself are in there.
        headline: the one number that stands for the benchmark, as a key ("metric,filter") of what lm-eval reports
            under `name`, be it a task or a group; None where there is no score.
        data: what its documents are, of all of a group's tasks together.
        unsafe_code: whether scoring runs code that the model wrote.
        private: whether its documents must not be written to disk (records hold ids and outputs, no prompts).
        shots: worked examples in each prompt.
        version: of the task's definition.
    """

    name: str
    task_dict: dict[str, Any]
    headline: str | None
    data: DataSource
    unsafe_code: bool
    private: bool
    shots: int
    version: str

    @property
    def tasks(self) -> dict[str, Task]:
        """lm-eval's task objects by name: one, or a group's many."""
        return self.task_dict["tasks"]

    @property
    def task(self) -> Task:
        """The one task object of a benchmark that is no group."""
        (task,) = self.tasks.values()
        return task


@dataclass(frozen=True)
class TaskInfo:
    """What `decodebench tasks` lists.

    Args:
        shots: worked examples in each prompt; None of a suite.
        metric: the headline's; None where there is no score.
        documents: how many the published data set has; None where that is not known.
        data: the source that would be used (see `DataSource`); of a suite, the benchmarks it stands for.
    """

    name: str
    description: str
    shots: int | None
    metric: str | None
    documents: int | None
    data: str


def expand(names: Sequence[str]) -> list[str]:
    """Put the benchmarks that a suite stands for in its place; each name once, in the order of first mention."""
    own = taskfiles.own_files()
    configs = {name: taskfiles.read(own[name], resolve=False) for name in names if name in own}
    return list(dict.fromkeys(part for name in names for part in configs.get(name, {}).get("suite", [name])))


def load_task(
    name: str, *, data_dir: Path | None = None, tasks_dir: Path | None = None, prompts: Path | None = None
) -> LoadedTask:
    """Build a benchmark with its documents.

    Args:
        name: one of the toolkit's own, else one in `tasks_dir`, else one that lm-eval ships; no suite (see `expand`).
        data_dir: folder with local copies of data sets; by default the environment's DECODEBENCH_DATA.
        tasks_dir: folder with the user's lm-eval task files.
        prompts: the user's own prompts for `speed`, JSON Lines with "prompt" or "turns", and "category" if wanted.

    Raises:
        NoAccess: the hub is out of reach or refuses.
        UserError: no task of that name, a task file that does not load, or data that are missing or malformed.
    """
    data_dir = _data_dir(data_dir)
    with quiet(), _lm_eval_seed():
        own = taskfiles.own_files()
        if name not in own:
            return _loaded(name, _load_other(name, data_dir, tasks_dir), {})
        config = taskfiles.read(own[name], data_dir=data_dir)
        if "suite" in config:
            raise UserError(f"'{name}' stands for several tasks: {', '.join(config['suite'])}")
        if prompts:
            config["dataset_kwargs"] = {"prompts": prompts}
        task_dict = TaskManager(include_defaults=False).load(taskfiles.build(config, data_dir))
        return _loaded(name, task_dict, config["metadata"])


def list_tasks(*, data_dir: Path | None = None, tasks_dir: Path | None = None) -> list[TaskInfo]:
    """The toolkit's own benchmarks and those in `tasks_dir`, without reading their data."""
    data_dir = _data_dir(data_dir)
    with quiet():
        configs = {name: taskfiles.read(path, resolve=False) for name, path in taskfiles.own_files().items()}
        if tasks_dir:
            index = _manager(_tasks_dir(tasks_dir), False).task_index
            configs = {name: entry.cfg for name, entry in index.items() if entry.cfg} | configs
        return [_info(name, config, data_dir) for name, config in configs.items()]


def _info(name: str, config: Mapping[str, Any], data_dir: Path | None) -> TaskInfo:
    metadata = config.get("metadata") or {}
    description = metadata.get("description", "")
    if "suite" in config:
        return TaskInfo(name, description, None, "mean", None, ", ".join(config["suite"]))
    first = config["members"][0] if "members" in config else config
    path, subset = first.get("dataset_path", ""), "*" if "members" in config else first.get("dataset_name")
    metrics = [metric["metric"] for metric in first.get("metric_list") or [{"metric": None}]]
    headline = metadata.get("headline", metrics[0])
    return TaskInfo(
        name,
        description,
        first.get("num_fewshot") or 0,
        headline and headline.partition(",")[0],
        KNOWN[path].documents if path in KNOWN else None,
        documents.find(path, subset, data_dir) if path else "",
    )


def _tasks_dir(given: Path) -> Path:
    if not given.is_dir():
        raise UserError(f"no folder {given} for --tasks-dir")
    return given.resolve()


def _data_dir(given: Path | None) -> Path | None:
    folder = given or os.environ.get(DATA_DIR_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise UserError(f"no data folder {folder}: --data-dir and {DATA_DIR_VARIABLE} name a folder that exists")
    return Path(folder)


# --- the user's and lm-eval's ---


@functools.cache
def _manager(tasks_dir: Path | None, everything: bool) -> TaskManager:
    return TaskManager(include_path=tasks_dir, include_defaults=everything)


def _load_other(name: str, data_dir: Path | None, tasks_dir: Path | None) -> dict[str, Any]:
    tasks_dir = tasks_dir and _tasks_dir(tasks_dir)
    # Indexing all of lm-eval takes seconds, so only where the user's folder alone does not have the task.
    for everything in (False, True) if tasks_dir else (True,):
        manager = _manager(tasks_dir, everything)
        entry = manager.task_index.get(name)
        if entry is None or (entry.kind is not Kind.TASK and not everything):  # a group may name lm-eval's tasks
            continue
        if entry.kind is Kind.TAG:
            raise UserError(
                f"'{name}' is a tag on several tasks: name those you mean ({', '.join(sorted(entry.tags))})"
            )
        with impatient_hub() as no_hub:
            try:
                config = load_yaml(entry.yaml_path) if entry.kind is Kind.TASK and entry.yaml_path else {}
                if config.get("dataset_path") in KNOWN:
                    return manager.load(taskfiles.build(config, data_dir))
                return manager.load(name)
            except UserError:
                raise
            except Exception as error:  # whatever the task file's own code raises
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                also = f"; the hub is out of reach ({no_hub})" if no_hub else ""
                raise UserError(f"task '{name}' does not load ({reason}){also}") from error
    raise unknown("task", name, [*taskfiles.own_files(), *manager.all_tasks])


# --- what they have in common ---


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
        metadata.get("private", False),
        tasks[0].get_config("num_fewshot"),
        str(group.version if group else tasks[0].VERSION),
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
def quiet() -> Iterator[None]:
    """lm-eval's and the hub client's remarks and bars on every task and table are no news to the user; errors are."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm-eval", "datasets", "huggingface_hub")]
    levels, bars = [logger.level for logger in loggers], datasets.is_progress_bar_enabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def _lm_eval_seed() -> Iterator[None]:
    """Some task files draw from the global generator while they load; lm-eval seeds it so."""
    state = random.getstate()
    random.seed(RANDOM_SEED)
    try:
        yield
    finally:
        random.setstate(state)
