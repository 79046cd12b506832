"""Progress of a grid: a live table on a terminal, plain lines elsewhere; always on stderr."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from decodebench.decoding import Generation

SECONDS_BETWEEN_LINES = 15
FINISHED_BEFORE_ESTIMATE = 8  # the first requests of a batch all end late
REFRESHES = 2  # of the table in a second: drawing it takes time from what is being measured
BESIDE_ROWS = 6  # lines of a terminal that the table's rows leave free

State = Literal["waiting", "running", "done", "failed"]
MARKS: dict[State, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "running": ("▸", "bold"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
}


@dataclass
class Row:
    """A cell of the grid.

    Attributes:
        total: its requests, in all repeats.
        recorded: those that were finished before, or will not be run.
        finished: those that ended now.
        seconds: that its turns took before this one.
        began: when its turn came, ``None`` outside of it.
        tokens, passes: of this turn or, between turns, the last one; `spent` are its seconds.
    """

    name: str
    total: int
    recorded: int = 0
    finished: int = 0
    seconds: float = 0.0
    began: float | None = None
    spent: float = 0.0
    tokens: int = 0
    passes: int = 0
    failed: bool = False

    @property
    def left(self) -> int:
        return 0 if self.failed else self.total - self.recorded - self.finished

    @property
    def state(self) -> State:
        if self.failed or not self.left:
            return "failed" if self.failed else "done"
        return "waiting" if self.began is None else "running"

    def end_turn(self, now: float) -> None:
        if self.began is not None:
            self.spent = now - self.began
            self.seconds += self.spent
            self.began = None


class GridProgress:
    """Counts requests over all cells and repeats, and shows each cell's speed and the time left.

    Args:
        cells: names, and how many requests each has in all repeats.
        clock: seconds.
    """

    def __init__(self, cells: Mapping[str, int], clock: Callable[[], float] = time.perf_counter) -> None:
        self.console = Console(stderr=True)
        self.clock = clock
        self.rows = {name: Row(name, requests) for name, requests in cells.items()}
        self.current: Row | None = None
        self.began = self.last_line = clock()
        self.live = Live(get_renderable=self.table, console=self.console, refresh_per_second=REFRESHES)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_turn()
        self.live.stop()

    @property
    def finished(self) -> int:
        return sum(row.finished for row in self.rows.values())

    @property
    def total(self) -> int:
        """Requests that this session runs."""
        return sum(row.finished + row.left for row in self.rows.values())

    def begin(self, cell: str, note: str = "") -> None:
        """A cell's turn has come; the note says which turn it is."""
        self._end_turn()
        self.current = self.rows[cell]
        self.current.began, self.current.tokens, self.current.passes = self.clock(), 0, 0
        if not self.console.is_terminal:
            self.say(f"[{self.finished}/{self.total}] {cell}{note}")

    def skip(self, cell: str, requests: int) -> None:
        """These requests were recorded before."""
        self.rows[cell].recorded += requests

    def fail(self, cell: str, why: str) -> None:
        """The rest of a cell will not be run."""
        self.rows[cell].failed = True
        self.say(f"failed: {cell}: {why}")

    def advance(self, generation: Generation) -> None:
        """A request has ended."""
        row = self.current
        assert row is not None
        row.finished += 1
        row.tokens += len(generation.tokens)
        row.passes += generation.passes
        if self.clock() - self.last_line > SECONDS_BETWEEN_LINES and not self.console.is_terminal:
            left = self.seconds_left()
            estimate = "" if left is None else f", about {left:.0f} s left"
            self.say(f"[{self.finished}/{self.total}] {row.name}: {', '.join(self._speed(row))}{estimate}")
            self.last_line = self.clock()

    def say(self, text: str) -> None:
        """One line that stays, above the table."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """An estimate from what a request took in each cell, or in all of them where a cell had no turn yet."""
        if self.finished < FINISHED_BEFORE_ESTIMATE:
            return None
        now = self.clock()
        seconds = {name: row.seconds + self._this_turn(row, now) for name, row in self.rows.items()}
        overall = sum(seconds.values()) / self.finished
        return sum(
            row.left * (seconds[name] / row.finished if row.finished >= FINISHED_BEFORE_ESTIMATE else overall)
            for name, row in self.rows.items()
        )

    def table(self) -> Group:
        """The grid as it stands: a row for each cell, as many as there is room for, and the time left."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column()
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for _ in range(3):
            grid.add_column(justify="right", no_wrap=True)
        shown, above, below = self._window(list(self.rows.values()))
        if above:
            grid.add_row("", Text(f"… {above} above", "dim"))
        for row in shown:
            mark, style = MARKS[row.state]
            counted = f"{row.recorded + row.finished}/{row.total}" if row.recorded < row.total else "recorded"
            grid.add_row(mark, Text(row.name), counted, *self._speed(row), style=style)
        if below:
            grid.add_row("", Text(f"… {below} below", "dim"))
        left, elapsed = self.seconds_left(), self.clock() - self.began
        times = f"{_clock_time(elapsed)}" + ("" if left is None else f", about {_clock_time(left)} left")
        bar = Table.grid(padding=(0, 2, 0, 0))
        bar.add_row(
            ProgressBar(max(self.total, 1), self.finished, width=30), f"{self.finished}/{self.total} requests", times
        )
        return Group(grid, bar)

    def _window(self, rows: Sequence[Row]) -> tuple[Sequence[Row], int, int]:
        """The rows around the current one that a terminal has room for, and how many are left out on either side."""
        room = max(self.console.height - BESIDE_ROWS, 1)
        if len(rows) <= room:
            return rows, 0, 0
        place = next((i for i, row in enumerate(rows) if row is self.current), 0)
        start = min(max(place - room // 2, 0), len(rows) - room)
        return rows[start : start + room], start, len(rows) - start - room

    def _end_turn(self) -> None:
        if self.current is not None:
            self.current.end_turn(self.clock())

    def _this_turn(self, row: Row, now: float) -> float:
        return 0.0 if row.began is None else now - row.began

    def _speed(self, row: Row) -> tuple[str, str]:
        seconds = row.spent if row.began is None else self._this_turn(row, self.clock())
        if not row.passes:
            return "", ""
        return f"{row.tokens / max(seconds, 1e-9):.0f} tokens/s", f"{row.tokens / row.passes:.2f} tokens/pass"


def _clock_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))).removeprefix("0:")
