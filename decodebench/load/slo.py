"""A controller that holds a service-level objective with the highest τ that can."""

import math
from itertools import islice

from decodebench.decoding import Progress
from decodebench.errors import UserError
from decodebench.load.ledger import Ledger
from decodebench.load.policies import Policy, Settings

AIM = 0.85  # of the target: the rest is for what cannot be foreseen
GAIN = 4.0  # range of τ crossed in one target's time, for each unit of the error
MOST = 0.7  # error that counts at most, in natural logarithms: twice the aim, or half of it
MEMORY = 2.0  # targets' time for which requests that ended are remembered
TOKENS = 20  # what "a target's time" means for seconds per token


class Slo(Policy):
    """Holds the 95th percentile of latency, the seconds per token, or both, at the target; integral control of τ.

    How long requests took is known only when they have ended, too late to steer by. So those that are open count with
    what is foreseen of them: their age, and what is left at the present speed and the usual length.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        target = settings.target
        if target.latency is None and target.per_token is None:
            raise UserError("policy slo holds a target: give --target-latency or --target-per-token, in seconds")
        self.horizon = target.latency if target.latency is not None else TOKENS * (target.per_token or 0.0)
        self.share = 0.0
        self.before: float | None = None

    def observe(self, load: Ledger) -> None:
        if self.before is not None:
            error = min(max(self._error(load), -MOST), MOST)
            first = next(iter(load.open.values()), None)
            idle = max(first.arrived - self.before, 0.0) if first else 0.0  # nobody was there to be kept waiting
            step = GAIN * (error * (load.now - self.before - idle) - MOST * idle) / self.horizon
            self.share = min(max(self.share + step, 0.0), 1.0)
        self.before = load.now

    def tau(self, progress: Progress) -> float:
        return self.bolder(self.share)

    def _error(self, load: Ledger) -> float:
        """Above 0 where the service is too slow: the logarithm of what is expected ÷ what is aimed at."""
        per_token = seconds_per_token(load)
        errors = []
        if self.settings.target.latency is not None:
            latency = percentile_95(expected_latencies(load, per_token, MEMORY * self.horizon))
            errors.append((latency, self.settings.target.latency))
        if self.settings.target.per_token is not None:
            errors.append((per_token or 0.0, self.settings.target.per_token))
        return max(math.log(max(seen, 1e-9) / (AIM * target)) for seen, target in errors)


def seconds_per_token(load: Ledger, passes: int = 64) -> float | None:
    """What a running request waits for a token, over the last passes, those that read others' prompts included."""
    recent = list(islice(reversed(load.passes), passes))
    tokens = sum(count for _, count in recent)
    return sum(seconds for seconds, _ in recent) / tokens if tokens else None


def expected_latencies(load: Ledger, per_token: float | None, memory: float) -> list[float]:
    """Seconds of each request that was finished not long ago, and what is to be expected of each that is open."""
    found = [each.latency for each in load.ended if each.at > load.now - memory]
    usual = sum(each.tokens for each in load.ended) / len(load.ended) if load.ended else 0.0
    service = usual * (per_token or 0.0)
    ahead = 0
    for each in list(load.open.values()):
        left = max(usual - each.tokens, 0.0) * (per_token or 0.0)
        if not each.running:  # rows come free one after the other, `rows` of them in the time of a request
            ahead += 1
            left = service * (1 + ahead / load.rows)
        found.append(load.now - each.arrived + left)
    return found


def percentile_95(values: list[float]) -> float:
    """The value that a twentieth of the others exceed; 0 of none."""
    return sorted(values)[min(int(0.95 * len(values)), len(values) - 1)] if values else 0.0
