"""When requests arrive: at random, evenly, or as they once did; never because another one has ended."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decodebench.errors import UserError

KINDS = ("poisson", "constant")


@dataclass(frozen=True)
class Arrivals:
    """A plan of arrivals.

    Attributes:
        kind: "poisson", "constant", or "trace:" and the beginning of the file's SHA-256.
        rate: requests per second as the user wrote it, such as "2" or "0.5:60/2:60" (pieces of RATE:SECONDS).
        duration: seconds in which requests arrive.
        pieces: (rate, seconds) of each piece; none of a trace.
        trace: seconds of each arrival, of a trace.
    """

    kind: str
    rate: str
    duration: float
    pieces: tuple[tuple[float, float], ...] = ()
    trace: tuple[float, ...] = ()

    @property
    def mean_rate(self) -> float:
        """Requests per second over the whole duration."""
        if self.trace:
            return len(self.trace) / self.duration
        return sum(rate * seconds for rate, seconds in self.pieces) / self.duration

    def times(self, seed: int) -> np.ndarray:
        """Seconds from the beginning at which requests arrive, ascending, all below the duration.

        A Poisson process of changing rate is one of rate 1, seen through a clock that runs as fast as the rate says;
        evenly spaced arrivals are made in the same way.

        Args:
            seed: of the Poisson process; of no consequence for the others.
        """
        if self.trace:
            return np.array(self.trace)
        ends = np.cumsum([0.0] + [seconds for _, seconds in self.pieces])
        expected = np.cumsum([0.0] + [rate * seconds for rate, seconds in self.pieces])
        if self.kind == "constant":
            units = np.arange(math.ceil(expected[-1] - 1e-9), dtype=float)
        else:
            rng = np.random.default_rng(seed)
            enough = int(expected[-1] + 10 * math.sqrt(expected[-1]) + 20)
            units = np.cumsum(rng.exponential(size=enough))
            units = units[units < expected[-1]]
        piece = np.searchsorted(expected, units, side="right") - 1  # a rate of 0 stops the clock; none falls in there
        speed = (expected[piece + 1] - expected[piece]) / (ends[piece + 1] - ends[piece])
        return ends[piece] + (units - expected[piece]) / speed


def plan(kind: str, rate: str, duration: float) -> Arrivals:
    """Arrivals at a rate, or at rates that change in steps.

    Raises:
        UserError: the kind is unknown, or the rate or duration makes no sense.
    """
    if kind not in KINDS:
        raise UserError(f"--arrivals {kind}: choose {', '.join(KINDS)}, or name a file of timestamps")
    try:
        pieces = tuple(_piece(part, duration, alone="/" not in rate) for part in rate.split("/"))
    except ValueError:
        pieces = ()
    if not pieces or not all(r >= 0 and 0 < s < math.inf for r, s in pieces) or not 0 < _requests(pieces) <= 1e7:
        raise UserError(f"--rate {rate}: give requests per second, such as 2, or steps RATE:SECONDS, such as 1:60/4:60")
    return Arrivals(kind, rate, sum(seconds for _, seconds in pieces), pieces)


def _requests(pieces: tuple[tuple[float, float], ...]) -> float:
    return sum(rate * seconds for rate, seconds in pieces)


def _piece(text: str, duration: float, alone: bool) -> tuple[float, float]:
    rate, colon, seconds = text.partition(":")
    if not colon and not alone:
        raise ValueError(text)
    return float(rate), float(seconds) if colon else duration


def trace(path: Path, duration: float | None = None) -> Arrivals:
    """Arrivals at the timestamps in a file: seconds, one per line, in order; the first one is the beginning.

    Args:
        duration: leave out what comes after so many seconds.

    Raises:
        UserError: the file cannot be read or holds something else.
    """
    try:
        content = path.read_bytes()
        stamps = np.array([float(line) for line in content.decode().split("\n") if line.strip()])
    except OSError as error:
        raise UserError(f"--arrivals {path}: {error.strerror}") from None
    except ValueError:
        raise UserError(f"--arrivals {path}: must hold one number per line, seconds") from None
    if not len(stamps) or not np.isfinite(stamps).all() or (np.diff(stamps) < 0).any():
        raise UserError(f"--arrivals {path}: must hold timestamps in ascending order, at least one")
    times = stamps - stamps[0]
    if duration is not None:
        times = times[times < duration]
    length = duration or float(times[-1]) or 1.0
    name = f"trace:{hashlib.sha256(content).hexdigest()[:8]}"
    return Arrivals(name, f"{len(times) / length:.4g}", length, trace=tuple(times.tolist()))
