"""From paths to runs: `run.json` is read at once, the samples only when something asks for them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodebench.errors import UserError, unknown
from decodebench.records import read_run, read_samples
from decodebench.records.aggregates import number, token_count
from decodebench.records.files import RUN

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

DOCUMENT = ["task", "doc_id", "idx", "doc_hash"]  # what names a request, in any run of its task


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
    def aggregates(self) -> dict[str, Any]:
        return self.record["aggregates"]

    @cached_property
    def samples(self) -> "pd.DataFrame":
        """One row per request and complete repeat, with what comparisons need of it.

        Columns: repeat, those of `DOCUMENT`, category (None where documents have none), score (of the headline
        metric, NaN where there is none), tokens (how many were committed), latency (seconds, NaN where there is none),
        output (the tokens as a tuple).
        """
        import pandas as pd

        try:
            samples = read_samples(self.folder)
        except UserError as error:
            log.warning("%s; comparing without its samples", error)
            samples = []
        headline = self.aggregates["score"]["metric"]
        rows = (
            (
                sample["repeat"],
                sample["task"],
                sample["doc_id"],
                sample.get("idx", 0),
                sample.get("doc_hash") or "",
                sample.get("category"),
                number((sample.get("scores") or {}).get(headline)),
                token_count(sample),
                number(sample.get("latency")),
                tuple(sample.get("tokens") or ()),
            )
            for sample in samples
            if sample["repeat"] < self.record["repeats"]
        )
        columns = ["repeat", *DOCUMENT, "category", "score", "tokens", "latency", "output"]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.astype({"score": float, "latency": float})


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """The usable runs under `paths`, each of which is a run's folder or a folder of runs.

    A folder of runs that holds none itself is searched one level deeper: so a fresh clone shows the results that came
    with it, and one's own take their place. Broken runs, and those without a complete repeat, are left out with a
    warning that names them.

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
    if not runs:
        raise UserError(f"no finished run in {', '.join(repr(str(path)) for path in paths)}")
    return runs


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
