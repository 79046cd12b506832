"""Loads on a server: the same requests at the same moments, measured from outside."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import harness
import pytest
from served import LONG, Served, serving, until

pytest.importorskip("httpx2", reason="needs httpx2")

from decodebench.analysis.load import load_runs
from decodebench.analysis.plot_load import load_over_time
from decodebench.analysis.service import service_frame
from decodebench.analysis.service_table import service_cells
from decodebench.cli.load import _without_key, load
from decodebench.errors import UserError
from decodebench.evaluation.catalog import load_task
from decodebench.evaluation.grid import expand_grid
from decodebench.evaluation.lm import GenerationSettings
from decodebench.evaluation.runner import RunOptions
from decodebench.load import arrivals as when
from decodebench.load.grid import LoadOptions, LoadOutcome, load_cells, remote_cells
from decodebench.load.remote import connect
from decodebench.load.run import run_loads, run_remote_loads
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS
from decodebench.models import load_tokenizer
from decodebench.records import read_run, read_samples
from decodebench.records.passes import read_passes

PLAN = when.plan("poisson", "40", 0.4)
KEY = "sk-very-secret"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.write_questions(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving({"mars": MARS(tau=0.3), "ar": AR()}, rows=4, api_key=KEY) as server:
        yield server


@pytest.fixture
def words(served: Served, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which the served tokenizer can be had."""
    found = {"tiny": served.service.model.tokenizer}
    monkeypatch.setattr("decodebench.load.remote.load_tokenizer", lambda name: found.get(name) or load_tokenizer(name))
    return "tiny"


def remote(
    url: str, words: str, results: Path, data: Path, methods: tuple[str, ...] = (), tau: tuple[str, ...] = (),
    model: str | None = None, new_tokens: int = 24, plan: when.Arrivals = PLAN, rows: int = 4, **options: Any,
) -> list[LoadOutcome]:  # fmt: skip
    server = connect(url, model, KEY, methods, words, rows)
    cells = remote_cells(server.methods, ["gsm8k"], server.rows, {"tau": list(tau)} if tau else {}, [plan])
    run = RunOptions(results, settings=GenerationSettings(max_new_tokens=new_tokens))
    tasks = {"gsm8k": load_task("gsm8k", data_dir=data)}
    try:
        return run_remote_loads(cells, server, tasks, run, LoadOptions(**options))
    finally:
        server.close()


def test_a_server_gets_what_an_engine_here_gets(served: Served, words: str, tmp_path: Path, data: Path) -> None:
    cells = load_cells(expand_grid(["ar", "mars"], ["gsm8k"], [4], {"tau": ["0.3"]}), [PLAN], ["fixed"], 1.0)
    tasks = {"gsm8k": load_task("gsm8k", data_dir=data)}
    run = RunOptions(tmp_path, settings=harness.SHORT)
    here = run_loads(cells, served.service.model, tasks, run, LoadOptions())
    there = remote(served.url, words, tmp_path, data, ("ar", "mars"), ("0.3",))
    for one, other in zip(here, there, strict=True):
        assert other.error is None
        assert one.folder
        assert other.folder
        expected = {(s["doc_id"], s["idx"]): s for s in read_samples(one.folder)}
        samples = read_samples(other.folder)
        assert len(samples) == len(expected) == len(PLAN.times(0))
        for sample in samples:
            same = expected[sample["doc_id"], sample["idx"]]
            for name in ("tokens", "finish", "passes", "committed", "prompt_sha256", "prompt_tokens", "scores"):
                assert sample[name] == same[name]
            assert sample["text"] == same["text"].rstrip("\ufffd")  # half a character is not sent
            assert sample["due"] == pytest.approx(same["due"], abs=1e-6)
            assert 0 < sample["ttft"] <= sample["latency"]
        record = read_run(other.folder)
        assert record["config"]["server"] == served.url.removeprefix("http://")
        assert (record["config"]["batch_size"], record["environment"]["server_software"]) == (4, "decodebench")
        assert other.numbers["tau"] is other.numbers["mean_rows"] is other.numbers["max_waiting"] is None
        assert read_passes(other.folder, 0) == []
        assert KEY not in "".join(path.read_text() for path in other.folder.iterdir())
    frame = service_frame(load_runs([tmp_path], under_load=True))
    server = "at " + served.url.removeprefix("http://")
    assert set(frame["label"]) == {"ar", "mars τ=0.3", f"ar {server}", f"mars τ=0.3 {server}"}
    assert set(frame["equal_outputs"].dropna()) <= {1.0} | set(frame["equal_outputs"][frame["method"] == "mars"])
    _, cells_shown = service_cells(frame, wide=True)
    assert len(cells_shown) == 4
    load_over_time(load_runs([tmp_path], under_load=True))


def test_hanging_up_refusals_and_deadlines_are_counted(words: str, tmp_path: Path, data: Path) -> None:
    crowd = when.plan("constant", "200", 0.3)
    with serving({"ar": AR()}, rows=1, queue=1) as server:
        ways: dict[str, dict[str, Any]] = {
            "cancelled": {"cancel": 1.0, "cancel_within": 0.2}, "deadline": {"deadline": 0.2}
        }  # fmt: skip
        for way, options in ways.items():
            (outcome,) = remote(server.url, words, tmp_path, data, new_tokens=LONG, plan=crowd, **options)
            assert outcome.error is None
            assert outcome.folder
            finish = [sample["finish"] for sample in read_samples(outcome.folder)]
            assert finish.count("refused") == outcome.numbers["refused"] > 0
            assert finish.count(way) == outcome.numbers[way] > 0
            assert len(finish) == 60 == finish.count("refused") + finish.count(way)
            assert (outcome.cell.cell.method, outcome.cell.cell.batch_size) == ("ar", 1)
        until(server.idle)


# Another's server

STANDARD = {"model", "prompt", "max_tokens", "temperature", "stream", "stop", "stream_options", "top_p", "seed"}


class Stub(ThreadingHTTPServer):
    """A server of completions that knows the standard fields alone, counts nothing, and cuts its stream anywhere."""

    daemon_threads = True

    def __init__(self, answer: Callable[[int], tuple[int, list[bytes]]]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.add(self.headers["Authorization"])
        self.server.asked.append(body)
        status, pieces = self.server.answer(len(self.server.asked) - 1)
        if unknown := set(body) - STANDARD:
            status, pieces = 400, [f'{{"error": {{"message": "unknown field {unknown} {KEY}"}}}}'.encode()]
        self.send_response(status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def stub(answer: Callable[[int], tuple[int, list[bytes]]]) -> Iterator[Stub]:
    server = Stub(answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


TEXT = "#### 3, naïve café 你好 🙂"


def events(text: str, end: str = "stop") -> bytes:
    said = [{"choices": [{"index": 0, "text": piece, "finish_reason": None}]} for piece in text]
    said.append({"choices": [{"index": 0, "text": "", "finish_reason": end}]})
    lines = "".join(f"data: {json.dumps(one, ensure_ascii=False)}\r\n\r\n" for one in said)
    return f": hello\n\n{lines}data: [DONE]\n\n".encode()


def cut(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


def test_another_server_is_measured_by_what_it_says(words: str, tmp_path: Path, data: Path) -> None:
    whole = events(TEXT)
    broken = whole[: len(whole) // 2].rpartition(b"data:")[0]
    kinds: dict[int, tuple[int, list[bytes]]] = {
        0: (200, cut(whole, 1)),
        1: (200, cut(events(TEXT, "length"), 17)),
        2: (200, [broken, b'data: {"error": {"message": "out of ' + KEY.encode() + b'"}}\n\n']),
        3: (200, cut(broken, 50)),
        4: (503, [b"come back"]),
        5: (429, [b'{"error": {"message": "slow down"}}']),
    }
    with stub(lambda number: kinds[max(number - 4, 0) % len(kinds)]) as server:
        (outcome,) = remote(f"{server.url}/v1/", words, tmp_path, data, model="theirs")
        assert server.keys == {f"Bearer {KEY}"}
        assert {body["model"] for body in server.asked} == {"theirs"}
        prompts = [body["prompt"] for body in server.asked]
    assert all(prompt.startswith("<turn>user: ") for prompt in prompts)
    assert outcome.error is None
    assert outcome.folder
    samples = read_samples(outcome.folder)
    assert len(samples) == len(PLAN.times(0)) == len(prompts) - 4  # those of the warm-up
    by_finish: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        by_finish.setdefault(sample["finish"], []).append(sample)
    assert set(by_finish) == {"stop_token", "length", "failed", "refused"}
    for sample in by_finish["stop_token"] + by_finish["length"]:
        assert sample["text"] == TEXT
        assert sample["passes"] is None
        assert len(sample["tokens"]) > 10
        assert 0 < sample["ttft"] <= sample["latency"]
        assert sample["per_token"] >= 0
        assert sample["scores"]
    assert {sample["error"] for sample in by_finish["failed"]} == {"out of …", "the answer broke off"}
    assert outcome.numbers["failed"] == len(by_finish["failed"])
    record = read_run(outcome.folder)
    assert (record["config"]["method"], record["config"]["knobs"]) == ("url", {})
    assert record["aggregates"]["tokens_per_pass"] is None
    assert KEY not in "".join(path.read_text() for path in outcome.folder.iterdir())
    (row,) = service_frame(load_runs([tmp_path], under_load=True)).to_dict("records")
    assert row["label"] == f"url at {server.url.removeprefix('http://')}"


def test_tokens_are_counted_by_the_server_where_it_does(words: str, tmp_path: Path, data: Path) -> None:
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n\n'
    content = events("ab").removesuffix(b"data: [DONE]\n\n") + usage
    with stub(lambda _: (200, cut(content, 23))) as server:
        (outcome,) = remote(server.url, words, tmp_path, data, model="theirs")
    assert outcome.folder
    for sample in read_samples(outcome.folder):
        assert sample["completion_tokens"] == 7
        assert sample["per_token"] == pytest.approx((sample["latency"] - sample["ttft"]) / 6)


def test_what_a_server_refuses_is_said_and_no_load_is_recorded_as_done(
    words: str, tmp_path: Path, data: Path
) -> None:  # fmt: skip
    with stub(lambda _: (200, [events("a")])) as server:
        (outcome,) = remote(server.url, words, tmp_path, data, tau=("0.5",), model="theirs")
        assert server.asked[0]["tau"] == 0.5
        assert outcome.error
        assert "unknown field {'tau'} …" in outcome.error
        with pytest.raises(UserError, match="404"):
            connect(server.url, None, None, (), words, 4)
        with pytest.raises(UserError, match="--tokenizer"):
            connect(server.url, "theirs", None, (), None, 4)


def test_the_command(
    served: Served, words: str, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    common: dict[str, Any] = {
        "url": served.url, "tokenizer": words, "tasks": "gsm8k", "data_dir": data, "results": tmp_path,
        "rate": "20", "duration": 0.3, "max_new_tokens": 8,
    }  # fmt: skip
    load(knobs={}, api_key=KEY, **common)
    assert "gsm8k-mars-bs4-rate20" in capsys.readouterr().out
    with pytest.raises(UserError, match="401"):
        load(knobs={}, api_key="wrong", **common)
    with pytest.raises(UserError, match="--block-size: only --tau"):
        load(knobs={"block_size": ["4"]}, api_key=KEY, **common)
    with pytest.raises(UserError, match="did you mean 'mars'"):
        load(knobs={}, method="mras", api_key=KEY, **common)
    with pytest.raises(UserError, match="--policy: with --url"):
        load(knobs={}, policy="queue", api_key=KEY, **common)
    for url in ("localhost:8000", "ftp://a:1", "http://", "http://me:secret@a", "http://a:99999", "http://a/?k=1"):
        with pytest.raises(UserError, match="--url") as refused:
            load(knobs={}, **(common | {"url": url}))
        assert "secret" not in str(refused.value)
    assert _without_key(["--api-key", "x", "--rate", "1"]) == _without_key(["--api-key=x", "--rate", "1"])
    assert _without_key(["--rate", "1", "--api-key", "x"]) == ["--rate", "1"]
