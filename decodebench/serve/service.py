"""The engines behind the HTTP face: one for each method, on the same weights."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from decodebench.decoding import Decoder, Generation, Method, Request, knobs_of
from decodebench.decoding.cache import ATTENTION
from decodebench.decoding.forward import WindowModel
from decodebench.decoding.live import Handle, Live, Refused
from decodebench.errors import UserError, first_line
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

    Raises:
        UserError: a method cannot run on this model, or cannot share it.
        Exception: what ended an engine in its first passes, such as a lack of memory.
    """

    def __init__(self, model: LoadedModel, methods: Mapping[str, Method], limits: Limits) -> None:
        self.model, self.methods, self.limits = model, dict(methods), limits
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
            told = partial(self.metrics.passed, name, self.tau(name, None) is not None)
            self.lives[name] = SharedLive(turns, generator, self.length, limits.queue, on_pass=told)
        # so that no client waits for caches and kernels, or finds that they do not fit
        for live in self.lives.values():
            live.submit(Request([0], 2)).result()

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

    def tau(self, method: str, asked: float | None) -> float | None:
        """The confidence threshold that a request runs with; None where the method has none."""
        own = self.methods[method]
        if "tau" not in knobs_of(own) or not isinstance(own, Decoder):
            return None
        return own.default_tau if asked is None else asked

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
                if request.tau is not None and self.tau(method, None) is None:
                    raise ApiError(400, f"tau: method {method} has no confidence threshold", "tau")
                handle = live.submit(request, on_commit=partial(_committed, tell, place))
                handles.append(handle)
                handle.future.add_done_callback(partial(self._ended, method, handle, tell, place))
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

    def _ended(self, method: str, handle: Handle, tell: Tell, place: int, future: Future[Generation]) -> None:
        if error := future.exception():
            log.error("method %s: a request has failed", method, exc_info=error)
            tell(place, error)
            return
        generation, seconds = future.result(), time.perf_counter() - handle.submitted
        self.seconds += 0.1 * (generation.latency - self.seconds)
        self.metrics.ended(method, generation, len(handle.request.prompt), seconds)
        tell(place, generation)

    def stop(self) -> None:
        """Cancel what is left, and wait for the engines."""
        self.stopping = True
        for live in self.lives.values():
            live.stop()
        self.model.model.set_attn_implementation(self._attention)


def _committed(tell: Tell, place: int, progress: object, tokens: list[int]) -> None:
    tell(place, tokens)
