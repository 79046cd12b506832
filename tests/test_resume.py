"""kill -9 at any moment, the same command again: the records are those of an uninterrupted run."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
import pytest

from decodebench.records import read_run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")


def command(model: Path, data: Path, results: Path) -> list[str]:
    return [
        sys.executable, "-m", "decodebench", "run", "--model", str(model), "--data-dir", str(data),
        "--results", str(results), "--tasks", "gsm8k", "--method", "ar,mars", "--tau", "0.6", "--batch-size", "3",
        "--repeats", "2", "--max-new-tokens", "400", "--dtype", "float32",
    ]  # fmt: skip


def records(results: Path) -> dict[str, list[dict]]:
    runs = {folder.parent.name: harness.timeless(folder.parent) for folder in results.glob("*/run.json")}
    assert all(read_run(results / name)["status"] == "done" for name in runs)
    return runs


def test_killed_again_and_again_it_ends_in_the_same_records(tmp_path: Path) -> None:
    data, model = harness.write_questions(tmp_path / "data", 8), harness.save_tiny(tmp_path / "model", seed=3)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = subprocess.run(command(model, data, whole), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    moments = random.Random(0)
    kills = 0
    for _ in range(8):
        lines = sum(len(path.read_bytes().splitlines()) for path in killed.glob("*/samples.jsonl"))
        process = subprocess.Popen(
            command(model, data, killed), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # some more samples are let through each time, and a random moment after the last of them is the one to die at
        target = lines + moments.randint(1, 6)
        while (
            process.poll() is None
            and sum(len(path.read_bytes().splitlines()) for path in killed.glob("*/samples.jsonl")) < target
        ):
            time.sleep(0.002)
        time.sleep(moments.random() * 0.05)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 3
    done = subprocess.run(command(model, data, killed), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert records(killed) == records(whole)
