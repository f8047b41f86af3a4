"""Unix time for spans: it goes on with CLOCK_BOOTTIME, whatever is done to the wall clock meanwhile.

A span is the difference of two readings of one clock that nobody sets. Times of jobs are read by several processes and
outlive each of them: the agent, the job step, the next agent. So the first one in a boot keeps in a file how far the
wall clock was ahead of CLOCK_BOOTTIME, and all others go by that. When nothing that it timed is left, the file is made
again, since the wall clock may have been wrong then. After a reboot only the wall clock is left.
Source: clock_gettime(2).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from foundation.boot import boot_id, boottime_s
from foundation.planted_links import open_new, open_safely

NAME: Final = "clock"
"""The file, in a directory that has nothing but what it times."""

Clock: TypeAlias = Callable[[], float]
"""Gives Unix seconds."""


class _Kept(msgspec.Struct):
    boot_id: str
    offset_s: float


def steady_time(offset_s: float | None = None) -> Clock:
    """The wall clock of now, or one that is so far ahead of CLOCK_BOOTTIME, going on by that clock."""
    ahead_s = time.time() - boottime_s() if offset_s is None else offset_s
    return lambda: ahead_s + boottime_s()


def kept_clock(path: Path, is_free: bool) -> Clock:
    """The clock that was kept at ``path`` in this boot; one that is kept there from now on if there is none, or if it
    ``is_free``: nothing is left that went by it. Where the file cannot be written the clock is this process's own."""
    offset_s = None if is_free else _kept(path)
    if offset_s is None:
        offset_s = time.time() - boottime_s()
        made = path.with_name(f"{path.name}.new")
        with contextlib.suppress(OSError), open(open_new(made), "wb") as file:
            file.write(msgspec.json.encode(_Kept(boot_id(), offset_s)))
            file.flush()
            os.replace(made, path)
    return steady_time(offset_s)


def read_clock(path: Path) -> Clock:
    """The clock that is kept at ``path``; without one a clock that begins now."""
    return steady_time(_kept(path))


def as_shown(unix_s: float, clock: Clock) -> float:
    """A time of this clock as the wall clock has it now. One of an earlier boot, which another clock gave, stays."""
    now_s, wall_s = clock(), time.time()
    began_s = now_s - boottime_s()
    return unix_s + (wall_s - now_s) if unix_s >= began_s else unix_s


def _kept(path: Path) -> float | None:
    with contextlib.suppress(OSError, msgspec.DecodeError), open(open_safely(path, os.O_RDONLY), "rb") as file:
        kept = msgspec.json.decode(file.read(4096), type=_Kept)
        if kept.boot_id == boot_id():
            return kept.offset_s
    return None
