"""Where a load is served: what a load asks of an engine in this process, and of a server elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

import numpy as np

from decodebench.decoding import Request
from decodebench.evaluation.environment import PeakMemory
from decodebench.evaluation.runner import WARM_UP_TOKENS, RunOptions
from decodebench.load.drive import Outcome
from decodebench.load.grid import LoadCell, LoadOptions, cell_policy
from decodebench.load.session import Session
from decodebench.load.trace import PassTrace
from decodebench.models import LoadedModel

OnOutcome = Callable[[Outcome], None]


class Offered(Protocol):
    """One load that is being served."""

    @property
    def outcomes(self) -> list[Outcome]: ...

    @property
    def begun(self) -> float: ...

    def run(self, arrivals: np.ndarray, cancelled: Mapping[int, float]) -> None:
        """See :meth:`.session.Session.run`."""


class Place(Protocol):
    """Serves the loads of one cell."""

    has_tau: bool
    """Whether its passes tell of a τ."""

    def warm_up(self, requests: Sequence[Request]) -> None:
        """A few uncounted passes."""

    def offered(
        self, requests: Sequence[Request], texts: Sequence[str], trace: PassTrace, on_outcome: OnOutcome
    ) -> Offered:
        """A load on something fresh; ``texts`` are the prompts in words."""

    def timing(self) -> dict[str, Any]:
        """What else is recorded of the load that was offered last."""


class Engines(Place):
    """In this process, where every load gets an engine of its own.

    Args:
        cell: what is run.
        model: that serves.
        run, load: what holds for all loads.
    """

    def __init__(self, cell: LoadCell, model: LoadedModel, run: RunOptions, load: LoadOptions) -> None:
        self.cell, self.model, self.batching, self.load = cell, model, run.batching, load
        self.has_tau = cell.policy is not None

    def warm_up(self, requests: Sequence[Request]) -> None:
        """At every number of rows: the first pass of each shape compiles kernels."""
        self.cell.cell.build().generator(self.model, self.cell.cell.batch_size, self.batching).generate(short(requests))

    def offered(
        self, requests: Sequence[Request], texts: Sequence[str], trace: PassTrace, on_outcome: OnOutcome
    ) -> Session:
        method = self.cell.cell.build()
        self.generator = method.generator(self.model, self.cell.cell.batch_size, self.batching)
        chosen = cell_policy(self.cell, self.load, float(getattr(method, "tau", 1.0)))
        self.peak = PeakMemory(self.model.device)
        return Session(self.generator, requests, chosen, self.load.max_queue, self.load.deadline, trace, on_outcome)

    def timing(self) -> dict[str, Any]:
        return {"peak_memory_bytes": self.peak.bytes(), **asdict(self.generator.statistics)}


def short(requests: Sequence[Request]) -> list[Request]:
    """The same with answers of a few tokens, each of another length."""
    return [
        replace(request, max_new_tokens=min(WARM_UP_TOKENS + place, request.max_new_tokens))
        for place, request in enumerate(requests)
    ]
