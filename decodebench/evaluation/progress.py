"""Progress of a grid: a bar on a terminal, plain lines elsewhere; always on stderr."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from decodebench.decoding import Generation

SECONDS_BETWEEN_LINES = 15
FINISHED_BEFORE_ESTIMATE = 8  # the first requests of a batch all end late


class GridProgress:
    """Counts requests over all cells and repeats, and shows the current cell's speed and the time left.

    Args:
        requests: in the whole grid.
    """

    def __init__(self, requests: int) -> None:
        self.console = Console(stderr=True)
        self.total, self.finished = requests, 0
        self.began = self.last_line = time.perf_counter()
        self.cell, self.cell_began, self.tokens, self.passes = "", self.began, 0, 0
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=self.console, disable=not self.console.is_terminal,
        )  # fmt: skip
        self.row = self.bar.add_task("", total=requests, speed="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def begin(self, cell: str) -> None:
        """A cell's turn has come."""
        self.cell, self.cell_began, self.tokens, self.passes = cell, time.perf_counter(), 0, 0
        self.bar.update(self.row, description=cell, speed="")
        if not self.console.is_terminal:
            self.say(f"[{self.finished}/{self.total}] {cell}")

    def skip(self, requests: int) -> None:
        """These requests were recorded before, or will not be run."""
        self.total -= requests
        self.bar.update(self.row, total=self.total)

    def advance(self, generation: Generation) -> None:
        """A request has ended."""
        self.finished += 1
        self.tokens += len(generation.tokens)
        self.passes += generation.passes
        self.bar.update(self.row, advance=1, speed=self._speed())
        if time.perf_counter() - self.last_line > SECONDS_BETWEEN_LINES:
            self._line()

    def say(self, text: str) -> None:
        """One line that stays, above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _speed(self) -> str:
        speed = self.tokens / max(time.perf_counter() - self.cell_began, 1e-9)
        return f"{speed:.0f} tokens/s, {self.tokens / max(self.passes, 1):.2f} tokens/pass"

    def _line(self) -> None:
        if self.console.is_terminal:
            return
        now = time.perf_counter()
        left = ""
        if self.finished >= FINISHED_BEFORE_ESTIMATE:
            seconds = (now - self.began) / self.finished * (self.total - self.finished)
            left = f", about {seconds:.0f} s left"
        self.say(f"[{self.finished}/{self.total}] {self.cell}: {self._speed()}{left}")
        self.last_line = now
