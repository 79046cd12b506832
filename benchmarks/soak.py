"""Hours of a server's life in minutes: mixed load, clients that leave, are killed or talk nonsense, and what is left.

Starts `decodebench serve` in a process of its own, in float32, and talks HTTP to it. At the end it asserts that memory
is flat after the warm-up, that every request has exactly one outcome with which the server's counters agree, that
nothing is left running, that SIGTERM ends the server well, and that answers are, token for token, those of plain
autoregressive decoding of the same request alone.

    python benchmarks/soak.py --minutes 30 --rate 1 --check 50
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx2
import torch

from decodebench.decoding import Request
from decodebench.evaluation.environment import environment
from decodebench.methods.ar import AR
from decodebench.models import LoadedModel, load_model, load_tokenizer

DONE = ("stop_token", "stop_string", "length")
WARM_UP = 120  # seconds, or half of the time, in which allocators and kernels meet their first of everything
SECONDS = 120  # to wait at most for what should take few
SHARES = {"whole": 0.2, "stream": 0.42, "leave": 0.15, "vanish": 0.08, "nonsense": 0.13, "killed": 0.02}
NONSENSE: list[tuple[bytes, int]] = [
    (b"", 400), (b"{", 400), (b"\x00\xff", 400), (b"[" * 20_000, 400), (b'{"model": 1}', 400), (b"a" * 2_000_000, 413),
    (b'{"model": "MODEL"}', 400), (b'{"model": "MODEL", "prompt": "a", "tau": NaN}', 400),
    (b'{"model": "MODEL", "prompt": "a", "tau": 7}', 400), (b'{"model": "MODEL", "prompt": [-1]}', 400),
    (b'{"model": "MODEL", "prompt": "a", "max_tokens": "9"}', 400), (b'{"model": "nobody", "prompt": "a"}', 404),
    (b'{"model": "MODEL", "prompt": "a", "stop": [' + b'"a",' * 9999 + b'"a"]}', 400),
    (b'{"model": "MODEL", "prompt": "' + b"7 " * 100_000 + b'"}', 400),
]  # fmt: skip
# A client that is killed while it reads: it says when the answer has begun.
VICTIM = """import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.sendall(sys.stdin.buffer.read())
print(c.recv(64)[9:12].decode(), flush=True)
while c.recv(1): pass"""


@dataclass
class Soak:
    """What was sent, and what became of it.

    Attributes:
        outcomes: of all requests, by their kind and how they ended.
        answers: of finished ones at τ = 1, to be checked: prompt, tokens at most, stop strings, tokens.
        unsure: requests that were left before it was clear whether the server had taken them.
        memory: seconds since the beginning and bytes of the server.
        last: the server's own numbers at the end.
    """

    url: str
    model: str
    words: Any
    rng: random.Random
    longest: int
    outcomes: Counter[str] = field(default_factory=Counter)
    answers: list[tuple[list[int], int, list[str], list[int]]] = field(default_factory=list)
    unsure: int = 0
    memory: list[tuple[float, int]] = field(default_factory=list)
    last: dict[str, float] = field(default_factory=dict)

    def request(self, stream: bool) -> dict[str, Any]:
        """A request at random: long and short, careful and bold, greedy and sampled."""
        rng = self.rng
        text = " ".join(rng.choice(("Ann", "has", "3", "apples", "and", "buys", "4", "more", "你好", "?")) for _ in
                        range(rng.choice((3, 10, 40, 120))))  # fmt: skip
        prompt = list(self.words.encode(text))[: self.longest // 3]
        body = {"model": self.model, "prompt": prompt, "stream": stream, "return_tokens": True}
        body |= {"max_tokens": rng.choice((1, 8, 24, 64)), "tau": rng.choice((1.0, 1.0, 0.9, 0.6, 0.0))}
        if rng.random() < 0.2:
            body["stop"] = [rng.choice((" a", "e", "\n\n", "7"))]
        if rng.random() < 0.2:
            body |= {"temperature": 0.8, "seed": rng.randrange(1000)}
        return body

    async def whole(self, http: httpx2.AsyncClient) -> str:
        body = self.request(stream=False)
        answer = await http.post("/v1/completions", json=body)
        return self.refused(answer.status_code) or self.ended(body, answer.json()["choices"][0])

    async def stream(self, http: httpx2.AsyncClient) -> str:
        body, last, said = self.request(stream=True), [], 0
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            if no := self.refused(answer.status_code):
                return no
            async for line in answer.aiter_lines():
                said += line == "data: [DONE]"
                if line.startswith("data: {"):
                    (choice,) = json.loads(line[6:])["choices"]
                    last += [choice] if choice["finish_reason"] else []
        assert (len(last), said) == (1, 1), "an answer ended otherwise than once"
        return self.ended(body, last[0])

    async def leave(self, http: httpx2.AsyncClient) -> str:
        """Begin to listen, and leave."""
        body = self.request(stream=True) | {"max_tokens": self.longest // 2}
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            if no := self.refused(answer.status_code):
                return no
            async for _ in answer.aiter_lines():
                if self.rng.random() < 0.1:
                    return "left"
        return "left"

    async def vanish(self, http: httpx2.AsyncClient) -> str:
        """Hang up anywhere: within the request, or while waiting for the answer."""
        raw = self.raw(self.request(stream=self.rng.random() < 0.5) | {"max_tokens": self.longest // 2})
        sent = self.rng.choice((self.rng.randrange(len(raw)), len(raw)))
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(raw[:sent])
        await writer.drain()
        await asyncio.sleep(self.rng.random() * 0.5)
        writer.close()
        self.unsure += sent == len(raw)
        return "vanished"

    async def nonsense(self, http: httpx2.AsyncClient) -> str:
        content, status = self.rng.choice(NONSENSE)
        content = content.replace(b"MODEL", self.model.encode())
        json_type = {"Content-Type": "application/json"}
        try:
            answer = await http.post("/v1/completions", content=content, headers=json_type)
        except httpx2.TransportError:  # who sends too much may be cut off while sending
            assert status == 413
            return "told 413"
        if no := self.refused(answer.status_code) if answer.status_code == 503 else None:
            return no
        assert answer.status_code == status, f"{content[:60]!r} got {answer.status_code}, not {status}"
        return f"told {status}"

    async def killed(self, http: httpx2.AsyncClient) -> str:
        """A client in a process of its own, killed with SIGKILL while its answer comes."""
        raw = self.raw(self.request(stream=True) | {"max_tokens": self.longest // 2})
        pipe = asyncio.subprocess.PIPE
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", VICTIM, str(self.port), stdin=pipe, stdout=pipe
        )
        assert client.stdin
        assert client.stdout
        client.stdin.write(raw)
        client.stdin.close()
        status = await client.stdout.readline()
        with contextlib.suppress(ProcessLookupError):
            client.kill()
        await client.wait()
        return self.refused(int(status)) or "left"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def raw(self, body: dict[str, Any]) -> bytes:
        content = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
        return f"{head}Content-Type: application/json\r\n\r\n".encode() + content

    def refused(self, status: int) -> str | None:
        """What the server says to those for whom it has no room, in the queue or for the connection (uncounted)."""
        assert status in (200, 429, 503), f"an honest request got {status}"
        return {429: "refused", 503: "turned away"}.get(status)

    def ended(self, body: dict[str, Any], choice: dict[str, Any]) -> str:
        extra = choice["decodebench"]
        assert extra["finish"] in DONE, extra["finish"]
        assert sum(extra["committed"]) == len(extra["tokens"])
        if body["tau"] == 1.0 and "temperature" not in body:
            self.answers.append((body["prompt"], body["max_tokens"], body.get("stop", []), extra["tokens"]))
        return "finished"

    async def run(self, rate: float, seconds: float, pid: int) -> None:
        """Send for so long, and wait for the rest."""
        kinds: dict[str, Callable[[httpx2.AsyncClient], Awaitable[str]]] = {
            name: getattr(self, name) for name in SHARES
        }
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=self.url, limits=limits, timeout=SECONDS, trust_env=False) as http:

            async def one(kind: str) -> None:
                self.outcomes[f"{kind}: {await kinds[kind](http)}"] += 1

            begun, due, tasks, looked = time.perf_counter(), 0.0, set(), -1.0
            try:
                while due < seconds:
                    due += self.rng.expovariate(rate)
                    while (now := time.perf_counter() - begun) < min(due, seconds):
                        if now - looked >= 1:
                            looked = now
                            self.memory.append((now, resident(pid)))
                        await asyncio.sleep(min(due - now, 0.5))
                    task = asyncio.create_task(one(self.rng.choices(list(SHARES), list(SHARES.values()))[0]))
                    tasks.add(task)
                    for done in [task for task in tasks if task.done()]:
                        tasks.remove(done)
                        done.result()  # what went wrong ends the soak
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for _ in range(SECONDS):
                if counter(await metrics(http), "rows_running", "queue_waiting") == 0:
                    break
                await asyncio.sleep(1)
            self.last = await metrics(http)


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]


async def metrics(http: httpx2.AsyncClient) -> dict[str, float]:
    lines = (await http.get("/metrics")).text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] not in ("", "#")}


def counter(told: Mapping[str, float], *names: str, having: str = "") -> int:
    """The sum of some of the server's numbers, over all labels."""
    full = [f"decodebench_{name}" for name in names]
    return int(sum(value for name, value in told.items() if having in name and name.partition("{")[0] in full))


def accounts(soak: Soak) -> tuple[dict[str, int], list[str]]:
    """The server's counters, and where they do not agree with what clients have seen."""
    told = soak.last
    served = {how: counter(told, "requests_total", having=f'finish="{how}"') for how in (*DONE, "cancelled")}
    refused, total = counter(told, "requests_refused_total"), counter(told, "requests_total")
    seen = Counter[str]()
    for name, count in soak.outcomes.items():
        seen[name.partition(": ")[2]] += count
    whole, unsure = sum(served[how] for how in DONE), soak.unsure
    bounds = {
        "finished": (seen["finished"], whole, seen["finished"] + seen["left"] + unsure),
        "refused": (seen["refused"], refused, seen["refused"] + unsure),
        "taken": (seen["finished"] + seen["left"], total, seen["finished"] + seen["left"] + unsure),
        "ended otherwise": (0, total - whole - served["cancelled"], 0),
        "still running or waiting": (0, counter(told, "rows_running", "queue_waiting"), 0),
    }
    wrong = [
        f"{name}: the server says {n}, clients {a} to {b}" for name, (a, n, b) in bounds.items() if not a <= n <= b
    ]
    return served | {"refused": refused}, wrong


def course(memory: Sequence[tuple[float, int]], allowed: float) -> tuple[dict[str, Any], list[str]]:
    """Memory after the warm-up: its slope by least squares, and its last quarter beside its first."""
    mib = [(t, size / 2**20) for t, size in memory]
    warm = [(t, size) for t, size in mib if t >= min(WARM_UP, mib[-1][0] / 2)]
    quarter = max(len(warm) // 4, 1)
    first, last = (statistics.median(size for _, size in part) for part in (warm[:quarter], warm[-quarter:]))
    slope = statistics.linear_regression(*zip(*warm, strict=True)).slope * 60 if len(warm) > 2 else 0.0
    thin = mib[:: -(-len(mib) // 100)]
    found = {
        "mib_per_minute": round(slope, 3), "max_mib": round(max(size for _, size in mib), 1),
        "first_quarter_mib": round(first, 1), "last_quarter_mib": round(last, 1),
        "series": [[round(t, 1), round(size, 1)] for t, size in thin],
    }  # fmt: skip
    return found, [f"memory grew by {last - first:.1f} MiB"] if last - first > max(allowed * first, 16) else []


def alone(model: LoadedModel, answers: Sequence[tuple[list[int], int, list[str], list[int]]]) -> list[str]:
    """Which of these answers are not those of plain decoding of the request by itself."""
    wrong = []
    for prompt, most, stop, tokens in answers:
        (expected,) = AR().generator(model, 1).generate([Request(prompt, most, stop)])
        if expected.tokens != tokens:
            wrong.append(f"tokens differ from those of the request alone: prompt {prompt}, at most {most}, stop {stop}")
    return wrong


def options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="What is not known here is handed to decodebench serve, such as --policy queue.",
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second, of all kinds (default: 1)")
    parser.add_argument("--check", type=int, default=20, help="answers to decode again alone (default: 20)")
    parser.add_argument("--model", default="smollm2-135m-mars")
    parser.add_argument("--max-rows", type=int, default=8)
    parser.add_argument("--max-queue", type=int, default=16)
    parser.add_argument("--growth", type=float, default=0.02, help="of memory that is allowed (default: 0.02)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    return parser.parse_known_args()


def main() -> int:
    asked, more = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and take the server along
    command = [
        sys.executable, "-m", "decodebench", "serve", "--model", asked.model, "--dtype", "float32", "--port", "0",
        "--max-rows", str(asked.max_rows), "--max-queue", str(asked.max_queue), *more,
    ]  # fmt: skip
    problems: list[str] = []
    surroundings = environment(torch.device("cpu"))  # now, while the code is what the server is made of
    with tempfile.NamedTemporaryFile("w") as written, open(written.name, encoding="utf-8") as log:
        server = subprocess.Popen(command, stderr=written)
        try:
            url = address(server, log)
            about = httpx2.get(f"{url}/v1/models", trust_env=False).json()["data"][0]
            words, rng = load_tokenizer(asked.model), random.Random(asked.seed)
            soak = Soak(url, about["id"], words, rng, min(about["max_length"], 1024))
            try:
                asyncio.run(soak.run(asked.rate, asked.minutes * 60, server.pid))
            except Exception as error:
                problems.append(f"{type(error).__name__}: {error}")
            server.send_signal(signal.SIGTERM)
            if (status := server.wait(SECONDS)) != 0:
                problems.append(f"after SIGTERM the server ended with {status}")
        finally:
            server.kill()
        log.seek(0)
        problems += [f"in the server's log: {line.strip()}" for line in log if "Error" in line or "failed" in line]
    memory, wrong = course(soak.memory, asked.growth)
    problems += wrong
    served: dict[str, int] = {}
    if soak.last:
        served, wrong = accounts(soak)
        problems += wrong
    chosen = rng.sample(soak.answers, min(asked.check, len(soak.answers)))
    problems += alone(load_model(asked.model, dtype="float32"), chosen) if chosen else []
    record = {
        "settings": {name: value for name, value in vars(asked).items() if name != "out"} | {"serve": more},
        "requests": sum(soak.outcomes.values()), "outcomes": dict(sorted(soak.outcomes.items())), "server": served,
        "memory": memory, "checked_alone": len(chosen), "problems": problems,
        "environment": surroundings,
    }  # fmt: skip
    asked.out.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{record['requests']} requests: {record['outcomes']}")
    print(f"server: {served}; {len(chosen)} answers checked alone")
    print(
        f"memory: {memory['mib_per_minute']:+.2f} MiB a minute after the warm-up, {memory['max_mib']:.0f} MiB at most"
    )
    print("\n".join(problems) or "all is well")
    return 1 if problems else 0


def address(server: subprocess.Popen[bytes], log: IO[str]) -> str:
    """Where the server is, as soon as it says so."""
    while server.poll() is None:
        log.seek(0)
        if found := re.search(r"on (http://\S+:\d+)", log.read()):
            return found[1]
        time.sleep(0.2)
    log.seek(0)
    raise SystemExit(f"the server did not start: {log.read()}")


if __name__ == "__main__":
    sys.exit(main())
