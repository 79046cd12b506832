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
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

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
        told: how many tokens the answer has, where the server says so and does not say which.
        future: of the generation. Raises :class:`Refused` for 429 and 503, :class:`ServerError` for other errors, and
            what went wrong with the connection. Its latency counts from ``sent``; ``ttft`` is NaN where nothing came.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float | None) -> None:
        self.sent = time.perf_counter()
        self.future: Future[Generation] = Future()
        self.future.set_running_or_notify_cancel()
        self.text = ""
        self.first: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.left = False
        self.deadline = deadline
        self.told: int | None = None
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
        method: to ask for, of servers that have several; others may refuse the field.
        tokenizer: that reads the tokens of answers from servers that do not tell them; without one they have none.

    Attributes:
        address: host and port.
        model: the name that is asked for.
        about: what the server says of that model; nothing, if it has no list of models.
        ours: whether the server is a ``decodebench serve``, which tells tokens and passes.

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
        self.address = _address(self.url)
        self.method, self.tokenizer = method, tokenizer
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.model, self.about = self._look(model)
        self.ours = self.about.get("owned_by") == "decodebench"
        self._key = api_key
        self._calls: set[Call] = set()
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._http = httpx2.AsyncClient(
            headers=self.headers, limits=httpx2.Limits(max_connections=None), trust_env=False,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._loop.run_forever, name="decodebench-client", daemon=True)
        self._thread.start()

    def _look(self, asked: str | None) -> tuple[str, dict[str, Any]]:
        try:
            answer = httpx2.get(f"{self.url}/models", headers=self.headers, timeout=CONNECT_SECONDS, trust_env=False)
            if asked is not None and answer.status_code in (404, 405, 501):  # not all servers have a list
                return asked, {}
            answer.raise_for_status()
            models = {str(each["id"]): dict(each) for each in answer.json()["data"]}
        except Exception as error:  # a stranger may answer anything
            raise UserError(f"--url {self.url}: {first_line(error)}") from None
        if asked is None and len(models) != 1:
            raise UserError(f"--url {self.url} has {len(models)} models: name one of {', '.join(sorted(models))}")
        name = asked or next(iter(models))
        return name, models.get(name, {})

    def submit(
        self,
        request: Request,
        prompt: str | None = None,
        deadline: float | None = None,
        done: Callable[[Call], None] | None = None,
    ) -> Call:
        """Send a request, now.

        Args:
            request: what is wanted; its τ must be a number or None, which leaves it to the server.
            prompt: the prompt as text, special tokens included; None sends the token ids, which not all servers take.
            deadline: ``time.perf_counter()`` at which we hang up, content with what has come.
            done: told when it has ended, on the client's thread.
        """
        call = Call(self._loop, deadline)
        body = self._body(request, prompt)
        with self._changed:
            self._calls.add(call)

        def begin() -> None:
            if call.left:
                call.future.set_result(call.generation("cancelled", [], []))
            else:
                call.task = self._loop.create_task(self._serve(call, body))

        def ended(future: Future[Generation]) -> None:
            try:
                if done:
                    done(call)
            finally:
                with self._changed:
                    self._calls.discard(call)
                    self._changed.notify_all()

        call.future.add_done_callback(ended)
        self._loop.call_soon_threadsafe(begin)
        return call

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return len(self._calls)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all calls have ended and this was told; False if that takes longer (seconds)."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, timeout)

    def close(self) -> None:
        """Hang up on all calls and end."""
        with self._changed:
            calls = list(self._calls)
        for call in calls:
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
        extra = {"tau": request.tau, "method": self.method, "top_k": sampling.top_k or None}
        body |= {name: value for name, value in extra.items() if value is not None}
        return body | ({"return_tokens": True} if self.ours else {"stream_options": {"include_usage": True}})

    # On the client's thread

    async def _serve(self, call: Call, body: dict[str, Any]) -> None:
        left = None if call.deadline is None else call.deadline - time.perf_counter()
        try:
            async with asyncio.timeout(left) as limit:
                answer = await self._exchange(call, body)
            call.future.set_result(answer)
        except asyncio.CancelledError:
            call.future.set_result(call.generation("cancelled", self._read(call.text), []))
        except Exception as error:
            if limit.expired():
                call.future.set_result(call.generation("deadline", self._read(call.text), []))
            else:
                call.future.set_exception(error)

    async def _exchange(self, call: Call, body: dict[str, Any]) -> Generation:
        finish: Finish | None = None
        extra: dict[str, Any] = {}
        async with self._http.stream("POST", f"{self.url}/completions", json=body) as answer:
            if answer.status_code != 200:
                reason = f"{answer.status_code}: {self._message(await answer.aread())}"
                raise Refused(reason) if answer.status_code in (429, 503) else ServerError(reason)
            async for chunk in _events(answer.aiter_bytes()):
                if chunk.get("error"):
                    raise ServerError(self._message(json.dumps(chunk).encode()))
                if usage := chunk.get("usage"):
                    call.told = usage.get("completion_tokens")
                for choice in chunk.get("choices") or []:
                    text, reason = choice.get("text"), choice.get("finish_reason")
                    if text or reason:  # the first token may be one that is not shown
                        call.first = call.first or time.perf_counter()
                        call.text += text or ""
                    if reason:
                        finish = "length" if reason == "length" else "stop_token"
                        extra = choice.get(EXTRA) or {}
        if finish is None:
            raise ServerError("the answer broke off")
        tokens = extra.get("tokens")
        tokens = self._read(call.text) if tokens is None else tokens
        return call.generation(extra.get("finish", finish), tokens, extra.get("committed", []))

    def _read(self, text: str) -> list[int]:
        """The tokens of a text; our own server tells those of whole answers, and nobody those of others."""
        if self.ours or not self.tokenizer or not text:
            return []
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _message(self, body: bytes) -> str:
        """What an error's body says, without our key, which some servers repeat."""
        try:
            said = str(json.loads(body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            said = " ".join(body[:200].decode(errors="replace").split())
        return said.replace(self._key, "…") if self._key else said


async def _events(stream: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON of server-sent events, up to ``[DONE]``."""
    rest = b""
    async for part in stream:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                try:
                    chunk = json.loads(data)
                except ValueError:
                    raise ServerError("the server sends events that are no JSON") from None
                if isinstance(chunk, dict):
                    yield chunk


def _address(url: str) -> str:
    """Host and port of a URL.

    Raises:
        UserError: it is none, or one that holds a secret.
    """
    shown = url.removesuffix("/v1")[:80]
    wrong = UserError(f"--url {shown}: give http://HOST:PORT or https://HOST, with or without /v1")
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        raise wrong from None
    if parts.username or parts.password:
        raise UserError("--url: leave out user name and password; keys go into --api-key or OPENAI_API_KEY")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise wrong
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"
