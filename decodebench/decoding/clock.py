"""Splitting the time of a pass into parts without waiting for the device."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Part = Literal["model", "acceptance", "draft"]


class PassClock:
    """Adds up the time of the parts of passes, which the device may do later.

    On CUDA a part is timed by events in the stream of work, because the host has long gone on when it begins; elsewhere
    by the host's clock. A part inside another one counts as its own and not as the other's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._running: Part | None = None
        self._marks: list[tuple[Part | None, float | torch.cuda.Event]] = []  # what begins, and when
        self._spare: list[torch.cuda.Event] = []

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Time what is done inside."""
        outer, self._running = self._running, name
        self._marks.append((name, self._now()))
        try:
            yield
        finally:
            self._running = outer
            self._marks.append((outer, self._now()))

    def take(self) -> dict[Part, float]:
        """Seconds of each part since the last call; to be asked when the device has done its work, outside a part."""
        seconds: dict[Part, float] = defaultdict(float)
        for (name, begun), (_, ended) in zip(self._marks, self._marks[1:], strict=False):
            if name is not None:
                seconds[name] += _between(begun, ended)
        self._spare += [moment for _, moment in self._marks if not isinstance(moment, float)]
        self._marks.clear()
        return seconds

    def _now(self) -> float | torch.cuda.Event:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


def _between(begun: float | torch.cuda.Event, ended: float | torch.cuda.Event) -> float:
    if isinstance(begun, float):
        assert isinstance(ended, float)
        return ended - begun
    assert not isinstance(ended, float)
    return begun.elapsed_time(ended) / 1000
