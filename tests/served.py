"""A server on a tiny model, on a thread of this process, for tests of the HTTP face."""

# ruff: noqa: E402 - what may not be installed is asked for first

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import tiny

for needed in ("starlette", "uvicorn", "prometheus_client", "openai"):
    pytest.importorskip(needed, reason=f"needs {needed}: pip install 'decodebench[serve]' openai")

from decodebench.decoding import Method, Request
from decodebench.load.policies import Policy
from decodebench.models import LoadedModel
from decodebench.serve.run import Server, bind
from decodebench.serve.service import Limits, Service

SECONDS = 60  # to wait at most for what takes milliseconds
LONG = 4000
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}"
    "{% endif %}<turn>{{ m.role }}: {{ m.content }}{% endfor %}{% if add_generation_prompt %}<turn>{% endif %}"
)


def model() -> LoadedModel:
    """The tiny model with a chat template, and room for answers that take their time."""
    loaded = tiny.tiny(stop=False, logit_scale=3.0, max_position_embeddings=LONG + 96)
    words = copy.deepcopy(loaded.tokenizer)
    words.chat_template = TEMPLATE
    return replace(loaded, tokenizer=words)


@dataclass
class Served:
    """A server that is running."""

    url: str
    service: Service
    server: Server

    def idle(self) -> bool:
        return all(live.running == live.waiting == 0 for live in self.service.lives.values())

    def alone(self, prompt: list[int], count: int, method: str, **request: object) -> str:
        """What the engine says to a prompt by itself."""
        asked = Request(prompt, count, **request)  # type: ignore[arg-type]
        fresh = replace(self.service.methods[method])  # type: ignore[type-var]
        return tiny.run(self.service.model, fresh, [asked])[0].text.rstrip("\ufffd")  # type: ignore[arg-type]


@contextmanager
def serving(
    methods: dict[str, Method], api_key: str | None = None, drain_seconds: float = 1.0,
    policies: dict[str, Policy] | None = None, **limits: int,
) -> Iterator[Served]:  # fmt: skip
    service = Service(model(), methods, Limits(**({"length": LONG + 64} | limits)), policies)
    bound = bind("127.0.0.1", 0)
    server = Server(service, api_key, drain_seconds, connections=40)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    until(lambda: server.started)
    try:
        yield Served(f"http://127.0.0.1:{bound.getsockname()[1]}", service, server)
    finally:
        server.should_exit = True
        thread.join(SECONDS)


def until(condition: Callable[[], bool]) -> None:
    end = time.perf_counter() + SECONDS
    while not condition():
        assert time.perf_counter() < end
        time.sleep(0.005)
