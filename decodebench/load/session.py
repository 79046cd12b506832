"""One load on one generator, from the first arrival to the last answer."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from decodebench.decoding import Generation, Generator, Progress, Request
from decodebench.decoding.engine import Engine
from decodebench.decoding.feed import Pass
from decodebench.decoding.live import Handle, Live, Refused
from decodebench.load.drive import Listener, Outcome, WallClock, offer
from decodebench.load.ledger import Ledger
from decodebench.load.policies import Policy
from decodebench.load.trace import PassTrace


class Session:
    """Serves requests as they arrive, and tells of each when it has ended.

    Args:
        generator: of the method, fresh.
        requests: in the order of their arrival.
        policy: chooses τ; None for methods that have none.
        max_queue: most requests that wait for a row.
        deadline: seconds after its arrival at which a request ends with what it has, if any.
        trace: where passes are written.
        on_outcome: told of every request that ended or was refused, on a thread of its own.
    """

    def __init__(
        self,
        generator: Generator,
        requests: Sequence[Request],
        policy: Policy | None,
        max_queue: int,
        deadline: float | None,
        trace: PassTrace,
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        self.requests, self.policy, self.deadline = requests, policy, deadline
        self.trace, self.listener = trace, Listener(on_outcome)
        self.error: BaseException | None = None
        self.begun = 0.0
        self._handles: dict[int, Handle] = {}
        self._streams = isinstance(generator, Engine)
        longest = max((len(request.prompt) + request.max_new_tokens for request in requests), default=1)
        self.live = Live(generator, longest, max_queue, on_pass=self._passed)
        self.ledger = Ledger(self.live.rows, time.perf_counter)

    @property
    def outcomes(self) -> list[Outcome]:
        return self.listener.outcomes

    def run(self, arrivals: np.ndarray, cancelled: Mapping[int, float]) -> None:
        """Offer the load and wait for the last answer.

        Args:
            arrivals: seconds from the beginning, one for each request.
            cancelled: seconds from the beginning at which requests are given up, by place.

        Raises:
            Exception: what ended the engine, or the listener.
        """
        self.begun = self.trace.begun = time.perf_counter()
        with self.listener, self.live:
            offer(arrivals.tolist(), dict(cancelled), self._send, self._cancel, WallClock(), self.begun)
            self.live.drain()
        if error := self.live.error or self.error or self.listener.error:
            raise error

    def _send(self, place: int, due: float) -> None:
        request, sent = self.requests[place], time.perf_counter()
        if self.policy is not None:
            request = Request(
                request.prompt, request.max_new_tokens, request.stop, request.sampling, tau=self.policy.tau
            )
        deadline = None if self.deadline is None else due + self.deadline
        self.ledger.arrive(place, due)
        told = partial(self._committed, place) if self._streams else None
        try:
            handle = self.live.submit(request, deadline, told)
        except Refused:
            self.ledger.end(place)
            self.listener.hear(Outcome(place, due, sent, time.perf_counter(), None))
            return
        self._handles[place] = handle
        handle.future.add_done_callback(partial(self._done, place, due, sent))

    def _cancel(self, place: int) -> None:
        if handle := self._handles.get(place):
            handle.cancel()

    # On the engine's thread

    def _committed(self, place: int, progress: Progress, tokens: list[int]) -> None:
        self.ledger.progress(place, len(progress.tokens))

    def _passed(self, done: Pass) -> None:
        self.ledger.passed(done.ended - done.begun, 0.0 if done.prefill else done.tokens / done.rows)
        self.trace.add(done, self.live.waiting)
        if self.policy is not None:
            self.policy.observe(self.ledger)

    def _done(self, place: int, due: float, sent: float, future: Future[Generation]) -> None:
        ended = time.perf_counter()
        self._handles.pop(place, None)
        if error := future.exception():
            self.error = self.error or error
            self.ledger.end(place)
            return
        outcome = Outcome(place, due, sent, ended, future.result())
        self.ledger.end(place, future.result().latency if outcome.finished else None)
        self.listener.hear(outcome)
