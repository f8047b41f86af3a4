"""Processes as the kernel lists them. Source: proc(5)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DESCRIPTORS: Final = 256
"""Ours: how many processes are signalled at once; each takes a descriptor."""


@dataclass(frozen=True, slots=True)
class Process:
    """What a process is at this moment. ``start``: clock ticks since boot."""

    pid: int
    state: str
    parent: int
    session: int
    start: int


def process(pid: int) -> Process | None:
    """The process with this number; None: there is none, or it has ended and waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    words = text.rpartition(b")")[2].decode("ascii").split()  # before it is a name of any bytes, which its owner chose
    if words[0] == "X" or (words[0] == "Z" and int(words[17]) < 2):  # its first thread may end before the others
        return None
    return Process(pid, words[0], int(words[1]), int(words[3]), int(words[19]))


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot. A pid may be used again; pid and start time together are
    unique within a boot."""
    found = process(pid)
    return None if found is None else found.start


def all_processes() -> list[Process]:
    """All that live now."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [one for one in found if one is not None]


def threads(pid: int) -> list[int]:
    """The threads of a process, by number; of one that has ended none."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def has_in_environment(pid: int, entry: bytes) -> bool:
    """Whether the process was started with this ``NAME=value``; False where that may not be seen. Of a process whose
    first thread has ended, the others still show it."""
    for place in (f"/proc/{pid}", *(f"/proc/{pid}/task/{thread}" for thread in threads(pid))):
        with contextlib.suppress(OSError):
            if found := Path(place, "environ").read_bytes():
                return entry in found.split(b"\0")
    return False


def descendants(pid: int) -> list[int]:
    """All processes below this one, parents first. Source: /proc/PID/task/TID/children of proc(5)."""
    found: list[int] = []
    below = [pid]
    while below:
        for children in _children_by_thread(below.pop()):
            found += children
            below += children
    return found


def send_all(number: int, meant: Callable[[], list[int]]) -> list[int]:
    """Send a signal to all processes that ``meant`` lists, in its order; returns them. It is called twice: who is
    listed again after a descriptor of him was opened is the same, and not another one that got his number."""
    pids = meant()
    for some in (pids[at : at + DESCRIPTORS] for at in range(0, len(pids), DESCRIPTORS)):
        with contextlib.ExitStack() as opened:
            found = {}
            for pid in some:
                with contextlib.suppress(OSError):
                    found[pid] = os.pidfd_open(pid)
                    opened.callback(os.close, found[pid])
            still = set(meant())
            for pid, descriptor in found.items():
                if pid in still:
                    with contextlib.suppress(OSError):
                        signal.pidfd_send_signal(descriptor, number)
    return pids


def _children_by_thread(pid: int) -> Iterator[list[int]]:
    """The children of each thread. A thread or process that ends meanwhile has none."""
    for thread in threads(pid):
        with contextlib.suppress(OSError):
            yield [int(word) for word in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
