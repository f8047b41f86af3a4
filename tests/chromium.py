"""A real Chromium without windows, driven through the pipes that it reads and writes (DevTools protocol).

Debian's chromium-headless-shell, unpacked by ``scripts/foreign.sh`` and never installed. One for a whole file of tests:
it takes a second of a processor to start.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
UNPACKED = ROOT / "build/foreign/root"
PROGRAM = UNPACKED / "usr/lib/chromium/chromium-headless-shell"
MISSING = "Chromium is missing: install it with scripts/foreign.sh (chromium-headless-shell, unpacked)"

needs_chromium = pytest.mark.skipif(not PROGRAM.exists(), reason=MISSING)


class Page:
    """One page of a browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from, self._session = to_browser, from_browser, ""
        self._got, self._number = b"", 0
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """One command; AssertionError with what the browser answers if it refuses."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._got:
            readable, _, _ = select.select([self._from], [], [], PATIENCE_S)
            assert readable, "Chromium does not answer"
            got = os.read(self._from, 1 << 20)
            assert got, "Chromium has ended"
            self._got += got
        text, _, self._got = self._got.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
            self.complaints.append(text.decode())
        return message

    def show(
        self, file: Path | str, width: int, dark: bool = False, media: str = "screen", script: bool = True
    ) -> None:
        """Load a page, by its file or its address, in a window so wide and 800 high."""
        self.complaints.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 700
        )
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=file if isinstance(file, str) else file.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def ask(self, expression: str) -> Any:
        """The value of an expression, or of what it promises."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, file: Path, whole: bool = True) -> None:
        """A screenshot as PNG: of the whole page, or of its first screen."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """As it is printed, on A4."""
        return base64.b64decode(self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with a profile in ``folder``, and its page."""
    to_read, to_browser = os.pipe()
    from_browser, to_write = os.pipe()
    libraries = [
        str(UNPACKED / "usr/lib/x86_64-linux-gnu"),
        *sorted(map(str, (UNPACKED / "usr/lib").glob("*/pulseaudio"))),
    ]
    command = [str(PROGRAM), "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder}", "--disable-dev-shm-usage", "--no-first-run"]

    def pipes() -> None:  # it reads from 3 and writes to 4
        read, write = os.dup(to_read), os.dup(to_write)
        os.dup2(read, 3)
        os.dup2(write, 4)

    running = subprocess.Popen(
        command,
        env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)},
        preexec_fn=pipes,
        close_fds=False,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Page(to_browser, from_browser)
    finally:
        running.kill()
        running.wait()
        os.close(to_browser)
        os.close(from_browser)
