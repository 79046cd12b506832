"""One call from its body to its answer, and what happens when the client leaves in between."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from decodebench.decoding import Generation, Request
from decodebench.decoding.live import Handle
from decodebench.serve.answers import Form, event
from decodebench.serve.errors import ApiError
from decodebench.serve.prompts import read
from decodebench.serve.schema import CommonRequest, parse
from decodebench.serve.service import Event, Service
from decodebench.serve.text import TextStream

BODY_SECONDS = 30  # for a request to come in


class Calls:
    """Answers calls to the two completion endpoints.

    Args:
        service: that runs them.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        # One thread, so that a long prompt keeps neither the other clients' streams nor the engine waiting for long.
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="decodebench-reader")

    def endpoint(self, kind: type[CommonRequest]) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def answer(http: HttpRequest) -> Response:
            asked = parse(kind, await _body(http, self.service.limits.body))
            return await self._answer(http, asked)

        return answer

    async def _answer(self, http: HttpRequest, asked: CommonRequest) -> Response:
        service = self.service
        if asked.model != service.model.name:
            message = f"model '{asked.model[:80]}' is not served here: choose {service.model.name}"
            raise ApiError(404, message, "model", "model_not_found")
        method = service.default if asked.method is None else asked.method
        if method not in service.methods:
            message = f"method '{method[:80]}' is not served here: choose from {', '.join(service.methods)}"
            raise ApiError(400, message, "method", "method_not_found")
        loop = asyncio.get_running_loop()
        requests = await loop.run_in_executor(self.reader, read, service, asked)
        form = Form(asked, service.model.name, method, service.tau(method, asked.tau), requests)
        events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

        def tell(place: int, what: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped meanwhile
                loop.call_soon_threadsafe(events.put_nowait, (place, what))

        handles = service.submit(method, requests, tell)
        if asked.stream:
            return _Stream(self._pieces(form, requests, events), handles)
        try:
            await _unless_gone(http, _collect(form, len(requests), events))
        finally:
            _leave(handles)
        return JSONResponse(form.whole())

    async def _pieces(
        self, form: Form, requests: Sequence[Request], events: asyncio.Queue[tuple[int, Event]]
    ) -> AsyncIterator[str]:
        """Server-sent events; an answer that cannot be finished ends with an error."""
        model = self.service.model
        texts = [TextStream(model.tokenizer, request.stop, model.stop_tokens) for request in requests]
        for chunk in form.first():
            yield chunk
        while len(form.done) < len(requests):
            place, what = await events.get()
            try:
                if isinstance(what, list):
                    chunks = form.piece(place, texts[place].push(what))
                else:
                    form.done[place] = generation = _finished(what)
                    chunks = form.piece(place, texts[place].end(generation), generation)
            except ApiError as error:
                yield event(error.body())
                return
            for chunk in chunks:
                yield chunk
        for chunk in form.last():
            yield chunk


class _Stream(StreamingResponse):
    """Server-sent events; however it ends, its requests end with it."""

    def __init__(self, content: AsyncIterator[str], handles: Sequence[Handle]) -> None:
        super().__init__(content, headers={"Cache-Control": "no-cache"}, media_type="text/event-stream")
        self.handles = handles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _leave(self.handles)


def _leave(handles: Sequence[Handle]) -> None:
    for handle in handles:
        handle.cancel()


async def _collect(form: Form, count: int, events: asyncio.Queue[tuple[int, Event]]) -> None:
    while len(form.done) < count:
        place, what = await events.get()
        if not isinstance(what, list):
            form.done[place] = _finished(what)


def _finished(what: Generation | BaseException) -> Generation:
    if isinstance(what, BaseException):
        raise ApiError(500, "the engine has failed; the server's log says more")
    if what.finish == "cancelled":
        raise ApiError(503, "the server is stopping", retry_after=10)
    return what


async def _unless_gone(http: HttpRequest, work: Awaitable[None]) -> None:
    """Wait for the work, or for the client to leave.

    Raises:
        ApiError: it has left. Nobody will read this.
    """

    async def gone() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ApiError(499, "the client has left")
        tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


async def _body(http: HttpRequest, most: int) -> bytes:
    """The request's body.

    Raises:
        ApiError: it is not JSON by its own account, too large, or too slow.
    """
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "the Content-Type of a request must be application/json")
    too_large = ApiError(413, f"a request may have {most} bytes at most", code="request_too_large")
    if int(http.headers.get("content-length", "0")) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in http.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the request did not come in within {BODY_SECONDS} seconds") from None
    return bytes(body)
