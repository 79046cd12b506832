"""The client's side of a load: an open loop that sends when it is time, and a listener that hears of the ends."""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Protocol, Self

import numpy as np

from decodebench.decoding import Generation


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float: ...

    def sleep_until(self, moment: float) -> None: ...


class WallClock:
    """Real time, in the seconds of ``time.perf_counter()``."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep_until(self, moment: float) -> None:
        while (left := moment - time.perf_counter()) > 0:
            time.sleep(left)


@dataclass(frozen=True)
class Departure:
    """How clients lose patience.

    Attributes:
        share: of the requests that are cancelled.
        within: each at a random moment in so many seconds after its arrival.
        seed: of who, and when.
    """

    share: float = 0.0
    within: float = 10.0
    seed: int = 0

    def moments(self, arrivals: Sequence[float]) -> dict[int, float]:
        """When each request is cancelled, by its place, if it is."""
        rng = np.random.default_rng([self.seed, 1])
        leaves, after = rng.random(len(arrivals)) < self.share, rng.uniform(0, self.within, len(arrivals))
        return {place: at + float(after[place]) for place, at in enumerate(arrivals) if leaves[place]}


def offer(
    arrivals: Sequence[float],
    cancelled: dict[int, float],
    send: Callable[[int, float], None],
    cancel: Callable[[int], None],
    clock: Clock,
    begun: float,
) -> None:
    """Send every request at its time, whatever has become of the others.

    A sender that is late, because sending took long, does not move the schedule: what counts is when a request was due.

    Args:
        arrivals: seconds from the beginning, ascending.
        cancelled: seconds from the beginning at which requests are given up, by place.
        send: takes a request's place in the list and the moment at which it was due; must not wait for the answer.
        cancel: takes the place.
        clock: whose time all moments are in.
        begun: the moment from which arrivals count.
    """
    sent = ((at, 0, place) for place, at in enumerate(arrivals))
    given_up = sorted((at, 1, place) for place, at in cancelled.items())
    for at, what, place in heapq.merge(sent, given_up):
        clock.sleep_until(begun + at)
        cancel(place) if what else send(place, begun + at)


@dataclass(frozen=True)
class Outcome:
    """What became of a request. Moments are of the load's clock.

    Attributes:
        place: in the list of arrivals.
        due: when it was to arrive.
        sent: when it was sent.
        ended: when that was known here.
        generation: ``None`` where it was refused or failed.
        error: why it failed.
        told: how many tokens the answer has, where a server says so and does not say which.
        passes_unknown: whether a server has answered, of whose passes nothing is known.
    """

    place: int
    due: float
    sent: float
    ended: float
    generation: Generation | None
    error: str | None = None
    told: int | None = None
    passes_unknown: bool = False

    @property
    def finish(self) -> str:
        if self.generation:
            return self.generation.finish
        return "failed" if self.error else "refused"

    @property
    def tokens(self) -> int:
        """Of the answer, as far as it came."""
        if self.generation is None:
            return 0
        return len(self.generation.tokens) if self.told is None else self.told

    @property
    def finished(self) -> bool:
        """Whether the answer came to its end."""
        return self.finish in ("stop_token", "stop_string", "length")

    @property
    def latency(self) -> float | None:
        """Seconds from the scheduled arrival to the end; ``None`` where the answer did not come to it."""
        return self.ended - self.due if self.finished else None

    @property
    def ttft(self) -> float | None:
        """Seconds from the scheduled arrival to the first token, where there was one."""
        if self.generation is None or not self.tokens:
            return None
        return self.ended - self.generation.latency + self.generation.ttft - self.due

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first, of answers that came to their end and have several."""
        if self.latency is None or self.ttft is None or self.tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.tokens - 1)

    def meets(self, latency: float | None, per_token: float | None) -> bool:
        """Whether it was finished within a target; answers of one token have no time per token to miss."""
        if self.latency is None or (latency is not None and self.latency > latency):
            return False
        return per_token is None or self.per_token is None or self.per_token <= per_token


class Listener:
    """Tells of outcomes on a thread that may wait for the disk.

    Args:
        on_outcome: told of each.

    Attributes:
        outcomes: in the order in which they were heard of.
        error: the first that ``on_outcome`` raised.
    """

    def __init__(self, on_outcome: Callable[[Outcome], None]) -> None:
        self.on_outcome = on_outcome
        self.outcomes: list[Outcome] = []
        self.error: BaseException | None = None
        self._ended: SimpleQueue[Outcome | None] = SimpleQueue()
        self._thread = Thread(target=self._listen, name="decodebench-listener")

    def hear(self, outcome: Outcome) -> None:
        self._ended.put(outcome)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.put(None)
        self._thread.join()

    def _listen(self) -> None:
        while (outcome := self._ended.get()) is not None:
            self.outcomes.append(outcome)
            try:
                self.on_outcome(outcome)
            except Exception as error:
                self.error = self.error or error
