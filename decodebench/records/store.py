"""One run's folder, open for writing: what is recorded there stays, whenever the process is killed.

A repeat is written in three steps, each of which can be cut off and done again:

1. `append` adds a sample when its request finishes. A torn last line is dropped at the next opening, and its request
   is then missing like those that were never run.
2. `record_timing` fixes how long the repeat took, before the outputs are scored: scoring can be long, and whoever
   repeats it has no engine time to measure.
3. `finish_repeat` writes the scores into the samples and only then counts the repeat as complete. Between the two,
   samples with scores belong to a repeat that is not complete; they are scored and written again.
"""

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from decodebench.errors import UserError
from decodebench.records import lock
from decodebench.records.aggregates import aggregate
from decodebench.records.files import (
    RUN,
    SAMPLES,
    SCHEMA,
    append_line,
    parse_samples,
    plain,
    prepare_results,
    read_run,
    replace_file,
    sample_key,
    to_line,
)
from decodebench.records.identity import differences, run_name

Sample = dict[str, Any]

MEASURED = {"roofline", "compile_seconds"}  # later, by `add_to_environment`
MACHINE = {"cpu", "gpu", "cores", "threads"}  # what of the environment such figures depend on

log = logging.getLogger(__name__)


class RunStore:
    """A run's records, locked for this process until `close` (or the end of a `with` block).

    Attributes:
        folder: where the records lie.
        run: the content of `run.json`; read it, and leave writing to the methods.
    """

    def __init__(self, folder: Path, run: dict[str, Any], lock_descriptor: int) -> None:
        self.folder = folder
        self.run = run
        self._lock: int | None = lock_descriptor
        self._changed: list[str] = []  # what differs in the environment since the run began

    @classmethod
    def open_or_create(
        cls,
        results_dir: Path,
        config: Mapping[str, Any],
        task_info: Mapping[str, Any],
        environment: Mapping[str, Any],
        *,
        fresh: bool = False,
    ) -> Self:
        """Open the run that has this configuration, or begin it. An existing run is not changed by opening it.

        Args:
            results_dir: the folder of runs; created if need be.
            config: everything that makes this run differ from another one; the number of repeats does not.
            task_info: "headline" (a metric's name, or None), what identifies the questions, and the "suite" that the
                run was first wanted in.
            environment: versions and hardware.
            fresh: forget what is recorded and begin again.

        Raises:
            UserError: the results folder cannot be used (see `prepare_results`); another process has the run open;
                it was made with other prompts or data, or by a newer decodebench; its files are broken.
        """
        prepare_results(results_dir)
        folder = results_dir / run_name(config)
        try:
            folder.mkdir(exist_ok=True)
            descriptor = lock.acquire(folder / ".lock")
        except BlockingIOError:
            raise UserError(f"run '{folder.name}' is being written by another process: wait for it to end") from None
        except OSError as error:
            raise UserError(f"cannot write to run folder '{folder}': {error.strerror}") from None
        try:
            if fresh:
                (folder / RUN).unlink(missing_ok=True)
            if (folder / RUN).exists():
                store = cls(folder, read_run(folder), descriptor)
                store._check_same(plain(config), plain(task_info), plain(environment))
            else:
                # Samples without a run.json are what an interrupted fresh start leaves behind.
                (folder / SAMPLES).unlink(missing_ok=True)
                store = cls(folder, _new_run(folder.name, config, task_info, environment), descriptor)
                store._write_run()
        except BaseException:
            os.close(descriptor)
            raise
        return store

    @property
    def repeats(self) -> int:
        """How many repeats are complete; the next one to run has this number."""
        return int(self.run["repeats"])

    def is_complete(self, repeats: int) -> bool:
        """Whether the run has ended well with at least so many repeats."""
        return self.run["status"] == "done" and self.repeats >= repeats

    def samples(self, repeat: int) -> list[Sample]:
        """The samples recorded for a repeat, in the order in which they were recorded.

        Raises:
            UserError: `samples.jsonl` cannot be read.
        """
        return [sample for sample in self._samples.values() if sample["repeat"] == repeat]

    def next_session(self, repeat: int) -> int:
        """The number for the session that works on this repeat now: 0, unless an earlier one left samples."""
        return 1 + max((sample["session"] for sample in self.samples(repeat)), default=-1)

    def seconds_before(self, repeat: int) -> float:
        """Engine seconds that earlier sessions spent on this repeat, up to the last request that each finished."""
        spent: dict[int, float] = {}
        for sample in self.samples(repeat):
            spent[sample["session"]] = max(sample["elapsed"], spent.get(sample["session"], 0.0))
        return sum(spent.values())

    def append(self, sample: Mapping[str, Any]) -> bool:
        """Record one finished request, durably.

        Returns:
            False, and nothing is written, if this request is recorded already.

        Raises:
            OSError: the disk is full or gone; what was recorded before stays readable.
        """
        line = to_line(sample)
        key = sample_key(dict(sample))
        if key in self._samples:
            return False
        self._set_running()
        append_line(self.folder / SAMPLES, line)
        self._samples[key] = json.loads(line)
        return True

    def discard(self, repeat: int) -> None:
        """Forget the samples of a repeat that was cut off, for runs that cannot go on where they stopped."""
        if repeat < self.repeats or self.timing(repeat) is not None:
            raise ValueError(f"repeat {repeat} is complete")
        if begun := [key for key in self._samples if key[0] == repeat]:
            for key in begun:
                del self._samples[key]
            self._write_samples(self._samples)

    def timing(self, repeat: int) -> dict[str, Any] | None:
        """What `record_timing` stored for a repeat; None as long as requests of it may be missing."""
        timings = self.run["timings"]
        return timings[repeat] if repeat < len(timings) else None

    def record_timing(self, repeat: int, timing: Mapping[str, Any]) -> None:
        """Store how long a repeat took once all its requests are recorded. The first timing stays.

        Args:
            repeat: the number of the repeat.
            timing: over all its sessions: "seconds" (engine wall time), "prefill_seconds", "decode_seconds",
                "draft_seconds", "passes" (of the engine), "decoding" (see `decoding.DecodingPasses`),
                "peak_memory_bytes", "interrupted" (more than one session).
        """
        if self.timing(repeat) is None:
            if repeat != len(self.run["timings"]):
                raise ValueError(f"repeat {repeat} cannot be timed before repeat {len(self.run['timings'])}")
            self._set_running()
            self.run["timings"].append(plain(timing))
            self._write_run()

    def finish_repeat(
        self, repeat: int, timing: Mapping[str, Any], scores: Mapping[tuple[Any, ...], Mapping[str, Any]]
    ) -> None:
        """Add the scores to the samples of a repeat and count it as complete.

        Args:
            repeat: the number of the repeat, equal to `repeats`.
            timing: as for `record_timing`, which this calls.
            scores: for each (task, doc_id) its value for each metric; for each (task, doc_id, idx), where the same
                document was asked several times and the answers are scored one by one.
        """
        if repeat != self.repeats:
            raise ValueError(f"repeat {repeat} cannot be finished before repeat {self.repeats}")
        self.record_timing(repeat, timing)
        for sample in self.samples(repeat):
            key = sample_key(sample)[1:]
            sample["scores"] = plain(scores.get(key, scores.get(key[:2])))
        self._write_samples(self._samples)
        self.run["repeats"] = repeat + 1
        self._aggregate()
        self._write_run()

    @property
    def has_ar_scores(self) -> bool:
        """Whether `add_ar_scores` was called since the first repeat was finished."""
        return self.run["aggregates"].get("ar_logprob") is not None

    def add_ar_scores(self, scores: Mapping[tuple[str, int, int], Mapping[str, Any]]) -> None:
        """Add what the model's autoregressive mode says of the outputs of the first repeat.

        Args:
            scores: by (task, doc_id, idx) what is added to the sample, "ar_logprobs" and "ar_equal"; outputs without
                tokens have none.
        """
        for key, values in scores.items():
            self._samples[0, *key].update(plain(values))
        self._write_samples(self._samples)
        self._aggregate()
        self._write_run()

    def add_to_environment(self, **measured: Any) -> None:
        """Add to the environment what was measured (one of ``MEASURED``), unless that is known.

        A run that was begun on another machine, or with other threads, is left as it is.
        """
        recorded = self.run["environment"]
        new = {name: plain(value) for name, value in measured.items() if name not in recorded}
        if new and MACHINE.isdisjoint(self._changed):
            recorded.update(new)
            self._write_run()

    def finish(self) -> None:
        """Mark the run as done."""
        self._end("done", None)

    def fail(self, error: object) -> None:
        """Mark the run as failed, with the reason in one line; what is recorded stays and is built on next time."""
        self._end("failed", " ".join(str(error).split()) or type(error).__name__)

    def close(self) -> None:
        """Release the lock. Closing twice does no harm."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _samples(self) -> dict[tuple[int, str, int, int], Sample]:
        """All samples by their key; reading them for the first time repairs the file."""
        samples, intact = parse_samples(self.folder)
        by_key = {sample_key(sample): sample for sample in samples}
        if not intact:
            self._write_samples(by_key)
        return by_key

    def _write_samples(self, samples: Mapping[tuple[int, str, int, int], Sample]) -> None:
        replace_file(self.folder / SAMPLES, "".join(to_line(samples[key]) for key in sorted(samples)))

    def _write_run(self) -> None:
        replace_file(self.folder / RUN, json.dumps(plain(self.run), ensure_ascii=False, indent=2) + "\n")

    def _aggregate(self) -> None:
        timings = self.run["timings"][: self.repeats]
        self.run["aggregates"] = aggregate(list(self._samples.values()), timings, self.run["task"]["headline"])

    def _set_running(self) -> None:
        if self._changed:
            changed, self._changed = ", ".join(self._changed), []
            log.warning("run '%s' goes on in another environment than it began in: %s", self.folder.name, changed)
        if self.run["status"] != "running":
            self.run |= {"status": "running", "error": None, "finished": None}
            self._write_run()

    def _end(self, status: str, error: str | None) -> None:
        self.run |= {"status": status, "error": error, "finished": _now()}
        self._write_run()

    def _check_same(self, config: Any, task_info: Any, environment: Any) -> None:
        if self.run["config"] != config:
            raise UserError(f"'{self.folder}' holds a run with another configuration: move it away")
        # The same data may come from another place, and a run may be wanted in another suite or by itself.
        other = [
            name
            for name in differences(self.run["task"], task_info)
            if name != "data.source" and name.partition(".")[0] != "suite"
        ]
        if other:
            raise UserError(
                f"run '{self.folder.name}' was recorded with other questions ({', '.join(other)} differ): "
                "use --fresh to replace it"
            )
        known = {name: value for name, value in self.run["environment"].items() if name not in MEASURED}
        self._changed = differences(known, environment)


def _new_run(
    name: str, config: Mapping[str, Any], task_info: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run": name,
        "status": "running",
        "error": None,
        "created": _now(),
        "finished": None,
        "config": plain(config),
        "task": plain(task_info),
        "environment": plain(environment),
        "repeats": 0,
        "timings": [],
        "aggregates": aggregate([], [], task_info["headline"]),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
