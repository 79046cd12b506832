"""A client for servers that speak OpenAI's completion protocol: ours, or anybody's.

It sends when it is told to and never waits for an answer, so that a slow server does not slow the offered load.
"""

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Self

import httpx2

from decodebench.decoding import Finish, Generation, Request
from decodebench.decoding.live import Refused
from decodebench.errors import UserError, first_line
from decodebench.serve import EXTRA

CONNECT_SECONDS = 10


class ServerError(Exception):
    """A request that the server answered with an error."""


class Call:
    """A request that is with the server.

    Attributes:
        sent: ``time.perf_counter()`` when it was handed over.
        left: whether it was cancelled.
        future: of the generation. Raises :class:`Refused` for 429 and 503, :class:`ServerError` for other errors, and
            what went wrong with the connection. Its latency counts from ``sent``; ``ttft`` is NaN where no text came.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sent = time.perf_counter()
        self.future: Future[Generation] = Future()
        self.future.set_running_or_notify_cancel()
        self.text = ""
        self.first: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.left = False
        self._loop = loop

    def cancel(self) -> None:
        """Hang up; the generation has the text that has come. A call that has ended stays as it is."""
        self.left = True
        with contextlib.suppress(RuntimeError):  # the client is closed
            self._loop.call_soon_threadsafe(self.hang_up)

    def hang_up(self) -> None:
        if self.task:
            self.task.cancel()

    def generation(self, finish: Finish, tokens: list[int], committed: list[int]) -> Generation:
        """What came of it, as of now."""
        ttft = math.nan if self.first is None else self.first - self.sent
        return Generation(self.text, tokens, finish, committed, [], ttft, time.perf_counter() - self.sent)


class Client:
    """A connection to a server, on a thread of its own.

    Args:
        url: with or without ``/v1``.
        model: the name to ask for; default: the only one that the server has.
        api_key: if it wants one.
        method: to ask our own server for.
        tokenizer: that counts the tokens of answers from servers that do not tell them; without one they have none.

    Attributes:
        ours: whether the server is a ``decodebench serve``, which takes τ and tells tokens and passes.

    Raises:
        UserError: nobody answers there, or which model is meant is unclear.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        method: str | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self.method, self.tokenizer = method, tokenizer
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.model, self.ours = self._look(model)
        self._calls: set[Call] = set()
        self._loop = asyncio.new_event_loop()
        self._http = httpx2.AsyncClient(
            headers=self.headers, limits=httpx2.Limits(max_connections=None), trust_env=False,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._loop.run_forever, name="decodebench-client", daemon=True)
        self._thread.start()

    def _look(self, asked: str | None) -> tuple[str, bool]:
        try:
            answer = httpx2.get(f"{self.url}/models", headers=self.headers, timeout=CONNECT_SECONDS, trust_env=False)
            answer.raise_for_status()
            models = {str(each["id"]): str(each.get("owned_by")) for each in answer.json()["data"]}
        except Exception as error:  # a stranger may answer anything
            raise UserError(f"--url {self.url}: {first_line(error)}") from None
        if asked is None and len(models) != 1:
            raise UserError(f"--url {self.url} has {len(models)} models: name one of {', '.join(sorted(models))}")
        name = asked or next(iter(models))
        return name, models.get(name) == "decodebench"

    def submit(self, request: Request, prompt: str | None = None, done: Callable[[Call], None] | None = None) -> Call:
        """Send a request, now.

        Args:
            request: what is wanted; its τ must be a number or None, and goes to our own server only.
            prompt: the prompt as text, special tokens included; None sends the token ids, which not all servers take.
            done: told when it has ended, on the client's thread.
        """
        call = Call(self._loop)
        self._calls.add(call)
        body = self._body(request, prompt)

        def begin() -> None:
            if call.left:
                call.future.set_result(call.generation("cancelled", [], []))
            else:
                call.task = self._loop.create_task(self._serve(call, body))

        def ended(future: Future[Generation]) -> None:
            self._calls.discard(call)
            if done:
                done(call)

        call.future.add_done_callback(ended)
        self._loop.call_soon_threadsafe(begin)
        return call

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return len(self._calls)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all calls have ended; False if that takes longer (seconds)."""
        return not wait([call.future for call in list(self._calls)], timeout).not_done

    def close(self) -> None:
        """Hang up on all calls and end."""
        for call in list(self._calls):
            call.cancel()
        self.drain(CONNECT_SECONDS)
        asyncio.run_coroutine_threadsafe(self._http.aclose(), self._loop).result(CONNECT_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _body(self, request: Request, prompt: str | None) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(request.prompt) if prompt is None else prompt,
            "max_tokens": request.max_new_tokens,
            "temperature": sampling.temperature,
            "stream": True,
        }
        if request.stop:
            body["stop"] = list(request.stop)
        if not sampling.greedy:
            body |= {"top_p": sampling.top_p, "seed": sampling.seed % 2**63}
        if self.ours:
            own = {"tau": request.tau, "method": self.method, "top_k": sampling.top_k or None, "return_tokens": True}
            body |= {name: value for name, value in own.items() if value is not None}
        return body

    # On the client's thread

    async def _serve(self, call: Call, body: dict[str, Any]) -> None:
        try:
            call.future.set_result(await self._exchange(call, body))
        except asyncio.CancelledError:
            call.future.set_result(call.generation("cancelled", self._count(call.text), []))
        except Exception as error:
            call.future.set_exception(error)

    async def _exchange(self, call: Call, body: dict[str, Any]) -> Generation:
        finish: Finish | None = None
        extra: dict[str, Any] = {}
        async with self._http.stream("POST", f"{self.url}/completions", json=body) as answer:
            if answer.status_code != 200:
                reason = f"{answer.status_code}: {_message(await answer.aread())}"
                raise Refused(reason) if answer.status_code in (429, 503) else ServerError(reason)
            async for chunk in _events(answer.aiter_bytes()):
                if "error" in chunk:
                    raise ServerError(_message(json.dumps(chunk).encode()))
                for choice in chunk.get("choices") or []:
                    if text := choice.get("text"):
                        call.first = call.first or time.perf_counter()
                        call.text += text
                    if reason := choice.get("finish_reason"):
                        finish = "length" if reason == "length" else "stop_token"
                        extra = choice.get(EXTRA) or {}
        if finish is None:
            raise ServerError("the answer broke off")
        tokens = extra.get("tokens")
        tokens = self._count(call.text) if tokens is None else tokens
        return call.generation(extra.get("finish", finish), tokens, extra.get("committed", []))

    def _count(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if self.tokenizer and text else []


async def _events(stream: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON of server-sent events, up to ``[DONE]``."""
    rest = b""
    async for part in stream:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                yield json.loads(data)


def _message(body: bytes) -> str:
    """What an error's body says."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(body[:200].decode(errors="replace").split())
