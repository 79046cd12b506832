"""The engines behind the HTTP face: one for each method, on the same weights."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from decodebench.decoding import Decoder, Generation, Method, Progress, Request, knobs_of
from decodebench.decoding.cache import ATTENTION
from decodebench.decoding.feed import Pass
from decodebench.decoding.forward import WindowModel
from decodebench.decoding.live import Handle, Live, Refused
from decodebench.errors import UserError, first_line
from decodebench.load.ledger import Ledger
from decodebench.load.policies import Policy
from decodebench.models import LoadedModel
from decodebench.serve.errors import ApiError
from decodebench.serve.metrics import Metrics
from decodebench.serve.turns import SharedLive, Turns

log = logging.getLogger(__name__)
Event = list[int] | Generation | BaseException
Tell = Callable[[int, Event], None]


@dataclass(frozen=True)
class Limits:
    """What one server takes.

    Attributes:
        rows: most requests of a method that run at a time.
        queue: most of them that wait.
        length: most tokens of a request, prompt included.
        new_tokens: most tokens of an answer, where the request does not say.
        body: most bytes of a request.
    """

    rows: int = 16
    queue: int = 64
    length: int = 4096
    new_tokens: int = 256
    body: int = 1_000_000


class Service:
    """Answers requests with any of several methods.

    Engines take turns, pass by pass. Each has its own rows, queue and cache, so memory grows with their number.

    Args:
        model: what they run.
        methods: by the name that requests give; the first is for those that give none.
        limits: of each.
        policies: by method, what chooses τ for requests that bring none; the others keep the method's own.
        policy_name: what these are called.

    Raises:
        UserError: a method cannot run on this model, or cannot share it.
        Exception: what ended an engine in its first passes, such as a lack of memory.
    """

    def __init__(
        self,
        model: LoadedModel,
        methods: Mapping[str, Method],
        limits: Limits,
        policies: Mapping[str, Policy] | None = None,
        policy_name: str = "fixed",
    ) -> None:
        self.model, self.methods, self.limits = model, dict(methods), limits
        self.policies, self.policy_name = dict(policies or {}), policy_name
        self.ledgers = {name: Ledger(limits.rows, time.perf_counter) for name in self.policies}
        self._numbers = itertools.count()
        self.length = min(limits.length, WindowModel(model.model).context)
        self.vocabulary: int = model.model.get_input_embeddings().weight.shape[0]
        for name, method in methods.items():
            if len(methods) > 1 and not isinstance(method, Decoder):
                raise UserError(f"method {name} does not run in our engine, so it cannot share a model: serve it alone")
        model.tokenizer.encode("")  # from now on, no call changes the tokenizer's settings under another thread
        generators = {name: method.generator(model, limits.rows) for name, method in methods.items()}
        self.stopping = False
        self._attention = model.model.config._attn_implementation
        if len(methods) > 1:  # the model stays as engines need it until the last of them has ended
            model.model.set_attn_implementation(ATTENTION)
        turns, self.seconds = Turns(), 1.0
        self.lives: dict[str, Live] = {}
        sources = {name: (partial(self._running, name), partial(self._waiting, name)) for name in methods}
        self.metrics = Metrics(sources)
        for name, generator in generators.items():
            told = partial(self._passed, name, self.has_tau(name))
            self.lives[name] = SharedLive(turns, generator, self.length, limits.queue, on_pass=told)
        # so that no client waits for caches and kernels, or finds that they do not fit
        self._warm = False
        for name, live in self.lives.items():
            live.submit(self._steered(name, Request([0], 2))).result()
        self._warm = True

    def _running(self, name: str) -> int:
        return self.lives[name].running

    def _waiting(self, name: str) -> int:
        return self.lives[name].waiting

    @property
    def default(self) -> str:
        return next(iter(self.methods))

    @property
    def error(self) -> str | None:
        """What ended one of the engines, where something did."""
        return next((first_line(live.error) for live in self.lives.values() if live.error), None)

    def has_tau(self, method: str) -> bool:
        """Whether a method has a confidence threshold."""
        own = self.methods[method]
        return isinstance(own, Decoder) and "tau" in knobs_of(own)

    def tau(self, method: str, asked: float | None) -> float | None:
        """The confidence threshold that a request runs with; None where there is none, or a policy moves it."""
        own = self.methods[method]
        if not self.has_tau(method) or not isinstance(own, Decoder):
            return None
        return asked if asked is not None or method in self.policies else own.default_tau

    def _steered(self, method: str, request: Request) -> Request:
        """The request with the policy's τ, if there is a policy and the request has none of its own."""
        chosen = self.policies.get(method)
        return request if chosen is None or request.tau is not None else replace(request, tau=chosen.tau)

    def submit(self, method: str, requests: Sequence[Request], tell: Tell) -> list[Handle]:
        """Have requests served, all of them or none.

        Args:
            method: one of ours.
            tell: called on the engine's thread with a request's place, and the tokens just committed or, in the end,
                its generation or what went wrong.

        Raises:
            ApiError: there is no room, or the method cannot serve such requests.
        """
        live = self.lives[method]
        handles: list[Handle] = []
        try:
            for place, request in enumerate(requests):
                if request.tau is not None and not self.has_tau(method):
                    raise ApiError(400, f"tau: method {method} has no confidence threshold", "tau")
                number = next(self._numbers)
                self._arrived(method, number)
                try:
                    told = partial(self._committed, method, number, tell, place)
                    handle = live.submit(self._steered(method, request), on_commit=told)
                except BaseException:
                    self._gone(method, number)
                    raise
                handles.append(handle)
                handle.future.add_done_callback(partial(self._ended, method, number, handle, tell, place))
        except (ApiError, Refused, UserError) as error:
            for handle in handles:
                handle.cancel()
            raise self._refusal(method, error) from None
        return handles

    def _refusal(self, method: str, error: Exception) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, UserError):
            return ApiError(400, str(error).removeprefix("--"))
        if self.stopping or self.lives[method].error:
            return ApiError(503, str(error), retry_after=10)
        self.metrics.refused.labels(method).inc()
        return ApiError(429, f"the queue is full: {error}", code="queue_full", retry_after=self.retry_after(method))

    def retry_after(self, method: str) -> int:
        """Seconds after which half of those who wait should be through, if requests take what they took lately."""
        live = self.lives[method]
        return min(max(math.ceil(self.seconds * (1 + live.waiting / 2) / live.rows), 1), 60)

    def _arrived(self, method: str, number: int) -> None:
        if ledger := self.ledgers.get(method):
            ledger.arrive(number, time.perf_counter())

    def _gone(self, method: str, number: int, seconds: float | None = None) -> None:
        if ledger := self.ledgers.get(method):
            ledger.end(number, seconds)

    # On an engine's thread

    def _passed(self, method: str, has_tau: bool, done: Pass) -> None:
        self.metrics.passed(method, has_tau, done)
        if self._warm and (ledger := self.ledgers.get(method)):
            ledger.passed(done.ended - done.begun, 0.0 if done.prefill else done.tokens / done.rows)
            self.policies[method].observe(ledger)

    def _committed(
        self, method: str, number: int, tell: Tell, place: int, progress: Progress, tokens: list[int]
    ) -> None:
        if ledger := self.ledgers.get(method):
            ledger.progress(number, len(progress.tokens))
        tell(place, tokens)

    def _ended(
        self, method: str, number: int, handle: Handle, tell: Tell, place: int, future: Future[Generation]
    ) -> None:
        if error := future.exception():
            self._gone(method, number)
            log.error("method %s: a request has failed", method, exc_info=error)
            tell(place, error)
            return
        generation, seconds = future.result(), time.perf_counter() - handle.submitted
        whole = generation.finish in ("stop_token", "stop_string", "length")
        self._gone(method, number, generation.latency if whole else None)
        self.seconds += 0.1 * (generation.latency - self.seconds)
        self.metrics.ended(method, generation, len(handle.request.prompt), seconds)
        tell(place, generation)

    def stop(self) -> None:
        """Cancel what is left, and wait for the engines."""
        self.stopping = True
        for live in self.lives.values():
            live.stop()
        self.model.model.set_attn_implementation(self._attention)
