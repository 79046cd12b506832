"""Policies: which confidence threshold τ the requests that are running use in the next pass.

A policy is found by name through the entry-point group ``decodebench.policies``, which anybody's package can add to.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from decodebench.decoding import Method, Progress, knobs_of
from decodebench.errors import UserError, first_line, unknown
from decodebench.load.ledger import Ledger

GROUP = "decodebench.policies"


@dataclass(frozen=True)
class Target:
    """What a finished request must meet to be good; ``None`` asks for nothing.

    Attributes:
        latency: seconds from the scheduled arrival to the end.
        per_token: seconds per token after the first.
    """

    latency: float | None = None
    per_token: float | None = None


@dataclass(frozen=True)
class Settings:
    """What policies are given.

    Attributes:
        low, high: bounds of τ. Confidence is a probability or a margin, so that a lower τ is bolder.
        target: what requests shall meet.
        rows: requests that can run at a time.
    """

    low: float
    high: float
    target: Target
    rows: int


class Policy(ABC):
    """Chooses τ. Both methods are called on the engine's thread, between two passes: they should be quick."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def observe(self, load: Ledger) -> None:
        """Called after every pass."""

    @abstractmethod
    def tau(self, progress: Progress) -> float:
        """τ of a running request in its next pass."""

    def bolder(self, share: float) -> float:
        """The τ between the bounds: 0 gives the highest, 1 the lowest."""
        return self.settings.high - min(max(share, 0.0), 1.0) * (self.settings.high - self.settings.low)


class Fixed(Policy):
    """The highest τ, whatever happens."""

    def observe(self, load: Ledger) -> None:
        pass

    def tau(self, progress: Progress) -> float:
        return self.settings.high


class Queue(Policy):
    """τ falls as the queue fills: highest while nobody waits, lowest when as many wait as can run."""

    share = 0.0

    def observe(self, load: Ledger) -> None:
        self.share = load.waiting / self.settings.rows

    def tau(self, progress: Progress) -> float:
        return self.bolder(self.share)


class Plain(Policy):
    """A function of the load that says τ."""

    def __init__(self, settings: Settings, choose: Callable[[Ledger], float]) -> None:
        super().__init__(settings)
        self.choose, self.chosen = choose, settings.high

    def observe(self, load: Ledger) -> None:
        self.chosen = min(max(float(self.choose(load)), self.settings.low), self.settings.high)

    def tau(self, progress: Progress) -> float:
        return self.chosen


def policy_names() -> list[str]:
    """Names of all installed policies, sorted."""
    return sorted(entry.name for entry in entry_points(group=GROUP))


def policy(name: str) -> Callable[[Settings], Policy]:
    """What makes a policy of that name.

    An entry point names a subclass of :class:`Policy`, or a function from the :class:`Ledger` to τ, which is asked
    after every pass and kept within the bounds.

    Raises:
        UserError: there is no policy of that name, or it cannot be loaded.
    """
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in entries:
        raise unknown("policy", name, entries)
    try:
        found = entries[name].load()
    except Exception as error:  # a stranger's module can fail in any way
        raise UserError(f"policy '{name}' ({entries[name].value}) cannot be loaded: {first_line(error)}") from error
    if isinstance(found, type) and issubclass(found, Policy):
        return found
    if not callable(found):
        raise UserError(f"policy '{name}' ({entries[name].value}) is neither a Policy nor a function")
    return lambda settings: Plain(settings, found)


def server_policies(name: str, settings: Settings, methods: Mapping[str, Method]) -> dict[str, Policy]:
    """By name, a policy for each of these methods that has a τ; none where that stays as it is.

    Raises:
        UserError: there is no such policy, it cannot hold what it shall, or none of the methods has a τ.
    """
    make = policy(name)
    if name == "fixed":
        return {}
    found = {each: make(settings) for each, method in methods.items() if "tau" in knobs_of(method)}
    if not found:
        raise UserError(f"--policy {name}: none of the methods has a confidence threshold (tau)")
    return found
