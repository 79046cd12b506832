"""Worker threads go when they are released, and come back."""

import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
import os, torch
from decodebench.decoding.workers import release_workers
torch.set_num_threads(4)
a = torch.randn(512, 512)
first = a @ a
threads = len(os.listdir("/proc/self/task"))
release_workers()
released = len(os.listdir("/proc/self/task"))
assert torch.equal(a @ a, first)
print(threads - released, len(os.listdir("/proc/self/task")) - released)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_released_workers_are_gone_until_the_next_computation() -> None:
    if "libgomp" not in Path("/proc/self/maps").read_text(encoding="utf-8"):
        pytest.skip("this torch does not use GNU's OpenMP")
    run = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    gone, back = map(int, run.stdout.split())
    assert gone == back == 3
