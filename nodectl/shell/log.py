"""What a program that stays tells on stderr while it runs: a line, who says it, and when.

The journal of systemd stamps lines itself, so there they have no time of their own. ``JOURNAL_STREAM`` holds device and
inode of the stream that leads to it, since stderr may have been sent elsewhere. Source: systemd.exec(5).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime


def saying(program: str) -> Callable[[str], None]:
    """Takes lines that ``program`` says."""

    def say(line: str) -> None:
        when = "" if is_journal(2) else f"{datetime.now():%Y-%m-%d %H:%M:%S} "
        print(f"{when}{program}: {line}", file=sys.stderr, flush=True)

    return say


def is_journal(descriptor: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written there goes to the journal."""
    stream = environment.get("JOURNAL_STREAM", "")
    if not stream:
        return False
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"
