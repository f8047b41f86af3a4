"""The whole suite on a busy machine: ``make test-busy``, or ``python -m tests.under_load [FILE ...]``.

Test files run side by side, ``LOAD`` at a time, each in a process of its own; where fewer are left, busy loops fill up
to ``LOAD``. Files in ``ALONE`` run one after the other, against busy loops alone.
Exit status 1 if a file fails; its output is printed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.alone import ALONE, LONGEST

ROOT: Final = Path(__file__).parents[1]
LOAD: Final = 25
LOOK_S: Final = 0.2


@dataclass(slots=True)
class _BusyLoops:
    """``LOAD`` processes that only compute, of which as many are stopped as are not needed."""

    loops: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def fill_up(self, running: int) -> None:
        """Let as many loops run as are missing from ``LOAD``."""
        for number, loop in enumerate(self.loops):
            loop.send_signal(signal.SIGCONT if number < LOAD - running else signal.SIGSTOP)


@contextlib.contextmanager
def busy_loops() -> Iterator[_BusyLoops]:
    """They are killed at the end."""
    busy = _BusyLoops()
    try:
        for _ in range(LOAD):
            busy.loops.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        yield busy
    finally:
        for loop in busy.loops:
            loop.kill()
            loop.wait()


@dataclass(frozen=True, slots=True)
class _Run:
    """One test file under way; its output goes to the file ``log``."""

    file: str
    process: subprocess.Popen[bytes]
    log: Path
    begin_s: float


def _start(file: str, folder: Path) -> _Run:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    path = folder / file.replace("/", "-")
    with path.open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    return _Run(file, process, path, time.monotonic())


def _report(run: _Run) -> bool:
    """Print one line, and everything of a file that failed; returns whether it did. Status 5: all were deselected."""
    output = run.log.read_text(errors="replace").rstrip()
    has_failed = run.process.returncode not in (0, 5)
    closing = output.rsplit("\n", 1)[-1]
    print(f"{time.monotonic() - run.begin_s:6.0f} s  {run.file}: {closing}", flush=True)
    if has_failed:
        print(output, flush=True)
    return has_failed


def run_all(files: Sequence[str], at_once: int, busy: _BusyLoops, folder: Path) -> list[str]:
    """Run the files, ``at_once`` at a time; returns those that failed."""
    waiting, running, failed = list(reversed(files)), list[_Run](), list[str]()
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(_start(waiting.pop(), folder))
        busy.fill_up(len(running))
        time.sleep(LOOK_S)
        for run in [run for run in running if run.process.poll() is not None]:
            running.remove(run)
            if _report(run):
                failed.append(run.file)
    return failed


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the busy loops
    found = (path for top in ("tests", "hil_tests") for path in sorted((ROOT / top).rglob("test_*.py")))
    files = list(arguments) or [str(path.relative_to(ROOT)) for path in found]
    files.sort(key=lambda file: not file.startswith(LONGEST))
    alone = [file for file in files if file.startswith(ALONE)]
    begin_s = time.monotonic()
    with busy_loops() as busy, tempfile.TemporaryDirectory(prefix="under-load-") as name:
        failed = run_all([file for file in files if file not in alone], LOAD, busy, Path(name))
        failed += run_all(alone, 1, busy, Path(name))
    load = os.getloadavg()[1]
    print(f"{len(files)} files in {(time.monotonic() - begin_s) / 60:.0f} min, load {load:.0f}: {len(failed)} failed")
    print(*failed, sep="\n", end="\n" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
