"""What is known of the load at any moment: who waits, who runs, what the last passes and requests took."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

RECENT_PASSES = 256


@dataclass
class Open:
    """A request that has not ended.

    Attributes:
        arrived: when it was due, in seconds of the ledger's clock.
        tokens: it has got so far.
        running: whether it has a row.
    """

    arrived: float
    tokens: int = 0
    running: bool = False


@dataclass(frozen=True)
class Ended:
    """A request that was finished.

    Attributes:
        at: seconds of the ledger's clock.
        latency: seconds since it was due.
        service: seconds since it got its row.
        tokens: it got.
    """

    at: float
    latency: float
    service: float
    tokens: int


class Ledger:
    """The load as policies see it.

    Args:
        rows: requests that can run at a time.
        clock: seconds.
        recent: how many requests that ended are remembered.

    Attributes:
        open: requests that have not ended, in the order of their arrival.
        ended: the last that were finished.
        passes: seconds and tokens per row (mean) of the last passes.
    """

    def __init__(self, rows: int, clock: Callable[[], float], recent: int = 64) -> None:
        self.rows, self.clock = rows, clock
        self.open: dict[int, Open] = {}
        self.ended: deque[Ended] = deque(maxlen=recent)
        self.passes: deque[tuple[float, float]] = deque(maxlen=RECENT_PASSES)
        self.now = clock()

    @property
    def running(self) -> int:
        """Requests that have a row."""
        return sum(each.running for each in list(self.open.values()))

    @property
    def waiting(self) -> int:
        """Requests that have none yet."""
        return len(self.open) - self.running

    def arrive(self, number: int, due: float) -> None:
        """A request was taken."""
        self.open[number] = Open(due)

    def progress(self, number: int, tokens: int) -> None:
        """A request runs and has so many tokens."""
        each = self.open.get(number)
        if each is not None:
            each.tokens, each.running = tokens, True

    def end(self, number: int, service: float | None = None) -> None:
        """A request is gone; ``service`` is how long it ran, if it was finished and not cancelled."""
        each = self.open.pop(number, None)
        if each is not None and service is not None:
            now = self.clock()
            self.ended.append(Ended(now, now - each.arrived, service, each.tokens))

    def passed(self, seconds: float, tokens_per_row: float) -> None:
        """A pass is over."""
        self.now = self.clock()
        self.passes.append((seconds, tokens_per_row))
