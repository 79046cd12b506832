"""Loads on a server elsewhere: what can be measured of it from outside."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from decodebench.decoding import Request
from decodebench.decoding.live import Refused
from decodebench.errors import UserError, first_line, unknown
from decodebench.load.drive import Listener, Outcome, WallClock, offer
from decodebench.load.grid import SERVED
from decodebench.load.place import OnOutcome, Place, short
from decodebench.load.trace import PassTrace
from decodebench.models import load_tokenizer
from decodebench.serve.client import Call, Client


@dataclass(frozen=True)
class Server:
    """A server that is loaded.

    Attributes:
        clients: by the method that each asks for; :data:`.grid.SERVED` where it is not known which that is.
        tokenizer: whose prompts the server gets.
        rows: that it runs at a time, by its own word or else the user's.
    """

    clients: dict[str, Client]
    tokenizer: Any
    rows: int

    @property
    def methods(self) -> list[str]:
        return [name for name in self.clients if name != SERVED]

    @property
    def client(self) -> Client:
        """Any of them."""
        return next(iter(self.clients.values()))

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


def connect(
    url: str, model: str | None, api_key: str | None, methods: Sequence[str], tokenizer: str | None, rows: int
) -> Server:
    """Look whether a server is there, and what it says of itself.

    Args:
        url: with or without ``/v1``.
        model: the name that it gives to it; None takes the only one it has.
        api_key: if it wants one.
        methods: to ask for; none asks for none.
        tokenizer: the name of a model that has it; None takes the model's own.
        rows: for servers that do not tell.

    Raises:
        UserError: nobody answers, it has no such model or method, or there is no tokenizer.
    """
    first = Client(url, model, api_key, methods[0] if methods else None)
    words = _tokenizer(tokenizer or first.model, first)
    served = [str(name) for name in first.about.get("methods") or ()] if first.ours else []
    for name in methods:
        if served and name not in served:
            raise unknown("method of the server", name, served)
    names = list(methods) or served[:1] or [SERVED]
    clients = {names[0]: first}
    clients |= {name: Client(url, first.model, api_key, name, words) for name in names[1:]}
    first.tokenizer = words
    told = first.about.get("max_rows") if first.ours else None
    return Server(clients, words, rows if told is None else int(told))


def _tokenizer(name: str, client: Client) -> Any:
    try:
        return load_tokenizer(name)
    except UserError as error:
        raise UserError(
            f"--url {client.url}: the tokenizer of '{name}', for the prompts, cannot be had ({error}): "
            "name a model that has it with --tokenizer"
        ) from None


class RemoteSession:
    """Sends requests as they are due, and tells of each when it has ended. τ, queue and passes are the server's.

    Args:
        client: of the server.
        requests: in the order of their arrival.
        prompts: as text; None where the server takes token ids.
        deadline: seconds after its arrival at which a request is hung up on, if any.
        on_outcome: told of every request that ended, was refused or failed, on a thread of its own.
    """

    def __init__(
        self,
        client: Client,
        requests: Sequence[Request],
        prompts: Sequence[str | None],
        deadline: float | None,
        on_outcome: OnOutcome,
    ) -> None:
        self.client, self.requests, self.prompts, self.deadline = client, requests, prompts, deadline
        self.listener = Listener(on_outcome)
        self.begun = 0.0
        self._calls: dict[int, Call] = {}

    @property
    def outcomes(self) -> list[Outcome]:
        return self.listener.outcomes

    def run(self, arrivals: np.ndarray, cancelled: Mapping[int, float]) -> None:
        """Offer the load and wait for the last answer; see :meth:`.session.Session.run`.

        Raises:
            UserError: nothing was answered, and something failed.
            Exception: what ended the listener.
        """
        self.begun = time.perf_counter()
        with self.listener:
            try:
                offer(arrivals.tolist(), dict(cancelled), self._send, self._cancel, WallClock(), self.begun)
                self.client.drain()
            except BaseException:
                for call in self._calls.values():
                    call.cancel()
                self.client.drain()
                raise
        if self.listener.error:
            raise self.listener.error
        errors = [outcome.error for outcome in self.outcomes if outcome.error]
        if errors and not any(outcome.finished for outcome in self.outcomes):
            raise UserError(f"--url {self.client.url}: {errors[0]}")

    def _send(self, place: int, due: float) -> None:
        deadline = None if self.deadline is None else due + self.deadline
        done = partial(self._done, place, due)
        self._calls[place] = self.client.submit(self.requests[place], self.prompts[place], deadline, done)

    def _cancel(self, place: int) -> None:
        self._calls[place].cancel()

    def _done(self, place: int, due: float, call: Call) -> None:
        ended, error = time.perf_counter(), call.future.exception()
        outcome = Outcome(place, due, call.sent, ended, None)
        if error is None:
            answer = call.future.result()
            unknown = not answer.committed
            outcome = replace(outcome, generation=answer, told=call.told, passes_unknown=unknown)
        elif not isinstance(error, Refused):
            outcome = replace(outcome, error=first_line(error))
        self.listener.hear(outcome)


class Remote(Place):
    """A server that speaks OpenAI's protocol, ours or another.

    Args:
        client: of the server, for the method that is asked for.
        tau: to ask for, if any.
        tokenizer: whose prompts the server gets.
        deadline: see :class:`RemoteSession`.
    """

    has_tau = False

    def __init__(self, client: Client, tau: float | None, tokenizer: Any, deadline: float | None) -> None:
        self.client, self.tau, self.tokenizer, self.deadline = client, tau, tokenizer, deadline

    def warm_up(self, requests: Sequence[Request]) -> None:
        """As many requests at a time as are said to run, so that whatever a server does but once is done.

        Raises:
            Exception: what the server has against them; that it has no room is no matter here.
        """
        texts = [self.tokenizer.decode(list(request.prompt)) for request in requests]
        asked = zip(self._asked(short(requests)), self._prompts(requests, texts), strict=True)
        calls = [self.client.submit(request, prompt) for request, prompt in asked]
        self.client.drain()
        for call in calls:
            error = call.future.exception()
            if error and not isinstance(error, Refused):
                raise UserError(f"--url {self.client.url}: {first_line(error)}")

    def offered(
        self, requests: Sequence[Request], texts: Sequence[str], trace: PassTrace, on_outcome: OnOutcome
    ) -> RemoteSession:
        prompts = self._prompts(requests, texts)
        return RemoteSession(self.client, self._asked(requests), prompts, self.deadline, on_outcome)

    def timing(self) -> dict[str, Any]:
        return {"peak_memory_bytes": None}

    def _asked(self, requests: Sequence[Request]) -> list[Request]:
        return [replace(request, tau=self.tau) for request in requests]

    def _prompts(self, requests: Sequence[Request], texts: Sequence[str]) -> list[str | None]:
        return [self._prompt(request, text) for request, text in zip(requests, texts, strict=True)]

    def _prompt(self, request: Request, text: str) -> str | None:
        """Our own server takes the very tokens; others get text, to which they may add a begin token themselves."""
        if self.client.ours:
            return None
        begin = self.tokenizer.bos_token
        doubled = begin and list(self.tokenizer.encode(text)) != list(request.prompt)
        return text.removeprefix(begin) if doubled else text
