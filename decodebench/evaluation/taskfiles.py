"""Reads the toolkit's own task files and builds lm-eval's objects from them.

They are lm-eval task files with three keys more:

    base       the lm-eval file that this one changes, within lm-eval's tasks folder; what it says counts unless ours
               says otherwise, and `generation_kwargs` are merged key by key. Where it is a group, ours changes each of
               its members.
    requires   a function that is called with the data folder before anything is loaded, and raises UserError where
               something that the task needs is missing.
    suite      the names of the benchmarks that this name stands for; nothing else is in such a file.
"""

import copy
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.api.group import Group
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.config.group import GroupConfig
from lm_eval.tasks._yaml_loader import load_yaml

import decodebench.tasks
from decodebench.errors import UserError
from decodebench.tasks.data import Loader

OURS = Path(decodebench.tasks.__file__).parent
LM_EVAL = Path(lm_eval.tasks.__file__).parent
GROUP_KEYS = {field.name for field in fields(GroupConfig)}
NOT_OF_A_TASK = {"tag", "task_list", "base", "requires"}


def own_files() -> dict[str, Path]:
    """The toolkit's own benchmarks by name; a task file is named like its task."""
    return {path.stem: path for path in sorted(OURS.glob("*.yaml"))}


def read(path: Path, *, resolve: bool = True, data_dir: Path | None = None) -> dict[str, Any]:
    """A task file over its base; of a group, with the settings of its tasks under "members".

    Args:
        resolve: whether functions that it names are imported, and what it requires is checked.

    Raises:
        UserError: the base is not in the installed lm-eval, or something required is missing.
    """
    config = load_yaml(path, resolve_func=resolve)
    if resolve and "requires" in config:
        config["requires"](data_dir)  # before the base is read: what the base imports may rely on it
    if "base" not in config:
        return config
    base_path = LM_EVAL / config["base"]
    if not base_path.exists():
        raise UserError(
            f"lm-eval {version('lm-eval')} has no {config['base']}, which task '{path.stem}' changes: "
            "install the version that the constraints file names"
        )
    merged = _over(load_yaml(base_path, resolve_func=resolve), config)
    if "group" in merged:
        changes = {key: value for key, value in config.items() if key not in GROUP_KEYS}
        files = _members(base_path.parent)
        merged["members"] = [_over(load_yaml(files[name], resolve_func=resolve), changes) for name in merged["task"]]
    return merged


def _over(base: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    generation = {**base.get("generation_kwargs", {}), **ours.get("generation_kwargs", {})}
    return {**base, **ours, "generation_kwargs": generation}


def _members(folder: Path) -> dict[str, Path]:
    configs = {path: load_yaml(path, resolve_func=False) for path in folder.glob("*.yaml")}
    return {config["task"]: path for path, config in configs.items() if "group" not in config}


def build(config: Mapping[str, Any], data_dir: Path | None) -> Task | Group:
    """lm-eval's task, or group of tasks, with the documents loaded.

    Raises:
        UserError: data that are missing or malformed.
    """
    loaders: dict[tuple[str, str | None], Loader] = {}  # a group's tasks may be parts of one data set

    def build_task(settings: Mapping[str, Any]) -> Task:
        own = copy.deepcopy({key: value for key, value in settings.items() if key not in NOT_OF_A_TASK})
        path, name, options = own["dataset_path"], own.get("dataset_name"), own.pop("dataset_kwargs", None) or {}
        loader = loaders.setdefault((path, name), Loader(path, name, data_dir, options))
        return ConfigurableTask(config=own | {"custom_dataset": loader})

    if "members" not in config:
        return build_task(config)
    group = Group.from_config(GroupConfig(**{key: value for key, value in config.items() if key in GROUP_KEYS}))
    for member in config["members"]:
        group.add(build_task(member))
    return group
