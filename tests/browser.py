"""A headless Chromium, driven over its debugging pipe: no driver, no network."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXECUTABLE = next((found for name in NAMES if (found := shutil.which(name))), None)
KEYS = {"Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}  # Windows' numbers
needs_browser = pytest.mark.skipif(EXECUTABLE is None, reason="needs Chromium (Debian's package chromium)")


class Page:
    """One page of one browser.

    Attributes:
        requests: addresses that the page asked for.
        errors: exceptions and refusals that it reported.
    """

    def __init__(self, profile: Path, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        assert EXECUTABLE
        to_browser, ours_out = os.pipe()
        ours_in, from_browser = os.pipe()

        def pipes() -> None:  # the browser reads commands from descriptor 3 and answers on 4
            # first away from 3 and 4 themselves, which either of them may be
            source, sink = os.dup(to_browser), os.dup(from_browser)
            while min(source, sink) < 5:
                source, sink = os.dup(source), os.dup(sink)
            os.dup2(source, 3)
            os.dup2(sink, 4)

        self.process = subprocess.Popen(
            [
                EXECUTABLE, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=pipes, close_fds=False,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.out, self.into = os.fdopen(ours_out, "wb", buffering=0), os.fdopen(ours_in, "rb")
        self.number, self.pending = 0, b""
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self.out.close()
        self.into.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.pending:
            chunk = self.into.read1(1 << 16)
            assert chunk, "the browser has gone"
            self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\0")
        event = json.loads(line)
        self._note(event.get("method"), event.get("params", {}))
        return event

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def open(self, file: Path) -> None:
        """Open a file and wait until it is loaded and drawn."""
        self.call("Page.navigate", url=file.resolve().as_uri())
        while self.run("document.readyState") != "complete" or not self.run("location.protocol === 'file:'"):
            pass
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """A key, as a person would press it."""
        extra = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = KEYS.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **extra)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def hover(self, selector: str) -> None:
        """Move the mouse over the first element that the selector names."""
        at = self.run(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); "
            "node.scrollIntoView({ block: 'center', behavior: 'instant' }); const box = node.getClientRects()[0]; "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A picture of what is seen, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
