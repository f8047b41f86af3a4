"""The log of a long-running program on stderr: time, name of the program, one line.

The journal of systemd stamps lines itself, so there they have no time of their own. ``JOURNAL_STREAM`` has device and
inode of the stream that leads to it, since stderr may have been sent elsewhere. Source: systemd.exec(5).

In the journal alarms and errors have the priority ``err``, so that ``journalctl -p warning`` finds them; it takes that
from ``<3>`` at the start of a line. Source: sd-daemon(3).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from foundation.shell.plain_text import plain

ALARM: Final = "ALARM"
"""How a line begins that calls for an administrator."""

LONGEST_LINE: Final = 2000
"""Ours: characters of a message. No message of ours has so many, but it may quote a file."""

_ERROR: Final = "<3>"


def logger(program: str) -> Callable[[str], None]:
    """A function that logs a line of ``program``, made plain."""

    def log(line: str) -> None:
        is_stamped = is_journal(2)
        when = "" if is_stamped else f"{datetime.now():%Y-%m-%d %H:%M:%S} "
        priority = _ERROR if is_stamped and line.startswith(ALARM) else ""
        print(f"{priority}{when}{program}: {plain(line)}", file=sys.stderr, flush=True)

    return log


def complain(program: str, error: str) -> None:
    """Say on stderr, in one line, why ``program`` ends."""
    priority = _ERROR if is_journal(2) else ""
    print(f"{priority}{program}: {one_line(error)}", file=sys.stderr, flush=True)


def one_line(error: str) -> str:
    """A message as it is printed: plain, and of a field that is too long to read its beginning and its end."""
    line = plain(" ".join(error.split()))
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 300]} ... {line[-290:]}"


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
