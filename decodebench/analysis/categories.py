"""Runs on prompts of several kinds, such as Spec-Bench's, cut into one run for each kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from decodebench.analysis.load import Run
from decodebench.errors import UserError
from decodebench.records import aggregate, read_samples
from decodebench.records.aggregates import number

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Part(Run):
    """What of a run is of one category, as a run of its own with task "<task>: <category>".

    Its record leaves out what the whole run's says of questions and environment.
    """

    whole: Run
    category: str

    @cached_property
    def samples(self) -> "pd.DataFrame":
        samples = self.whole.samples
        return samples[samples["category"] == self.category]


def by_category(runs: Sequence[Run]) -> list[Run]:
    """The runs that have categories, each followed by its parts.

    Raises:
        UserError: no run has categories, or the samples of one cannot be read.
    """
    cut: list[Run] = []
    for run in runs:
        samples = [sample for sample in read_samples(run.folder) if sample["repeat"] < run.record["repeats"]]
        categories = sorted({sample["category"] for sample in samples if "category" in sample})
        if categories:
            cut += [run, *(_part(run, samples, category) for category in categories)]
    if not cut:
        raise UserError("--by-category: none of these runs is on prompts with categories, as those of task speed are")
    return cut


def _part(run: Run, samples: Sequence[dict[str, Any]], category: str) -> Part:
    own = [sample for sample in samples if sample.get("category") == category]
    timings = [
        # Requests of all kinds share batches: each answers for the time in proportion to how long it was there.
        {
            "seconds": timing["seconds"] * _share(own, samples, repeat),
            "peak_memory_bytes": timing["peak_memory_bytes"],
            "interrupted": timing["interrupted"],
        }
        for repeat, timing in enumerate(run.record["timings"][: run.record["repeats"]])
    ]
    record = {
        "config": run.config | {"task": f"{run.config['task']}: {category}"},
        "environment": {},
        "repeats": run.record["repeats"],
        "aggregates": aggregate(own, timings, run.aggregates["score"]["metric"]),
    }
    return Part(run.folder, record, run, category)


def _share(own: Sequence[dict[str, Any]], samples: Sequence[dict[str, Any]], repeat: int) -> float:
    mine, everyone = (
        sum(number(sample["latency"]) or 0.0 for sample in some if sample["repeat"] == repeat)
        for some in (own, samples)
    )
    return mine / everyone if everyone else 0.0
