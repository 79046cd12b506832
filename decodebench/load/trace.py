"""Writes down the passes of a load."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from decodebench.decoding.feed import Pass
from decodebench.records.files import to_line


class PassTrace:
    """Writes down every pass, and keeps it.

    What a line has is told by `decodebench.records.passes.read_passes`.

    Args:
        file: open for writing.
        has_tau: whether the method has a confidence threshold.
    """

    def __init__(self, file: TextIO, has_tau: bool) -> None:
        self.file, self.has_tau = file, has_tau
        self.begun = 0.0
        self.lines: list[dict[str, Any]] = []

    def add(self, done: Pass, waiting: int) -> None:
        tau = [round(float(value), 4) for value in done.tau] if self.has_tau else None
        line = {
            "t": round(done.ended - self.begun, 4),
            "seconds": round(done.ended - done.begun, 5),
            "prefill": done.prefill,
            "rows": done.rows,
            "waiting": waiting,
            "tokens": done.tokens,
            "tau": tau[0] if tau and len(set(tau)) == 1 else tau,
        }
        self.lines.append(line)
        self.file.write(to_line(line))


@contextmanager
def write_passes(path: Path, has_tau: bool) -> Iterator[PassTrace]:
    """A trace in a file that is whole when this ends, and readable up to its last lines when the process is killed."""
    with open(path, "w", encoding="utf-8", buffering=1 << 14) as file:
        yield PassTrace(file, has_tau)
