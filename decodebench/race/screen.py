"""The race on a terminal: panels side by side, text coloured by pass, counters that count up."""

import time
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from decodebench.race.colours import INK, colour
from decodebench.race.layout import layout
from decodebench.race.timeline import Lane, first_difference

FRAMES = 30  # per second
NARROWEST = 40  # columns of a panel; where there is less room, panels stand below each other


def replay(
    console: Console,
    lanes: Sequence[Lane],
    speed: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show all lanes as if they had started together. Ctrl-C goes to the end.

    Args:
        console: a terminal.
        lanes: that were run one after the other.
        speed: 1 is as fast as they were, 0.5 half of it.
    """
    end = max(lane.seconds for lane in lanes)
    began = clock()
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while (now := (clock() - began) * speed) < end:
                live.update(show(lanes, now, console.width, console.height - 1), refresh=True)
                sleep(1 / FRAMES)
    except KeyboardInterrupt:
        pass


def show(lanes: Sequence[Lane], seconds: float, width: int, height: int | None = None) -> Table:
    """The lanes at a time.

    Args:
        lanes: side by side where each has room.
        seconds: after the start.
        width: columns of all of it.
        height: rows of all of it, of which the latest lines of text fill what there is; None for as many as needed.
    """
    most = max(lane.generation.passes for lane in lanes)
    across = len(lanes) if width // len(lanes) >= NARROWEST else 1
    inner = max(width // across - 4, 2)
    rows = None if height is None else max(height * across // len(lanes) - 2, 1)
    grid = Table.grid(expand=False)
    for _ in range(across):
        grid.add_column(width=width // across)
    panels = [_panel(lane, seconds, most, inner, rows) for lane in lanes]
    for start in range(0, len(panels), across):
        grid.add_row(*panels[start : start + across])
    return grid


def _panel(lane: Lane, seconds: float, most: int, width: int, rows: int | None) -> Panel:
    _, tokens = lane.at(seconds)
    lines = layout(lane.texts[:tokens], lane.passes[:tokens], width)
    text = Text("\n").join(
        Text("", no_wrap=True).join(Text(s.text, f"{INK} on {colour(s.number, most)}") for s in line)
        for line in (lines if rows is None else lines[-rows:])
    )
    done = seconds >= lane.seconds
    return Panel(
        text,
        title=Text(lane.name, "bold"),
        subtitle=Text(counters(lane, seconds)),
        box=box.ROUNDED,
        border_style="green" if done else "dim",
        height=None if rows is None else rows + 2,
    )


def counters(lane: Lane, seconds: float) -> str:
    """What a lane has reached after so many seconds, in one line."""
    passes, tokens = lane.at(seconds)
    elapsed = min(seconds, lane.seconds)
    return f"{elapsed:.1f} s · {tokens / max(elapsed, 1e-9):.0f} tok/s · {tokens / max(passes, 1):.2f} tok/pass"


def results(lanes: Sequence[Lane]) -> list[str]:
    """How the lanes did, a line each; the first is what the others are measured against."""
    first, *others = lanes
    lines = [f"{first.name}: {first.generation.passes} passes, {counters(first, first.seconds)}"]
    for lane in others:
        ratio = _speed(lane) / _speed(first) if _speed(first) else 0.0
        at = first_difference(lane.generation.tokens, first.generation.tokens)
        same = "the same tokens" if at is None else f"other tokens from number {at + 1} on"
        facts = f"{lane.generation.passes} passes, {counters(lane, lane.seconds)}"
        lines.append(f"{lane.name}: {facts}; {ratio:.2f}× as fast as {first.name}, {same}")
    return lines


def _speed(lane: Lane) -> float:
    return len(lane.generation.tokens) / lane.seconds if lane.seconds else 0.0
