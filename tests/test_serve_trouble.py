"""Whatever clients do, they harm nobody else; and text comes in whole characters, and none too much."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from served import LONG, SECONDS, Served, serving, until

from decodebench.decoding import Finish, Generation, Request
from decodebench.decoding.live import Refused
from decodebench.decoding.stopping import cut
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS
from decodebench.serve.client import Client, ServerError
from decodebench.serve.text import TextStream, final_text

httpx2 = pytest.importorskip("httpx2", reason="needs httpx2")

NAME = "tiny-qwen2"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving({"mars": MARS(tau=0.3)}, rows=3, queue=8, body=100_000) as server:
        yield server


def body(**fields: Any) -> bytes:
    return json.dumps({"model": NAME, "prompt": "a", "max_tokens": 2} | fields).encode()


POISON: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 400, "JSON"),
    "half": (body()[:-1], 400, "JSON"),
    "not JSON": (b"\x00\xff\xfe", 400, "JSON"),
    "a list": (b"[1]", 400, "object"),
    "deep": (b"[" * 50_000, 400, "JSON"),
    "deep within": (b'{"model": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "recursion"),
    "lone surrogate": (b'{"model": "tiny-qwen2", "prompt": "\\ud800"}', 400, "JSON"),
    "NaN tau": (body(tau=float("nan")), 400, "tau"),
    "infinite tau": (body(tau=float("inf")), 400, "tau"),
    "tau out of range": (body(tau=-0.1), 400, "between 0 and 1"),
    "tau in words": (body(tau="0.9"), 400, "tau"),
    "NaN temperature": (body(temperature=float("nan")), 400, "temperature"),
    "huge temperature": (body(temperature=1e300), 400, "temperature"),
    "vanishing top_p": (body(top_p=1e-300), 400, "top_p"),
    "huge top_k": (body(top_k=10**30), 400, "top_k"),
    "no tokens": (body(max_tokens=0), 400, "max_tokens"),
    "tokens as text": (body(max_tokens="7"), 400, "max_tokens"),
    "fraction of a token": (body(max_tokens=1.5), 400, "max_tokens"),
    "no model": (b'{"prompt": "a"}', 400, "model"),
    "unknown model": (body(model="x" * 5000), 404, "not served here"),
    "model of another type": (body(model=[1]), 400, "model"),
    "no prompt": (b'{"model": "tiny-qwen2"}', 400, "prompt"),
    "empty prompt": (body(prompt=""), 400, "empty"),
    "empty list": (body(prompt=[]), 400, "prompt"),
    "mixed prompt": (body(prompt=["a", 1]), 400, "prompt"),
    "nulls": (body(prompt=[None] * 10_000), 400, "prompt"),
    "truth as token": (body(prompt=[True]), 400, "prompt"),
    "token out of range": (body(prompt=[5, 10**30]), 400, "token ids"),
    "negative token": (body(prompt=[-1]), 400, "token ids"),
    "long prompt": (body(prompt="7 " * 20_000), 400, "room for"),
    "huge prompt": (body(prompt="a" * 200_000), 413, "100000 bytes"),
    "a million stop strings": (body(stop=["a"] * 1_000_000), 413, "100000 bytes"),
    "thousands of stop strings": (body(stop=["a"] * 15_000), 400, "stop"),
    "empty stop string": (body(stop=[""]), 400, "stop"),
    "long stop string": (body(stop="a" * 10_000), 400, "stop"),
    "stop of another type": (body(stop={"a": 1}), 400, "stop"),
    "several answers": (body(n=2), 400, "n: not supported"),
    "log-probabilities": (body(logprobs=1), 400, "logprobs: not supported"),
    "penalty": (body(presence_penalty=0.5), 400, "presence_penalty: not supported"),
    "thousands of fields": (body(**{f"f{n}": n for n in range(5000)}), 400, "unknown field"),
    "streaming in words": (body(stream="yes"), 400, "stream"),
}
BAD_TURNS: list[Any] = [
    [], "a", [[]] * 9000, [{"role": "king", "content": "a"}], [{"role": "user"}], [{"role": "user", "content": 1}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
]  # fmt: skip


def test_poison_gets_a_clear_no_and_harms_nobody(served: Served) -> None:
    expected = served.alone([5, 6], 700, "mars")
    told: list[Any] = []

    def ask() -> None:
        asked = {"model": NAME, "prompt": [5, 6], "max_tokens": 700}
        told.append(httpx2.post(f"{served.url}/v1/completions", json=asked, timeout=SECONDS).json())

    bystander = threading.Thread(target=ask)
    bystander.start()
    with httpx2.Client(headers={"Content-Type": "application/json"}, timeout=SECONDS) as client:
        for what, (content, status, words) in POISON.items():
            for path in ("completions", "chat/completions") if status == 413 else ("completions",):
                answer = client.post(f"{served.url}/v1/{path}", content=content)
                assert (what, answer.status_code) == (what, status)
                error = answer.json()["error"]
                assert error["type"] == "invalid_request_error"
                assert words in error["message"]
                assert len(error["message"]) < 300
        for turns in BAD_TURNS:
            answer = client.post(f"{served.url}/v1/chat/completions", json={"model": NAME, "messages": turns})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
        form = client.post(f"{served.url}/v1/completions", content=b"a=1", headers={"Content-Type": "text/plain"})
        assert form.status_code == 415
        assert client.get(f"{served.url}/v1/completions").json()["error"]["message"].endswith("Method Not Allowed")
        assert client.get(f"{served.url}/none").status_code == 404
        assert client.get(f"{served.url}/v1/models", headers={"Host": "evil.example"}).status_code == 403
    bystander.join(SECONDS)
    assert told[0]["choices"][0]["text"] == expected
    assert served.idle()


def posted(content: bytes, length: int | None = None) -> bytes:
    """A request as it goes over the wire; ``length`` is what it says of itself, if not the truth."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(content) if length is None else length}\r\n\r\n".encode() + content


def connect(served: Served, sent: bytes) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), SECONDS)
    connection.sendall(sent)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_the_row_and_the_place_in_the_queue(served: Served, stream: bool) -> None:
    (live,) = served.service.lives.values()
    connections = [connect(served, posted(body(max_tokens=LONG, stream=stream))) for _ in range(5)]
    until(lambda: (live.running, live.waiting) == (3, 2))
    if stream:
        assert connections[0].recv(1)
    begun = time.perf_counter()
    for connection in connections:
        connection.close()
    until(served.idle)
    assert time.perf_counter() - begun < 2
    assert 'requests_total{finish="cancelled"' in served.service.metrics.text().decode()


def test_who_leaves_before_the_request_is_whole_costs_nothing(served: Served) -> None:
    whole = posted(body(max_tokens=LONG))
    for sent in (0, 9, len(whole) - 20, len(whole) - 1):
        connect(served, whole[:sent]).close()
    assert httpx2.post(f"{served.url}/v1/completions", json=json.loads(body())).status_code == 200
    assert served.idle()


SPECIAL = st.sampled_from(["<turn>", "<mask>"])
PLAIN = st.text("an7 好", min_size=1, max_size=3)
STOPS = st.lists(st.one_of(PLAIN, SPECIAL, st.builds("{}{}{}".format, PLAIN, SPECIAL, PLAIN)), max_size=3)
TOKEN = st.one_of(st.integers(1, 299), st.sampled_from([1, 2, *tiny.tokenizer().encode("an7 你好 banana")]))
SIZES = st.lists(st.integers(1, 5), min_size=30)


@settings(max_examples=100)
@given(tokens=st.lists(TOKEN, max_size=30), stop=STOPS, sizes=SIZES, ends=st.booleans())
def test_pieces_are_whole_characters_and_make_the_text(
    tokens: list[int], stop: list[str], sizes: list[int], ends: bool
) -> None:
    words, eos = tiny.tokenizer(), frozenset({0})
    finish: Finish = "length"
    for count in range(1, len(tokens) + 1):
        if any(string in words.decode(tokens[:count]) for string in stop):
            tokens, finish = tokens[:count], "stop_string"
            break
    if ends and finish == "length":
        tokens, finish = [*tokens, 0], "stop_token"
    generation = Generation(cut(words, tokens, stop, eos), tokens, finish, [], [], 0.0, 0.0)
    stream, said, at = TextStream(words, stop, eos), "", 0
    for size in sizes:
        if at < len(tokens):
            piece = stream.push(tokens[at : at + size])
            assert generation.text.startswith(said + piece)
            said, at = said + piece, at + size
    assert said + stream.end(generation) == final_text(generation)
    assert finish != "length" or not final_text(generation).endswith("\ufffd")


def test_text_comes_as_soon_as_it_is_certain() -> None:
    words = tiny.tokenizer()
    stream = TextStream(words, ["7!"], frozenset({0}))
    told = [stream.push([token]) for token in words.encode("is 7, 你 7!")]
    assert "".join(told) == "is 7, 你 "
    assert all(len(piece) <= 4 for piece in told)


def test_the_client_module_gets_tokens_and_passes(served: Served) -> None:
    asked = [Request([5 + n, 6], 8 + n, stop=("zz",), tau=[None, 0.0, 1.0][n % 3]) for n in range(10)]
    alone = tiny.run(served.service.model, MARS(tau=0.3), asked)
    with Client(served.url) as client:
        assert (client.model, client.ours) == (NAME, True)
        calls = [client.submit(request) for request in asked]
        assert client.drain(SECONDS)
        for call, expected in zip(calls, alone, strict=True):
            got = call.future.result()
            assert (got.tokens, got.committed, got.finish) == (expected.tokens, expected.committed, expected.finish)
            assert 0 < got.ttft < got.latency < SECONDS
        assert client.running == 0


def test_the_client_module_hears_of_refusals_and_errors_and_may_hang_up(served: Served) -> None:
    with Client(f"{served.url}/v1/") as client:
        calls = [client.submit(Request([5], LONG)) for _ in range(11)]
        until(lambda: sum(live.running + live.waiting for live in served.service.lives.values()) == 11)
        with pytest.raises(Refused, match="429: the queue is full"):
            client.submit(Request([5], 2)).future.result(SECONDS)
        with pytest.raises(ServerError, match="400: tau 7"):
            client.submit(Request([5], 2, tau=7.0)).future.result(SECONDS)
        for call in calls:
            call.cancel()
        assert client.drain(SECONDS)
        assert {call.future.result().finish for call in calls} == {"cancelled"}
        until(served.idle)


def test_what_cannot_be_drained_in_time_is_told_so() -> None:
    told: dict[bool, Any] = {}
    with serving({"ar": AR()}, drain_seconds=0.3, rows=1) as server:

        def ask(stream: bool) -> None:
            asked = {"model": NAME, "prompt": "a", "max_tokens": LONG, "stream": stream}
            told[stream] = httpx2.post(f"{server.url}/v1/completions", json=asked, timeout=SECONDS)

        threads = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
        for thread in threads:
            thread.start()
        (live,) = server.service.lives.values()
        until(lambda: (live.running, live.waiting) == (1, 1))
        server.server.should_exit = True
        for thread in threads:
            thread.join(SECONDS)
    assert (told[False].status_code, told[False].headers["retry-after"]) == (503, "10")
    events = told[True].text.split("\n\n")
    assert json.loads(events[-2][5:])["error"]["message"] == "the server is stopping"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    folder = tmp_path_factory.mktemp("serve")
    harness.save_tiny(folder / "model", max_position_embeddings=LONG, stop=False)
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
        command = [sys.executable, "-m", "decodebench", "serve", "--model", "model", "--port", "0", *arguments]
        process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_client_leaves_nothing_and_sigterm_drains(program: Callable[..., subprocess.Popen[str]]) -> None:
    server = program("--method", "ar", "--max-rows", "2")
    assert server.stderr is not None
    url = next(line for line in server.stderr if "serving model with ar on" in line).split()[-1]
    port = int(url.rpartition(":")[2])
    content = json.dumps({"model": "model", "prompt": "a", "max_tokens": LONG, "stream": True}).encode()
    script = (
        f"import socket, time; c = socket.create_connection(('127.0.0.1', {port})); c.sendall({posted(content)!r}); "
        "print(len(c.recv(64)), flush=True); time.sleep(600)"
    )
    client = subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert int(client.stdout.readline()) > 0

    def running() -> float:
        lines = httpx2.get(f"{url}/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith("decodebench_rows_running")).split()[-1])

    assert running() == 1
    client.send_signal(signal.SIGKILL)
    client.communicate()
    until(lambda: running() == 0)

    asked = {"model": "model", "prompt": "a", "max_tokens": 600, "stream": True}
    with httpx2.stream("POST", f"{url}/v1/completions", json=asked, timeout=SECONDS) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][5:])["choices"][0]["finish_reason"] == "length"
    assert server.wait(SECONDS) == 0
    assert server.stderr.read() == ""
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/healthz")
