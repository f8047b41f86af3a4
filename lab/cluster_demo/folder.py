"""The folder of a demo, and what demos that were killed have left.

A demo locks a file in its folder; the kernel releases the lock however the demo ends. The demo notes its processes in
the folder. If it could not end them itself, the next demo ends them and removes the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nodectl.jobs.proc import start_time

PREFIX: Final = "nodectl-demo-"
LOCK, PROCESSES = "lock", "processes"


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder, which is gone afterwards; those of dead demos go first."""
    clear_dead()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def note_process(folder: Path, pid: int) -> None:
    """Note a process of this demo, which must not outlive it."""
    with open(folder / PROCESSES, "a") as file:
        file.write(f"{pid} {start_time(pid)}\n")


def clear_dead() -> None:
    """End what dead demos of this user have left running, and remove their folders."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for noted in folder.rglob(PROCESSES):
                    _kill_noted(noted.read_text())
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _kill_noted(lines: str) -> None:
    for line in lines.splitlines():
        pid, started = line.split()
        if started == str(start_time(int(pid))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
