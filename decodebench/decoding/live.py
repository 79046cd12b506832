"""The engine as a service: requests arrive and are cancelled from any thread while others run."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from decodebench.decoding.decoder import Generator, OnCommit
from decodebench.decoding.engine import Engine
from decodebench.decoding.feed import Feed, Pass, unstarted
from decodebench.decoding.request import Finish, Generation, Progress, Request
from decodebench.decoding.workers import release_workers
from decodebench.errors import UserError, first_line


class Refused(Exception):
    """A request that was not taken: the queue is full, or the service is stopping."""


class Handle:
    """A request that was submitted.

    Attributes:
        request: what runs; assign its ``tau`` to change it from the next pass on.
        index: its number, as in :attr:`Progress.index`.
        submitted: ``time.perf_counter()`` when it was.
        future: of its generation; raises what a callback of this request raised, or what ended the service.
    """

    def __init__(self, request: Request, index: int, deadline: float | None, on_commit: OnCommit | None) -> None:
        tau = request.tau
        self.request = replace(request, tau=self._guarded(tau)) if callable(tau) else request
        self.index, self.deadline, self.on_commit = index, deadline, on_commit
        self.submitted = time.perf_counter()
        self.future: Future[Generation] = Future()
        self.future.set_running_or_notify_cancel()  # it is ended by us alone
        self.ended: Finish | None = None
        self.error: Exception | None = None

    def cancel(self) -> None:
        """End the request before the next pass, with the tokens it has; one that has ended stays as it is."""
        self.ended = self.ended or "cancelled"

    def result(self, timeout: float | None = None) -> Generation:
        """The generation, as soon as the request has ended.

        Raises:
            TimeoutError: it takes longer than this, in seconds.
        """
        return self.future.result(timeout)

    def fail(self, error: Exception) -> None:
        """End the request with an error of its own."""
        self.error, self.ended = error, "cancelled"

    def _guarded(self, tau: Callable[[Progress], float]) -> Callable[[Progress], float]:
        def ask(progress: Progress) -> float:
            try:
                return float(tau(progress))
            except Exception as error:
                self.fail(error)
                return math.nan  # which no confidence reaches

        return ask


class Live(Feed):
    """A generator on a thread of its own, fed by whoever calls :meth:`submit`. Sleeps while there is nothing to do.

    Generators other than the engine get as many requests as they run at a time, whenever the last ones are done: they
    stream nothing, and what is running there cannot be cancelled.

    Args:
        generator: whose batch size is the most requests that run at a time.
        max_length: most tokens of a request, prompt included, as for :meth:`Engine.serve`.
        max_queue: most requests that wait for a row; ``None`` sets no limit.
        on_pass: told of every pass, on the engine's thread.

    Attributes:
        refused: requests that found the queue full.
        error: what ended the service, where something did.
    """

    def __init__(
        self,
        generator: Generator,
        max_length: int,
        max_queue: int | None = None,
        on_pass: Callable[[Pass], None] | None = None,
    ) -> None:
        self.generator, self.max_length, self.max_queue = generator, max_length, max_queue
        self.on_pass = on_pass
        self.queue = deque()
        self.rows: int = getattr(generator, "batch_size", 1)
        self.refused = 0
        self.error: BaseException | None = None
        self._submitted = 0
        self._arrived: list[tuple[int, Request]] = []
        self._handles: dict[int, Handle] = {}  # of all requests that have not ended
        self._ended: Mapping[int, Finish] = {}
        self._stopping = False
        self._changed = threading.Condition()
        release_workers()
        self._thread = threading.Thread(target=self._work, name="decodebench-engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that have no row yet."""
        return len(self.queue) + len(self._arrived)

    @property
    def running(self) -> int:
        """Requests that have one."""
        return max(len(self._handles) - self.waiting, 0)

    def submit(self, request: Request, deadline: float | None = None, on_commit: OnCommit | None = None) -> Handle:
        """Have a request served.

        Args:
            request: read from now on by the engine's thread.
            deadline: ``time.perf_counter()`` at which it ends with what it has, in the queue or in a row.
            on_commit: called on the engine's thread with the progress and the tokens just committed; should be quick.
                What it raises ends this request alone.

        Raises:
            Refused: there is no room, or no more is taken.
            UserError: the method cannot serve it, or the prompt is not of this model's tokens.
        """
        self._check(request)
        with self._changed:
            if self._stopping or self.error:
                raise Refused("the service is stopping" if self.error is None else first_line(self.error))
            if self.max_queue is not None and len(self._handles) >= self.rows + self.max_queue:
                self.refused += 1
                raise Refused(f"{self.max_queue} requests are waiting already")
            handle = Handle(request, self._submitted, deadline, on_commit)
            self._submitted += 1
            self._handles[handle.index] = handle
            self._arrived.append((handle.index, handle.request))
            self._changed.notify()
        return handle

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more, and wait until everything that was taken has ended; False if that takes longer (seconds)."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Take no more, cancel everything, and wait for the pass that is running."""
        with self._changed:
            self._stopping = True
            for handle in self._handles.values():
                handle.cancel()
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _check(self, request: Request) -> None:
        if isinstance(self.generator, Engine):
            self.generator.decoder.check_request(request)
            words = self.generator.model.vocabulary
            if not 0 <= min(request.prompt) <= max(request.prompt) < words:
                raise UserError(f"the prompt has tokens outside the model's vocabulary of {words}")

    # The engine's side

    def _work(self) -> None:
        try:
            if isinstance(self.generator, Engine):
                self.generator.serve(self, self.max_length)
            else:
                self._serve_lists()
        except BaseException as error:
            self.error = error
        with self._changed:
            self._stopping = True
            left, self._handles = list(self._handles.values()), {}
        for handle in left:
            handle.future.set_exception(self.error or RuntimeError("the service has stopped"))

    def _serve_lists(self) -> None:
        while self.ready(0):
            taken = [self.queue.popleft() for _ in range(min(self.rows, len(self.queue)))]
            numbers = [index for index, _ in taken]
            told = partial(self._finished_of, numbers)
            self.generator.generate([request for _, request in taken], on_finish=told)

    def _finished_of(self, numbers: list[int], place: int, generation: Generation) -> None:
        self.finished(numbers[place], generation)

    def ready(self, running: int) -> bool:
        with self._changed:
            while not (running or self.queue or self._arrived or self._stopping):
                self._changed.wait()
            self.queue.extend(self._arrived)
            self._arrived.clear()
            handles = list(self._handles.values())
        now = time.perf_counter()
        for handle in handles:
            if handle.deadline is not None and now >= handle.deadline:
                handle.ended = handle.ended or "deadline"
        self._ended = {handle.index: handle.ended for handle in handles if handle.ended}
        for place in [place for place in self.queue if place[0] in self._ended] if self._ended else []:
            self.queue.remove(place)
            self.finished(place[0], unstarted(self._ended[place[0]]))
        return bool(running or self.queue or not self._stopping)

    def dropped(self) -> Mapping[int, Finish]:
        return self._ended

    def committed(self, progress: Progress, tokens: list[int]) -> None:
        handle = self._handles[progress.index]
        if handle.on_commit and handle.error is None:
            try:
                handle.on_commit(progress, tokens)
            except Exception as error:
                handle.fail(error)

    def finished(self, index: int, generation: Generation) -> None:
        with self._changed:
            handle = self._handles.pop(index)
        if handle.error is None:
            handle.future.set_result(generation)
        else:
            handle.future.set_exception(handle.error)

    def passed(self, done: Pass) -> None:
        if self.on_pass:
            self.on_pass(done)
