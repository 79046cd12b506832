"""The sandbox's own program: runs a solution in one process and its test in another, and says whether it passed.

    parent ── pipe ──> warden ─ forks ─> judge ─ forks ─> solution

The *warden* puts up the walls (`_jail`) and waits. The *judge* runs the test, in which the solution is a stand-in:
calling it sends the arguments to the *solution* process and returns what that process answers. Only plain data
crosses, so the solution has no object, frame, module or file of the judge in reach; all it can do to the verdict is to
answer well. The test is read from the pipe after the fork, so no copy of it is in the solution's memory either.
Where there are process namespaces, the judge is the first process of its own: when it ends, the kernel ends the rest.

Standard library only; started as a script by `sandbox`, never imported.
"""

import builtins
import json
import os
import signal
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _jail

del sys.path[0]

MAX_MESSAGE = 8 << 20  # bytes
LENGTH = struct.Struct("!I")


class TimedOutError(BaseException):
    """The time for solution and test together is over. Not an Exception, so that tests do not catch it."""


# --- messages: a length and JSON, with a tag for what JSON lacks ---


def send(fd: int, message: Any) -> None:
    data = json.dumps(message).encode()
    if len(data) > MAX_MESSAGE:
        raise ValueError("the value is too large")
    data = LENGTH.pack(len(data)) + data
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int, limit: int = MAX_MESSAGE) -> Any:
    """The next message; EOFError where the other side has gone. Reads not one byte more."""

    def exactly(count: int) -> bytes:
        parts = []
        while count:
            part = os.read(fd, min(count, 1 << 16))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    (count,) = LENGTH.unpack(exactly(LENGTH.size))
    if count > limit:
        raise ValueError("the value is too large")
    return json.loads(exactly(count))


def pack(value: Any) -> Any:
    """Plain data for JSON: base types for their subclasses, an iterator for any other iterable."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return {"int": hex(value)} if abs(value) >> 63 else int(value)
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, (tuple, set, frozenset)):
        kind = next(kind for kind in (tuple, set, frozenset) if isinstance(value, kind))
        return {kind.__name__: [pack(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if type(value).__name__ in ("Decimal", "Fraction"):
        return {type(value).__name__: str(value)}
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return pack(value.item())
    return {"iter": [pack(item) for item in value]}  # TypeError where it is no iterable


def unpack(value: Any) -> Any:
    """The inverse of `pack`; raises for whatever `pack` does not make."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "int":
            return int(content, 16)
        case "bytes":
            return bytes.fromhex(content)
        case "complex":
            return complex(*content)
        case "Decimal":
            import decimal

            return decimal.Decimal(content)
        case "Fraction":
            import fractions

            return fractions.Fraction(content)
        case "dict":
            return {unpack(key): unpack(item) for key, item in content}
    makers: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "iter": iter}
    return makers[kind](unpack(content))


# --- the two sides ---


def solve(job: dict[str, Any], requests: int, replies: int) -> None:
    """The solution's side: run its code, then answer calls until the judge hangs up."""

    def answer(call: Callable[[], Any]) -> None:
        try:
            reply = {"value": pack(call())}
        except BaseException as error:
            reply = {"error": [type(error).__name__, str(error)[:200]]}
        send(replies, reply)

    module = types.ModuleType("solution")
    sys.modules["solution"] = module

    def load() -> None:
        exec(compile(job["solution"], "<solution>", "exec"), module.__dict__)
        if job["entry_point"] not in module.__dict__:
            raise NameError(f"the solution defines no {job['entry_point']}")

    def call() -> Any:
        args, kwargs = unpack(receive(requests))
        return module.__dict__[job["entry_point"]](*args, **kwargs)

    answer(load)
    while True:
        answer(call)


def stand_in(requests: int, replies: int) -> Any:
    """The function that the test is given: passes each call to the solution's process and its answer back."""

    def answer() -> Any:
        try:
            reply = receive(replies)
        except EOFError:
            raise RuntimeError("the program ended before its test did") from None
        if "error" in reply:
            name, text = reply["error"]
            kind = getattr(builtins, str(name), None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                raise kind(str(text))
            raise RuntimeError(f"{name}: {text}")
        return unpack(reply["value"])

    def candidate(*args: Any, **kwargs: Any) -> Any:
        send(requests, [pack(list(args)), pack(kwargs)])
        return answer()

    answer()  # the solution's own code has run
    return candidate


def judge(job: dict[str, Any], solution: int, requests: int, replies: int) -> str:
    """Run the test against the solution; "passed", "timed out" or "failed: …"."""

    def ring(*_: object) -> None:
        raise TimedOutError

    signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, job["timeout"])
        trusted = receive(0)
        candidate = stand_in(requests, replies)
        names: dict[str, Any] = {"__name__": "test"}
        exec(trusted["context"], names)
        names[job["entry_point"]] = candidate
        exec(trusted["test"], names)
        names["check"](candidate)
        return "passed"
    except TimedOutError:
        return "timed out"
    except BaseException as error:
        # the text may be the solution's: one line of it, and nothing that a terminal or a file would choke on
        text = "".join(mark if mark.isprintable() else "?" for mark in " ".join(str(error).split())[:200])
        return f"failed: {type(error).__name__}" + (f": {text}" if text else "")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.kill(solution, signal.SIGKILL)
        os.waitpid(solution, 0)


def hold_trial(job: dict[str, Any]) -> str:
    """The judge's process: fork the solution off, run the test against it."""
    request_out, request_in = os.pipe()
    reply_out, reply_in = os.pipe()
    solution = os.fork()
    if solution == 0:
        try:
            _jail.die_with_parent()
            os.dup2(2, 0)  # the null device: the pipe that brings the test is not for us
            requests, replies = os.dup2(request_out, 40), os.dup2(reply_in, 41)
            os.closerange(3, requests)
            os.closerange(replies + 1, _jail.MAX_OPEN_FILES)
            _jail.forbid_new_processes()
            solve(job, requests, replies)
        finally:
            os._exit(0)
    os.close(request_out)
    os.close(reply_in)
    return judge(job, solution, request_in, reply_out)


def main() -> None:
    """The warden's process; the one argument is an empty folder of our own."""
    verdict = os.dup(1)
    os.dup2(2, 1)
    try:
        job = receive(0)
        seconds = int(job["timeout"]) + 2
        walls = _jail.confine(sys.argv[1], job["memory_mb"], seconds, job["libraries"])
        _jail.die_with_parent()
        child = os.fork()
        if child == 0:
            _jail.die_with_parent()
            send(verdict, {"reason": hold_trial(job), "walls": walls})
            os._exit(0)
        os.waitpid(child, 0)
    except Exception as error:
        send(verdict, {"broken": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
