"""Records: killed at any moment and run again, they end equal to an uninterrupted run's."""

import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodebench.errors import UserError
from decodebench.records import RunStore, aggregate, files, identity, prepare_results, read_run, read_samples, run_name

CONFIG: dict[str, Any] = {
    "model": "tiny", "task": "toy", "method": "mars", "knobs": {"tau": 0.9, "block_size": 4}, "batch_size": 4,
}  # fmt: skip
TASK = {"headline": "exact_match", "version": 1, "data": {"source": "here", "sha256": "d"}, "prompts_sha256": "p"}
ENVIRONMENT = {"python": "3.11", "packages": {"torch": "2.13.0"}}
TIMING = {
    "seconds": 2.0, "prefill_seconds": 0.5, "decode_seconds": 1.5, "draft_seconds": 0.0,
    "passes": 5, "peak_memory_bytes": 1000, "interrupted": False,
}  # fmt: skip


def sample(doc_id: int, repeat: int = 0, **changes: Any) -> dict[str, Any]:
    text = f"Antwort № {doc_id} 数学\n"
    return {
        "repeat": repeat, "task": "toy", "doc_id": doc_id, "doc_hash": f"h{doc_id}", "prompt_sha256": "p",
        "prompt_tokens": 9, "text": text, "tokens": list(range(doc_id + 1)), "finish": "stop_token",
        "passes": doc_id + 1, "committed": [1] * (doc_id + 1), "pass_seconds": [0.1] * (doc_id + 1),
        "ttft": 0.1, "latency": 0.1 * (doc_id + 1), "session": 0, "elapsed": 1.0 + doc_id, "scores": None,
    } | changes  # fmt: skip


def open_run(results: Path, config: dict[str, Any] = CONFIG, **changes: Any) -> RunStore:
    return RunStore.open_or_create(results, config, TASK | changes, ENVIRONMENT)


def work(results: Path, documents: int = 4, repeats: int = 2, pause: float = 0.0) -> Path:
    """What a runner does: open the run, add what is missing, score, finish."""
    with open_run(results) as store:
        for repeat in range(store.repeats, repeats):
            session = store.next_session(repeat)
            done = {recorded["doc_id"] for recorded in store.samples(repeat)}
            for doc_id in reversed(range(documents)):
                if doc_id not in done:
                    store.append(sample(doc_id, repeat, session=session))
                    time.sleep(pause)
            store.finish_repeat(repeat, TIMING, {("toy", doc): {"exact_match": doc % 2} for doc in range(documents)})
        store.finish()
    return store.folder


def content(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The records without what is different each time."""
    run = json.loads((folder / "run.json").read_text())
    del run["created"], run["finished"]
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return run, [{name: value for name, value in one.items() if name != "session"} for one in samples]


# ---- an ordinary run ----


def test_a_run_is_recorded(tmp_path: Path) -> None:
    folder = work(tmp_path / "results")
    assert folder.name == f"toy-mars-tau0.9-bs4-{identity(CONFIG)[:8]}"
    run = read_run(folder)
    assert (run["schema"], run["status"], run["repeats"], run["run"]) == (1, "done", 2, folder.name)
    assert run["config"] == CONFIG
    assert run["aggregates"]["score"] == {"metric": "exact_match", "value": 0.5, "sd": 0.5, "n": 4}
    samples = read_samples(folder)
    assert [(one["repeat"], one["doc_id"]) for one in samples] == [(r, d) for r in range(2) for d in range(4)]
    assert samples[1]["scores"] == {"exact_match": 1}
    assert samples[1]["text"] == sample(1)["text"]
    assert not list(folder.glob("*.tmp"))


def test_more_repeats_extend_a_run(tmp_path: Path) -> None:
    folder = work(tmp_path, repeats=1)
    with open_run(tmp_path) as store:
        assert store.is_complete(1)
        assert not store.is_complete(2)
    before = read_samples(folder)
    work(tmp_path, repeats=3)
    assert read_samples(folder)[: len(before)] == before
    assert read_run(folder)["repeats"] == 3
    assert len(read_run(folder)["aggregates"]["repeats"]) == 3


def test_opening_a_complete_run_changes_nothing(tmp_path: Path) -> None:
    folder = work(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with open_run(tmp_path) as store:
        assert store.is_complete(2)
        assert len(store.samples(1)) == 4
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_request_is_recorded_once(tmp_path: Path) -> None:
    with open_run(tmp_path) as store:
        assert store.append(sample(1))
        assert not store.append(sample(1, text="another"))
        assert store.append(sample(1, repeat=1))
        assert store.append(sample(1, idx=1))
        assert store.append(sample(1, task="other"))
    with open_run(tmp_path) as store:
        assert not store.append(sample(1, text="another"))
        assert len(store.samples(0)) == 3


def test_a_failed_run_is_taken_up_again(tmp_path: Path) -> None:
    with open_run(tmp_path) as store:
        store.append(sample(3))
        store.fail(RuntimeError("out of memory:\n  tried to allocate"))
        assert not store.is_complete(0)
    run = read_run(store.folder)
    assert (run["status"], run["error"]) == ("failed", "out of memory: tried to allocate")
    assert content(work(tmp_path)) == content(work(tmp_path / "other"))


def test_fresh_forgets(tmp_path: Path) -> None:
    folder = work(tmp_path)
    with RunStore.open_or_create(tmp_path, CONFIG, TASK, ENVIRONMENT, fresh=True) as store:
        assert store.repeats == 0
        assert store.samples(0) == []
    assert read_samples(folder) == []


def test_sessions_and_their_time(tmp_path: Path) -> None:
    with open_run(tmp_path) as store:
        assert (store.next_session(0), store.seconds_before(0)) == (0, 0.0)
        store.append(sample(0, session=0, elapsed=2.0))
        store.append(sample(1, session=0, elapsed=1.0))
        store.append(sample(2, session=1, elapsed=0.5))
        assert (store.next_session(0), store.seconds_before(0)) == (2, 2.5)
        assert (store.next_session(1), store.seconds_before(1)) == (0, 0.0)


def test_the_first_timing_of_a_repeat_stays(tmp_path: Path) -> None:
    with open_run(tmp_path) as store:
        store.append(sample(0))
        assert store.timing(0) is None
        store.record_timing(0, TIMING)
    with open_run(tmp_path) as store:
        assert store.timing(0) == TIMING
        store.finish_repeat(0, TIMING | {"seconds": 0.0, "interrupted": True}, {})
        assert store.run["aggregates"]["repeats"][0]["seconds"] == 2.0
        with pytest.raises(ValueError, match="repeat 0"):
            store.finish_repeat(0, TIMING, {})
        with pytest.raises(ValueError, match="repeat 2"):
            store.record_timing(2, TIMING)


@settings(deadline=None)
@given(st.permutations(list(CONFIG)))
def test_identity_does_not_depend_on_the_order_of_keys(order: list[str]) -> None:
    assert identity({name: CONFIG[name] for name in order}) == identity(CONFIG)


@pytest.mark.parametrize("change", [{"model": "big"}, {"knobs": {"tau": 0.8}}, {"batch_size": 1}, {"limit": 16}])
def test_another_configuration_is_another_run(change: dict[str, Any]) -> None:
    assert run_name(CONFIG | change) != run_name(CONFIG)


def test_names_are_safe_for_files() -> None:
    name = run_name({"task": "../a b", "method": "x:y", "knobs": {}, "batch_size": 1})
    assert name.startswith(".._a_b-x_y-bs1-")
    assert "/" not in name


# ---- killed ----


class Killed(BaseException):
    """Stands for kill -9: nothing catches it, and nothing is written after it."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return content(work(tmp_path_factory.mktemp("uninterrupted")))


@pytest.mark.parametrize("operation", ["replace", "fsync"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step_then_run_again(
    operation: str, after: bool, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before or after the n-th durable step, for every n; and again at the n-th step of the rest."""
    genuine = getattr(os, operation)
    for step in range(100):
        results, calls = tmp_path / str(step), 0

        def die(*arguments: Any, step: int = step) -> None:
            nonlocal calls
            calls += 1
            if calls > step and not after:
                raise Killed
            genuine(*arguments)
            if calls > step:
                raise Killed

        monkeypatch.setattr(os, operation, die)
        deaths = 0
        for _ in range(2):
            calls = 0
            try:
                work(results)
            except Killed:
                deaths += 1
        monkeypatch.undo()
        assert content(work(results)) == expected, f"killed at step {step}"
        if not deaths:
            assert step >= 8  # the run is created, two repeats take three steps each, and the end is noted
            return
    pytest.fail("the work has more steps than expected")


def test_torn_at_every_byte(expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what is tested is the content, and there are many files
    results = tmp_path / "results"
    with open_run(results) as store:
        for doc_id in (0, 1):
            store.append(sample(doc_id))
    journal = store.folder / "samples.jsonl"
    whole = journal.read_bytes()
    first = whole.index(b"\n")
    beginning = (store.folder / "run.json").read_bytes()
    for length in range(len(whole) + 1):
        (store.folder / "run.json").write_bytes(beginning)
        journal.write_bytes(whole[:length])
        with open_run(results) as again:
            assert len(again.samples(0)) == (length >= first) + (length >= len(whole) - 1)
            assert journal.read_bytes() == whole[: len(journal.read_bytes())]
        if length % 29 == 0:
            assert content(work(results)) == expected


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10_000)), min_size=1, max_size=4))
def test_torn_again_and_again(
    cuts: list[tuple[int, int]],
    expected: Any,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some requests are appended, the last line is torn somewhere, and so on; then the run is finished."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    results = tmp_path_factory.mktemp("results")
    for appended, cut in cuts:
        with open_run(results) as store:
            kept = len(store.samples(0))
            for doc_id in range(appended):
                store.append(sample(doc_id, session=store.next_session(0)))
        journal = store.folder / "samples.jsonl"
        if journal.exists() and len(read_samples(store.folder)) > kept:
            lines = journal.read_bytes().splitlines(keepends=True)
            journal.write_bytes(b"".join(lines[:-1]) + lines[-1][: cut % len(lines[-1])])
    assert content(work(results)) == expected


def test_a_torn_line_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_run(tmp_path) as store:
        store.append(sample(0))
        store.append(sample(1))
    journal = store.folder / "samples.jsonl"
    journal.write_bytes(journal.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING), open_run(tmp_path) as store:
        assert [one["doc_id"] for one in store.samples(0)] == [0]
    assert "samples.jsonl" in caplog.text
    assert "cut short" in caplog.text


def test_killed_process(expected: Any, tmp_path: Path) -> None:
    """A real process, killed for real while it appends, several times over."""
    killed = 0
    for delay in (0.0, 0.03, 0.06, 0.09):
        process = subprocess.Popen([sys.executable, __file__, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # it has begun to work
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.stdout.close()
    assert killed
    assert content(work(tmp_path)) == expected


def test_a_full_disk_leaves_the_journal_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with open_run(tmp_path) as store:
        store.append(sample(0))
        before = (store.folder / "samples.jsonl").read_bytes()
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.append(sample(1))
        monkeypatch.undo()
        assert (store.folder / "samples.jsonl").read_bytes() == before
        assert store.append(sample(1))


# ---- refused ----


def test_two_writers_are_kept_apart(tmp_path: Path) -> None:
    with open_run(tmp_path) as store, pytest.raises(UserError, match=store.folder.name):
        open_run(tmp_path)
    open_run(tmp_path).close()


def test_a_refused_run_is_unlocked(tmp_path: Path) -> None:
    work(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match="prompts_sha256"):
            open_run(tmp_path, prompts_sha256="others")
    with open_run(tmp_path, data={"source": "elsewhere", "sha256": "d"}) as store:
        assert store.is_complete(2)


def test_another_environment_is_named_when_it_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    work(tmp_path)
    newer = ENVIRONMENT | {"packages": {"torch": "2.14.0"}}
    with RunStore.open_or_create(tmp_path, CONFIG, TASK, newer) as store:
        assert not caplog.text
        store.append(sample(0, repeat=2))
    assert "packages.torch" in caplog.text


def test_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds other files"):
        open_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(UserError, match="is a file"):
        prepare_results(tmp_path / "thesis.tex")


@pytest.mark.parametrize("present", [".gitkeep", "run/run.json", "reference/run/run.json", ".decodebench"])
def test_a_folder_that_is_ours(present: str, tmp_path: Path) -> None:
    (tmp_path / present).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / present).touch()
    prepare_results(tmp_path)
    assert (tmp_path / ".decodebench").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write to results folder"):
        prepare_results(tmp_path / "file" / "results")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write"):
        open_run(tmp_path)
    with pytest.raises(UserError, match="cannot write"):
        open_run(tmp_path / "new")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a decodebench run"),
        ('{"schema": 1}', "not a decodebench run"),
        ('{"schema": 2, "config": {}}', "schema version 2"),
    ],
)
def test_a_run_that_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    folder = work(tmp_path)
    (folder / "run.json").write_text(text)
    with pytest.raises(UserError, match=message):
        read_run(folder)
    with pytest.raises(UserError, match=message):
        open_run(tmp_path)


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        read_run(tmp_path)


def test_a_line_broken_in_the_middle(tmp_path: Path) -> None:
    folder = work(tmp_path)
    lines = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    for broken in ("{\n", "[]\n", "3\n", '{"repeat": 0}\n'):
        (folder / "samples.jsonl").write_text("".join([lines[0], broken, *lines[2:]]))
        with pytest.raises(UserError, match="line 2"):
            read_samples(folder)


# ---- JSON ----

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(deadline=None)
@given(json_values)
def test_any_value_is_written_as_strict_json_on_one_line(value: Any) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = files.to_line(value)
    assert line.count("\n") == 1
    assert json.loads(line, parse_constant=refuse) == files.plain(value)


def test_arrays_and_objects() -> None:
    import numpy as np

    assert files.plain({"a": np.array([1.0, math.nan]), 2: (np.int64(3), np.float32(0.5))}) == {
        "a": [1.0, None],
        "2": [3, 0.5],
    }
    with pytest.raises(TypeError, match="object"):
        files.plain(object())


# ---- aggregates ----


def test_aggregates_of_a_known_run() -> None:
    samples = [
        sample(0, committed=[1, 3], tokens=[1, 2, 3, 4], passes=2, latency=1.0, scores={"exact_match": 1.0}),
        sample(1, committed=[1, 1, 2], tokens=[1, 2, 3, 4], passes=3, latency=3.0, scores={"exact_match": math.nan}),
        sample(2, committed=[], tokens=[], passes=0, finish="prompt_too_long", latency=0.0, ttft=None,
               scores={"exact_match": 0.0, "inst": [True, False]}),
        sample(0, repeat=1, committed=[4], tokens=[1, 2, 3, 4], passes=1, latency=2.0),
        sample(0, repeat=2),
    ]  # fmt: skip
    result = aggregate(samples, [TIMING, TIMING | {"seconds": 1.0}], "exact_match")
    assert result["documents"] == 3
    assert result["failed_requests"] == 1
    assert result["score"] == {"metric": "exact_match", "value": 0.5, "sd": 0.5, "n": 2}
    assert result["metrics"] == {"exact_match": 0.5}
    assert (result["tokens"], result["passes"], result["tokens_per_pass"]) == (12, 6, 2.0)
    assert result["tokens_per_second"] == {"median": 4.0, "min": 4.0, "max": 4.0}
    assert result["repeats"][0]["engine_passes"] == 5
    assert result["latency"]["p50"] == 2.0
    assert result["latency"]["p95"] == pytest.approx(2.9)
    assert result["ttft"]["p99"] == pytest.approx(0.1)
    assert result["committed_histogram"] == {"1": 3, "2": 1, "3": 1, "4": 1}
    assert result["finish"] == {"prompt_too_long": 1, "stop_token": 2}


def test_interrupted_repeats_do_not_count_as_speed() -> None:
    samples = [sample(1, repeat=repeat) for repeat in range(3)]
    interrupted = TIMING | {"seconds": 0.5, "interrupted": True}
    assert aggregate(samples, [TIMING, interrupted, TIMING], "m")["tokens_per_second"]["max"] == 1.0
    assert aggregate(samples, [interrupted], "m")["tokens_per_second"]["median"] == 4.0


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            lambda doc, repeat, committed, latency, score, finish: sample(
                doc, repeat, committed=committed, tokens=[0] * sum(committed), passes=len(committed), latency=latency,
                ttft=latency, scores=score, finish=finish,
            ),
            st.integers(0, 3), st.integers(0, 2), st.lists(st.integers(0, 4), max_size=4),
            st.none() | st.floats(), st.none() | st.dictionaries(st.just("m"), st.none() | st.floats(0, 1)),
            st.sampled_from(["length", "prompt_too_long"]),
        ),
        max_size=8,
    ),
    st.lists(st.fixed_dictionaries({"seconds": st.floats(0, 9)}), max_size=3),
)  # fmt: skip
def test_aggregates_of_anything(samples: list[dict[str, Any]], timings: list[dict[str, Any]]) -> None:
    result = aggregate(samples, timings, "m")
    files.to_line(result)
    assert len(result["repeats"]) == len(timings)
    assert sum(repeat["tokens"] for repeat in result["repeats"]) == result["tokens"]
    assert sum(int(size) * count for size, count in result["committed_histogram"].items()) == result["tokens"]
    low, middle, high = (result["tokens_per_second"][name] for name in ("min", "median", "max"))
    assert low is None or low <= middle <= high


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_percentiles_are_those_of_numpy(latencies: list[float]) -> None:
    import numpy as np

    samples = [sample(doc_id, latency=latency) for doc_id, latency in enumerate(latencies)]
    result = aggregate(samples, [TIMING], "m")["latency"]
    assert list(result.values()) == pytest.approx(list(np.percentile(latencies, [50, 95, 99])))


if __name__ == "__main__":
    print("begun", flush=True)
    work(Path(sys.argv[1]), pause=0.05)
