"""From paths to runs: `run.json` is read at once, the samples only when something asks for them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodebench.analysis.samples import no_columns, read_columns, read_outputs
from decodebench.errors import UserError, unknown
from decodebench.records import read_run
from decodebench.records.files import RUN

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Run:
    """A run with at least one complete repeat.

    Attributes:
        folder: where it lies.
        record: the content of its `run.json`.
    """

    folder: Path
    record: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def config(self) -> dict[str, Any]:
        return self.record["config"]

    @property
    def knobs(self) -> dict[str, Any]:
        return self.config.get("knobs") or {}

    @property
    def under_load(self) -> bool:
        """Whether its requests arrived over time instead of all being there at the beginning."""
        return "rate" in self.config

    @property
    def aggregates(self) -> dict[str, Any]:
        return self.record["aggregates"]

    @cached_property
    def samples(self) -> "pd.DataFrame":
        """One row per request and complete repeat, with the columns of `read_columns`; none if it cannot be read."""
        try:
            columns = read_columns(self.folder, self.aggregates["score"]["metric"])
        except UserError as error:
            log.warning("%s; comparing without its samples", error)
            columns = no_columns()
        return columns[columns["repeat"] < self.record["repeats"]]

    @property
    def outputs(self) -> Any:
        """The tokens of the outputs of the first repeat, an array of int32 arrays, in the rows of `samples`."""
        return read_outputs(self.folder, self.aggregates["score"]["metric"])[self.samples.index.to_numpy()]


def load_runs(paths: Sequence[Path], under_load: bool | None = False) -> list[Run]:
    """The usable runs under `paths`, each of which is a run's folder or a folder of runs.

    A folder of runs that holds none itself is searched one level deeper: so a fresh clone shows the results that came
    with it, and one's own take their place. Broken runs, and those without a complete repeat, are left out with a
    warning that names them.

    Args:
        paths: of runs.
        under_load: which runs are wanted: those whose requests arrived over time, the others, or (None) all.

    Raises:
        UserError: a path does not exist or holds no run, or no run is usable.
    """
    folders = dict.fromkeys(folder for path in paths for folder in _find(path))
    runs = []
    for folder in folders:
        try:
            run = Run(folder, read_run(folder))
        except UserError as error:
            log.warning("left out: %s", error)
            continue
        if run.record["repeats"]:
            runs.append(run)
        elif run.record["status"] == "failed":
            log.warning("left out: run '%s' failed: %s", run.name, run.record["error"])
        else:
            log.warning("left out: run '%s' is not finished; the command that began it takes it up again", run.name)
    wanted = [run for run in runs if under_load is None or run.under_load == under_load]
    if not wanted:
        kind = "" if not runs else " under load" if under_load else " but those under load (compare --load)"
        raise UserError(f"no finished run{kind} in {', '.join(repr(str(path)) for path in paths)}")
    return wanted


def select_tasks(runs: Sequence[Run], tasks: Sequence[str]) -> list[Run]:
    """The runs of some tasks, or of all if none is named.

    Args:
        runs: what to choose from.
        tasks: names of tasks, each a single one or a comma list.

    Raises:
        UserError: there is no run of a task.
    """
    names = {name.strip() for names in tasks for name in names.split(",")}
    known = {run.config["task"] for run in runs}
    for name in sorted(names - known):
        raise unknown("task", name, known)
    return [run for run in runs if not names or run.config["task"] in names]


def _find(path: Path) -> list[Path]:
    if not path.exists():
        raise UserError(f"no results at '{path}': 'decodebench run' makes some")
    if (path / RUN).exists():
        return [path]
    for pattern in (f"*/{RUN}", f"*/*/{RUN}"):
        if found := sorted(file.parent for file in path.glob(pattern)):
            return found
    raise UserError(f"no runs in '{path}': name a run's folder or a folder of runs")
