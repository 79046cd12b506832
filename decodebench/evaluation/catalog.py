"""Finds benchmarks by name and builds them: the toolkit's own, the user's (`--tasks-dir`), and all that lm-eval ships.

The toolkit's own are lm-eval task files with one key more: `base`, the lm-eval file that they change. What is in
`base` counts unless the task file says otherwise; `generation_kwargs` are merged key by key.
"""

import contextlib
import copy
import functools
import logging
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Kind
from lm_eval.tasks._yaml_loader import load_yaml

import decodebench.tasks
from decodebench.errors import UserError, unknown
from decodebench.tasks import data as documents
from decodebench.tasks.data import DATA_DIR_VARIABLE, KNOWN, DataSource

OURS = Path(decodebench.tasks.__file__).parent
LM_EVAL = Path(lm_eval.tasks.__file__).parent
# lm-eval's own defaults, so that few-shot examples are the ones it would draw.
FEWSHOT_SEED, RANDOM_SEED = 1234, 0


@dataclass(frozen=True)
class LoadedTask:
    """A benchmark, ready to run.

    Args:
        name: as asked for.
        task_dict: what `lm_eval.evaluator.evaluate` takes.
        headline: the one number that stands for the benchmark, as a key of lm-eval's results ("metric,filter").
        data: what its documents are.
        unsafe_code: whether scoring runs code that the model wrote.
        shots: worked examples in each prompt.
        version: of the task's definition.
    """

    name: str
    task_dict: dict[str, Any]
    headline: str
    data: DataSource
    unsafe_code: bool
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
        documents: how many the published data set has.
        data: the source that would be used (see `DataSource`).
    """

    name: str
    description: str
    shots: int
    metric: str
    documents: int | None
    data: str


def load_task(name: str, *, data_dir: Path | None = None, tasks_dir: Path | None = None) -> LoadedTask:
    """Build a benchmark with its documents.

    Args:
        name: one of the toolkit's own, else one in `tasks_dir`, else one that lm-eval ships.
        data_dir: folder with local copies of data sets; by default the environment's DECODEBENCH_DATA.
        tasks_dir: folder with the user's lm-eval task files.

    Raises:
        UserError: no task of that name, a task file that does not load, or data that are missing or malformed.
    """
    data_dir = _data_dir(data_dir)
    with _quiet(), _lm_eval_seed():
        own = _own_files()
        if name in own:
            return _loaded(name, TaskManager(include_defaults=False).load(_build(_config(own[name]), data_dir)))
        return _loaded(name, _load_other(name, data_dir, tasks_dir))


def list_tasks(*, data_dir: Path | None = None) -> list[TaskInfo]:
    """The toolkit's own benchmarks, without reading their data."""
    with _quiet():
        return [_info(name, _config(path, resolve=False), _data_dir(data_dir)) for name, path in _own_files().items()]


def _info(name: str, config: Mapping[str, Any], data_dir: Path | None) -> TaskInfo:
    path, known = config["dataset_path"], KNOWN.get(config["dataset_path"])
    return TaskInfo(
        name,
        config["metadata"]["description"],
        config.get("num_fewshot") or 0,
        config["metadata"]["headline"].partition(",")[0],
        known.documents if known else None,
        documents.find(path, config.get("dataset_name"), data_dir),
    )


def _data_dir(given: Path | None) -> Path | None:
    folder = given or os.environ.get(DATA_DIR_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise UserError(f"no data folder {folder}: --data-dir and {DATA_DIR_VARIABLE} name a folder that exists")
    return Path(folder)


# --- the toolkit's own ---


def _own_files() -> dict[str, Path]:
    """The toolkit's own benchmarks by name; a task file's name is the task's."""
    return {path.stem: path for path in sorted(OURS.glob("*.yaml"))}


def _config(path: Path, resolve: bool = True) -> dict[str, Any]:
    """A task file over its base.

    Args:
        resolve: whether functions that it names are imported.
    """
    config = load_yaml(path, resolve_func=resolve)
    if "base" not in config:
        return config
    base_path = LM_EVAL / config.pop("base")
    if not base_path.exists():
        raise UserError(
            f"lm-eval {version('lm-eval')} has no {base_path.relative_to(LM_EVAL)}, which task '{path.stem}' changes: "
            "install the version that the constraints file names"
        )
    base = load_yaml(base_path, resolve_func=resolve)
    generation = {**base.get("generation_kwargs", {}), **config.get("generation_kwargs", {})}
    return {**base, **config, "generation_kwargs": generation}


def _build(config: Mapping[str, Any], data_dir: Path | None) -> Task:
    settings = copy.deepcopy({key: value for key, value in config.items() if key not in ("tag", "task_list")})
    path, name, options = (settings.get(key) for key in ("dataset_path", "dataset_name", "dataset_kwargs"))
    return ConfigurableTask(config=settings | {"custom_dataset": documents.Loader(path, name, data_dir, options or {})})


# --- the user's and lm-eval's ---


@functools.cache
def _manager(tasks_dir: Path | None, everything: bool) -> TaskManager:
    return TaskManager(include_path=tasks_dir, include_defaults=everything)


def _load_other(name: str, data_dir: Path | None, tasks_dir: Path | None) -> dict[str, Any]:
    if tasks_dir is not None and not tasks_dir.is_dir():
        raise UserError(f"no folder {tasks_dir} for --tasks-dir")
    # Indexing all of lm-eval takes seconds, so only where the user's folder alone does not have the task.
    managers = [False, True] if tasks_dir else [True]
    for everything in managers:
        manager = _manager(tasks_dir, everything)
        entry = manager.task_index.get(name)
        if entry is None or (entry.kind is not Kind.TASK and not everything):  # a group may name lm-eval's tasks
            continue
        with documents.impatient_hub() as no_hub:
            try:
                config = load_yaml(entry.yaml_path) if entry.kind is Kind.TASK and entry.yaml_path else {}
                if config.get("dataset_path") in KNOWN:
                    return manager.load(_build(config, data_dir))
                return manager.load(name)
            except UserError:
                raise
            except Exception as error:  # whatever the task file's own code raises
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                also = f"; the hub is out of reach ({no_hub})" if no_hub else ""
                raise UserError(f"task '{name}' does not load ({reason}){also}") from error
    raise unknown("task", name, [*_own_files(), *manager.all_tasks])


# --- what they have in common ---


def _loaded(name: str, task_dict: dict[str, Any]) -> LoadedTask:
    tasks: list[Task] = list(task_dict["tasks"].values())
    for task in tasks:  # what lm-eval's simple_evaluate does before it evaluates
        if task.get_config("num_fewshot") is None:
            task.set_config("num_fewshot", 0)
        task.set_fewshot_seed(FEWSHOT_SEED)
    first = tasks[0]
    return LoadedTask(
        name,
        task_dict,
        _headline(first),
        _source(first),
        any(getattr(task, "UNSAFE_CODE", False) for task in tasks),
        first.get_config("num_fewshot"),
        str(first.VERSION),
    )


def _headline(task: Task) -> str:
    """The metric that the task file names, else its first metric under its first filter."""
    metadata = task.get_config("metadata") or {}
    filters = task.get_config("filter_list") or [{"name": "none"}]
    return metadata.get("headline") or f"{next(iter(task.aggregation()))},{filters[0]['name']}"


def _source(task: Task) -> DataSource:
    path = str(task.get_config("dataset_path"))
    return documents.describe(getattr(task.dataset, "source", f"hub:{path}"), path, task.eval_docs)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """lm-eval's and the hub client's remarks on every task loaded are no news to the user; errors are."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm-eval", "datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _lm_eval_seed() -> Iterator[None]:
    """Some task files draw from the global generator while they load; lm-eval seeds it so."""
    state = random.getstate()
    random.seed(RANDOM_SEED)
    try:
        yield
    finally:
        random.setstate(state)
