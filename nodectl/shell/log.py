"""The log of a long-running program on stderr: time, name of the program, one line.

The journal of systemd stamps lines itself, so there they have no time of their own. ``JOURNAL_STREAM`` has device and
inode of the stream that leads to it, since stderr may have been sent elsewhere. Source: systemd.exec(5).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime


def logger(program: str) -> Callable[[str], None]:
    """A function that logs a line of ``program``."""

    def log(line: str) -> None:
        when = "" if is_journal(2) else f"{datetime.now():%Y-%m-%d %H:%M:%S} "
        print(f"{when}{program}: {line}", file=sys.stderr, flush=True)

    return log


def is_journal(descriptor: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this file descriptor leads to the journal of systemd."""
    stream = environment.get("JOURNAL_STREAM", "")
    if not stream:
        return False
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"
