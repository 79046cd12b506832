"""Where a run takes its requests from, and where it tells what becomes of them."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from decodebench.decoding.decoder import OnCommit, OnFinish
from decodebench.decoding.request import Finish, Generation, Progress, Request


@dataclass(frozen=True)
class Pass:
    """One forward pass, as a feed hears of it.

    Attributes:
        begun, ended: ``time.perf_counter()``.
        prefill: whether it read prompts.
        rows: requests that took part.
        tokens: committed in it, over all rows.
        tau: ``[rows]`` float32, the confidence thresholds that it used.
    """

    begun: float
    ended: float
    prefill: bool
    rows: int
    tokens: int
    tau: np.ndarray


class Feed(ABC):
    """What the engine's loop asks between two passes. All methods are called on the thread that runs the loop.

    Attributes:
        queue: requests that wait for a row, each with the number that it is reported under. The loop takes them from
            the left; nobody else touches it outside the calls below.
    """

    queue: deque[tuple[int, Request]]

    @abstractmethod
    def ready(self, running: int) -> bool:
        """Whether to go on; asked before every pass, and may wait for something to do while no request is running."""

    def dropped(self) -> Mapping[int, Finish]:
        """Running requests that end now, and why; they leave with what they have."""
        return {}

    @abstractmethod
    def committed(self, progress: Progress, tokens: list[int]) -> None:
        """A running request has got these tokens."""

    @abstractmethod
    def finished(self, index: int, generation: Generation) -> None:
        """A request has ended."""

    def passed(self, done: Pass) -> None:  # noqa: B027 - most do not ask
        """A pass is over, and its tokens have been told of."""


class ListFeed(Feed):
    """A list, from its beginning to its end; see :meth:`Generator.generate`."""

    def __init__(self, requests: Sequence[Request], on_commit: OnCommit | None, on_finish: OnFinish | None) -> None:
        self.queue = deque(enumerate(requests))
        self.on_commit, self.on_finish = on_commit, on_finish
        self.done: dict[int, Generation] = {}

    def ready(self, running: int) -> bool:
        return bool(running or self.queue)

    def committed(self, progress: Progress, tokens: list[int]) -> None:
        if self.on_commit:
            self.on_commit(progress, tokens)

    def finished(self, index: int, generation: Generation) -> None:
        self.done[index] = generation
        if self.on_finish:
            self.on_finish(index, generation)


def unstarted(finish: Finish) -> Generation:
    """What a request gets that ends before it had a row."""
    return Generation("", [], finish, [], [], ttft=math.nan, latency=0.0)
