"""The user's own lm-eval task files (`--tasks-dir`), and the tasks that lm-eval ships."""

import functools
import re
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind
from lm_eval.tasks._yaml_loader import load_yaml

from decodebench.errors import UserError, unknown
from decodebench.evaluation import taskfiles
from decodebench.hub import impatient_hub
from decodebench.tasks.data import KNOWN

NAME = re.compile(r"^(?:task|group): *([\w.+-]+)", re.MULTILINE)  # most names, enough to suggest from


def load_other(name: str, data_dir: Path | None, tasks_dir: Path | None) -> dict[str, Any]:
    """A task or group that is not the toolkit's own, as lm-eval loads it, but with data from where ours have theirs.

    Raises:
        UserError: there is none of that name, or it does not load.
    """
    folder = tasks_dir and check_folder(tasks_dir)
    own = task_manager(folder, False).task_index if folder else {}
    if _is_whole(name, own):
        return _load(name, own[name], task_manager(folder, False), data_dir)
    if name not in own:
        _check_shipped(name, [*taskfiles.own_files(), *own])
    manager = task_manager(folder, True)
    if name not in manager.task_index:
        raise unknown("task", name, [*taskfiles.own_files(), *manager.all_tasks])
    return _load(name, manager.task_index[name], manager, data_dir)


def check_folder(tasks_dir: Path) -> Path:
    """The folder of the user's task files as an absolute path.

    Raises:
        UserError: there is no such folder.
    """
    if not tasks_dir.is_dir():
        raise UserError(f"no folder {tasks_dir} for --tasks-dir")
    return tasks_dir.resolve()


@functools.cache
def task_manager(tasks_dir: Path | None, everything: bool) -> TaskManager:
    """lm-eval's index of a folder's task files, and of all of its own, which takes seconds, if `everything`."""
    return TaskManager(include_path=tasks_dir, include_defaults=everything)


def _is_whole(name: object, index: dict[str, Entry]) -> bool:
    """Whether an index has this task, or this group with all that is in it: the user's may name lm-eval's."""
    entry = index.get(name) if isinstance(name, str) else None
    if entry is None or entry.kind is not Kind.GROUP:
        return entry is not None
    return all(_is_whole(member, index) for member in (entry.cfg or {})["task"])


def _load(name: str, entry: Entry, manager: TaskManager, data_dir: Path | None) -> dict[str, Any]:
    if entry.kind is Kind.TAG:
        raise UserError(f"'{name}' is a tag on several tasks: name those you mean ({', '.join(sorted(entry.tags))})")
    with impatient_hub("openai/gsm8k", "dataset") as no_hub:  # any public one tells whether there is a hub
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


def _check_shipped(name: str, others: list[str]) -> None:
    """Refuse a name that stands nowhere in lm-eval's task files: to read them is ten times as fast as to index them.

    Raises:
        UserError: it does not, with the nearest name.
    """
    shipped: set[str] = set()
    for path in taskfiles.LM_EVAL.rglob("*"):
        if path.suffix not in (".py", ".pyc", ".md") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            if name in text:
                return
            shipped.update(NAME.findall(text))
    raise unknown("task", name, [*others, *shipped])
