"""What `decodebench tasks` lists: benchmarks and where their data would come from, without reading them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodebench.evaluation import taskfiles
from decodebench.evaluation.catalog import resolve_data_dir
from decodebench.evaluation.lm_eval_tasks import check_folder, task_manager
from decodebench.evaluation.quiet import quiet
from decodebench.tasks import data
from decodebench.tasks.data import KNOWN


@dataclass(frozen=True)
class TaskInfo:
    """A benchmark or suite.

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


def list_tasks(*, data_dir: Path | None = None, tasks_dir: Path | None = None) -> list[TaskInfo]:
    """The toolkit's own benchmarks and those in `tasks_dir`.

    Raises:
        UserError: a folder that does not exist.
    """
    data_dir = resolve_data_dir(data_dir)
    with quiet():
        configs = {name: taskfiles.read(path, resolve=False) for name, path in taskfiles.own_files().items()}
        if tasks_dir:
            index = task_manager(check_folder(tasks_dir), False).task_index
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
        data.find(path, subset, data_dir) if path else "",
    )
