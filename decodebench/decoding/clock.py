"""Timing parts of a pass without waiting for the device."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the time of pieces of work that the device may do later.

    On CUDA a piece is timed by events in the stream of work, because the host has long gone on when it begins;
    elsewhere by the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time what is done inside."""
        if self.device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self.events.append((begin, end))
        else:
            begun = time.perf_counter()
            yield
            self.seconds += time.perf_counter() - begun

    def take(self) -> float:
        """Seconds since the last call; to be asked when the device has done its work."""
        seconds = self.seconds + sum(begin.elapsed_time(end) / 1000 for begin, end in self.events)
        self.seconds, self.events = 0.0, []
        return seconds
