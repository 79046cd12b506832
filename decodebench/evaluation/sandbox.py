"""Runs code that a model wrote, and says whether it passes a test.

The code runs in processes of its own (`_judge`), behind every wall that the system offers (`_jail`): a process,
network, file-system and user namespace, an unprivileged user, no capabilities, no further processes or threads, limits
of CPU time, memory, file size and open files, an empty environment, an in-memory folder of bounded size as the only
place to write to, output thrown away, and a wall clock after which everything is killed.

**What a pass means.** The test runs in another process than the code it tests, and only plain data goes between the
two. So a pass is proof that the test ran to its end on answers that the code gave to calls: leaving early, printing
"passed", patching builtins, walking frames or writing to open files changes nothing but the code's own process. What
remains possible is to give right answers for the wrong reason, as by recognising a test's arguments.

**What does not hold.** Without namespaces (macOS, many containers) the code runs as the user who started the run,
apart from the limits, and can read and write what that user can; `protections` says which walls stand. No wall here
withstands a hole in the kernel.

A solution may import the standard library and numpy. What its functions return reaches the test as plain data: base
types for their subclasses, an iterator for any other iterable.
"""

import functools
import importlib.util
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from decodebench.errors import UserError

# Importable by solutions besides the standard library; numpy keeps its shared libraries beside it.
LIBRARIES = ("numpy", "numpy.libs")

GRACE = 3.0  # seconds that the judge gets beyond the solution's time, before it is killed from here


@dataclass(frozen=True)
class Trial:
    """A solution and the test it has to pass.

    Args:
        solution: untrusted code that defines `entry_point`.
        test: trusted code that defines `check(candidate)`, which raises unless `candidate` behaves as it should.
        entry_point: name of the function to be tested.
        context: trusted code with the names that `test` uses, such as the problem's helper functions.
    """

    solution: str
    test: str
    entry_point: str
    context: str = ""


@dataclass(frozen=True)
class Outcome:
    """Whether a solution passed, and why: "passed", "timed out" or "failed: <one line>"."""

    passed: bool
    reason: str


class SandboxError(RuntimeError):
    """The sandbox itself did not work, which says nothing about the solution."""


def run(trial: Trial, timeout: float = 5.0, memory_mb: int = 1024) -> Outcome:
    """Judge one solution.

    Args:
        timeout: seconds of wall clock for the solution and its test together.
        memory_mb: address space of each process, in MiB.

    Raises:
        UserError: this system or user cannot run code safely.
        SandboxError: the sandbox could not be set up.
    """
    return _run(trial, timeout, memory_mb)[0]


def run_many(
    trials: Sequence[Trial], timeout: float = 5.0, memory_mb: int = 1024, workers: int | None = None
) -> list[Outcome]:
    """Judge many solutions, several at a time (`workers`, by default one per core); outcomes in the same order."""
    with ThreadPoolExecutor(workers or _cores()) as pool:
        return list(pool.map(lambda trial: run(trial, timeout, memory_mb), trials))


@functools.cache
def protections() -> dict[str, bool]:
    """Which walls stand on this system, found by trying.

    "network": none; "processes": a process namespace, so that nothing can outlive the sandbox or see other processes;
    "files": nothing of the file system but the interpreter, read-only; "privileges": none can be held or gained;
    "memory", "cpu", "file size", "open files", "core dumps": the limits; "shared memory": a namespace;
    "user namespace": only asked for where the run is not root's.
    """
    return _run(Trial("def f(): return 1", "def check(f): assert f() == 1", "f"), 10.0, 1024)[1]


def _run(trial: Trial, timeout: float, memory_mb: int) -> tuple[Outcome, dict[str, bool]]:
    if sys.platform == "win32":
        raise UserError("code written by a model is run on Linux or macOS only: leave out the tasks that need it")
    job: dict[str, object] = {
        "solution": trial.solution,
        "entry_point": trial.entry_point,
        "timeout": timeout,
        "memory_mb": memory_mb,
        "libraries": _libraries(),
    }
    messages = _message(job) + _message({"context": trial.context, "test": trial.test})
    # realpath: on a path through a symbolic link the sandbox could not mount
    scratch = os.path.realpath(tempfile.mkdtemp(prefix="sandbox-"))
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": scratch, "TMPDIR": scratch}
    environment["OPENBLAS_NUM_THREADS"] = environment["OMP_NUM_THREADS"] = "1"  # threads are forbidden in there
    try:
        process = subprocess.Popen(
            # -I -S -B: no environment, no site-packages, no bytecode written
            [_python(), "-I", "-S", "-B", _script(), scratch],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
            env=environment,
            start_new_session=True,
        )
        try:
            answer, _ = process.communicate(messages, timeout + GRACE)
        except subprocess.TimeoutExpired:
            return Outcome(False, "timed out"), {}
        finally:
            _kill_group(process)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return _read(answer)


def _read(answer: bytes) -> tuple[Outcome, dict[str, bool]]:
    try:
        verdict = json.loads(answer[4:])
    except ValueError:  # killed before it could say anything: no proof, no pass
        return Outcome(False, "failed: the sandbox ended without a verdict"), {}
    if problem := verdict.get("broken"):
        if problem.startswith("PermissionError: cannot leave root"):
            raise UserError(problem.partition(": ")[2])
        raise SandboxError(problem)
    return Outcome(verdict["reason"] == "passed", verdict["reason"]), verdict["walls"]


def _message(content: dict[str, object]) -> bytes:
    data = json.dumps(content).encode()
    return struct.pack("!I", len(data)) + data


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
    process.communicate()


def _python() -> str:
    """The interpreter itself, not a virtual environment's link to it: no other path need lead there."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _script() -> str:
    return str(Path(__file__).with_name("_judge.py"))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _libraries() -> list[str]:
    spec = importlib.util.find_spec("numpy")
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0]).resolve().parent
    return [str(folder / name) for name in LIBRARIES if (folder / name).is_dir()]
