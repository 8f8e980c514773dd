# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, controlled through its DevTools protocol over a pair of pipes.

This needs only Chromium: no driver program, no package, no port.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-default-browser-check",
    "--no-first-run",
    "--remote-debugging-pipe",
)
# Chromium reads commands from descriptor 3 and answers on 4. First move our ends out of the way:
# one of them may be 3 or 4.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD_CLOEXEC, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 30.0
LOUD = ("error", "warning", "assert")


@pytest.fixture(scope="session")
def page(tmp_path_factory) -> Iterator[Page]:
    """Return a tab of Chromium; in CI a missing Chromium is a failure."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        if "CI" in os.environ:
            pytest.fail("CI must have Chromium: Debian's package is called chromium")
        pytest.skip("needs Chromium: Debian's package is called chromium")
    with Page(program, tmp_path_factory.mktemp("profile")) as page:
        yield page


class Page:
    """One tab.

    Attributes
    ----------
    errors : list of str
        What the console reported, exceptions among them, since the last `open`.
    requests : list of str
        The addresses that the page asked for since then.
    """

    def __init__(self, program: str, profile: Path) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._count = 0
        self._received = b""
        self._session: str | None = None
        theirs_in, self._commands = os.pipe()
        self._answers, theirs_out = os.pipe()
        ends = (theirs_in, theirs_out)
        launch = (sys.executable, "-c", LAUNCH, *map(str, ends))
        command = (program, *FLAGS, f"--user-data-dir={profile}", "about:blank")
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen((*launch, *command), pass_fds=ends, **silent)
        for end in ends:
            os.close(end)

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._commands)
            os.close(self._answers)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; events in between are recorded."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def open(
        self,
        path: Path,
        *,
        width: int = 1200,
        height: int = 900,
        dark: bool = False,
        drawn: str = "document.body?.dataset.drawn === 'yes'",
    ) -> None:
        """Load a file in a window of this size and wait until it is drawn."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for(drawn)

    def run(self, script: str) -> Any:
        """Return the value of an expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
        return answer["result"].get("value")

    def choose(self, control: str, value: object) -> None:
        """Choose a value of a select."""
        script = f"""(() => {{
            const select = document.getElementById({json.dumps(control)});
            select.value = {json.dumps(str(value))};
            select.dispatchEvent(new Event("change", {{ bubbles: true }}));
            return select.value;
        }})()"""
        assert self.run(script) == str(value), f"{control} does not offer {value}"

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        self.wait_until(lambda: bool(self.run(condition)), condition)

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait until something has happened."""
        end = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < end, f"{what}: not after {PATIENCE:g} s; {self.errors}"
            time.sleep(0.02)

    def press(self, key: str, code: int) -> None:
        """Press a key, as a reader without a mouse does."""
        text = {"text": "\r"} if key == "Enter" else {}
        how = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **how, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **how)

    def screenshot(self, path: Path) -> None:
        """Take a picture of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            assert ready, f"Chromium said nothing for {PATIENCE:g} seconds"
            more = os.read(self._answers, 1 << 20)
            assert more, f"Chromium ended with code {self._process.poll()}"
            self._received += more
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: str, details: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(details["exceptionDetails"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] in LOUD:
            self.errors.append(details["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and details["type"] in LOUD:
            self.errors.append(json.dumps(details["args"]))
