"""The live table of a grid, the time left, and a stop that says how to go on."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import harness
import pytest
from rich.console import Console

from decodebench.cli.run import resume_command
from decodebench.decoding import Generation
from decodebench.evaluation.progress import GridProgress
from decodebench.records import read_run


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def answer(tokens: int, passes: int) -> Generation:
    return Generation("", [0] * tokens, "length", [1] * passes, [], 0.1, 1.0)


def drawn(progress: GridProgress, width: int = 90, height: int = 40) -> list[str]:
    progress.console = Console(width=width, height=height)
    with progress.console.capture() as capture:
        progress.console.print(progress.table())
    return [line.rstrip() for line in capture.get().splitlines()]


def run_some(progress: GridProgress, clock: Clock, count: int, seconds: float, tokens: int = 10) -> None:
    for _ in range(count):
        clock.now += seconds
        progress.advance(answer(tokens, tokens // 2))


def test_the_table() -> None:
    clock = Clock()
    progress = GridProgress({"ar": 10, "mars": 10, "jacobi": 10, "medusa": 5}, clock)
    progress.begin("ar")
    run_some(progress, clock, 10, 1.0)
    progress.skip("jacobi", 10)
    progress.fail("medusa", "no heads")
    progress.begin("mars")
    run_some(progress, clock, 4, 0.5)
    lines = drawn(progress)
    assert lines[0].split() == ["✓", "ar", "10/10", "10", "tokens/s", "2.00", "tokens/pass"]
    assert lines[1].split() == ["▸", "mars", "4/10", "20", "tokens/s", "2.00", "tokens/pass"]
    assert lines[2].split() == ["✓", "jacobi", "recorded"]
    assert lines[3].split()[0] == "✗"
    assert lines[4].endswith("14/20 requests  00:12, about 00:05 left")


def test_time_left_knows_that_cells_differ() -> None:
    clock = Clock()
    progress = GridProgress({"slow": 20, "fast": 20, "new": 10}, clock)
    progress.begin("slow")
    run_some(progress, clock, 7, 4.0)
    assert progress.seconds_left() is None  # too early to tell
    run_some(progress, clock, 3, 4.0)
    progress.begin("fast")
    run_some(progress, clock, 10, 1.0)
    # 10 × 4 s, 10 × 1 s, and 10 like the average of both
    assert progress.seconds_left() == pytest.approx(40 + 10 + 25)
    progress.begin("slow")  # its next turn
    run_some(progress, clock, 10, 4.0)
    assert progress.seconds_left() == pytest.approx(10 + 10 * 90 / 30)


def test_tables_higher_than_the_terminal_follow_the_current_cell() -> None:
    clock = Clock()
    progress = GridProgress({f"cell {i}": 2 for i in range(50)}, clock)
    progress.begin("cell 30")
    lines = drawn(progress, height=16)
    assert len(lines) <= 16
    assert lines[0].strip() == "… 25 above"
    assert any("▸" in line and "cell 30" in line for line in lines)
    assert lines[-2].strip() == "… 15 below"


def test_nothing_to_run() -> None:
    clock = Clock()
    progress = GridProgress({"ar": 3}, clock)
    progress.skip("ar", 3)
    assert "0/0 requests" in drawn(progress)[-1]


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with GridProgress({"ar": 20, "mars": 20}, clock) as progress:
        progress.begin("ar", ", repeat 1")
        run_some(progress, clock, 20, 2.0)
        progress.fail("mars", "no mask")
    err = capsys.readouterr().err
    assert err.splitlines() == [
        "[0/40] ar, repeat 1",
        "[8/40] ar: 5 tokens/s, 2.00 tokens/pass, about 64 s left",
        "[16/40] ar: 5 tokens/s, 2.00 tokens/pass, about 48 s left",
        "failed: mars: no mask",
    ]
    assert "\x1b" not in err


def test_the_command_that_goes_on() -> None:
    assert resume_command(["run", "--fresh", "--model", "my model"]) == "decodebench run --model 'my model'"


def text_of(chunks: list[bytes]) -> str:
    """What a terminal was sent, without what moves the cursor and colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(chunks).decode(errors="ignore")).replace("\r", "")


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_ctrl_c_on_a_terminal_stops_cleanly_and_the_printed_command_goes_on(tmp_path: Path) -> None:
    data, model = harness.write_questions(tmp_path / "data"), harness.save_tiny(tmp_path / "my model")
    words = [
        "run", "--model", str(model), "--data-dir", str(data), "--results", str(tmp_path / "results"), "--tasks",
        "gsm8k", "--method", "ar,mars", "--tau", "0.6", "--batch-size", "1", "--max-new-tokens", "120",
        "--dtype", "float32",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "decodebench", *words], env=environment, stdout=subprocess.PIPE, stderr=theirs,
        stdin=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen: list[bytes] = []

    def watch() -> None:
        try:
            while chunk := os.read(ours, 4096):
                seen.append(chunk)
        except OSError:  # how a pseudo-terminal says that its other end is closed
            pass

    watcher = threading.Thread(target=watch)
    watcher.start()
    running = re.compile(r"▸ +gsm8k (ar|mars tau=0.6) batch 1 +[1-9]\d*/12")
    while process.poll() is None and not running.search(text_of(seen)):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait()
    watcher.join()
    os.close(ours)
    text = text_of(seen)
    assert process.returncode == 130, text
    assert "Traceback" not in text
    assert "stopped: what is finished is recorded; go on with\ndecodebench run --model" in text
    printed = shlex.split(text.strip().splitlines()[-1])
    done = subprocess.run(
        [sys.executable, "-m", *printed], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    runs = [read_run(path.parent) for path in (tmp_path / "results").glob("*/run.json")]
    assert [(run["status"], run["repeats"]) for run in runs] == [("done", 1)] * 2
