"""The four ports between this program and the machine: files, counters, NVML and the clock.

All readers and knobs go through these. On a node they are the kernel's own; an emulated node in virtual time has the
same four, so nothing above this file depends on which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pmu.readings import type_i64


class KeptFile(Protocol):
    """A file kept open and read again from its start at each sweep."""

    def read(self) -> bytes:
        """The whole content now."""

    def close(self) -> None:
        """Close the file."""


class Files(Protocol):
    """Text files of the kernel. Paths are absolute ("/sys/class/powercap/..."). Errors are OSError with errno."""

    def read(self, path: str) -> str:
        """The whole text."""

    def write(self, path: str, text: str) -> None:
        """Write ``text`` in one write(2)."""

    def keep(self, path: str) -> KeptFile:
        """Open the file to read it many times."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory."""

    def exists(self, path: str) -> bool:
        """Whether anything is there."""

    def writable(self, path: str) -> bool:
        """Whether this process may write it."""

    def realpath(self, path: str) -> str:
        """The path with links followed."""


class CounterSet(Protocol):
    """Open counter groups, one per CPU."""

    def sweep(self, out: type_i64) -> None:
        """Fill ``out`` ``[n_cpus, n_events]`` with cumulative counts; RAW_MISSING where a CPU gave none."""

    def close(self) -> None:
        """Close the counters."""


class Counters(Protocol):
    """perf_event_open and what it offers here."""

    def why_not(self, event: str) -> str | None:
        """None if the event can be counted system-wide, else the reason in one line."""

    def open(self, cpus: tuple[int, ...], events: tuple[str, ...]) -> CounterSet:
        """Count ``events`` on each of ``cpus`` from now on."""


class Clock(Protocol):
    """CLOCK_MONOTONIC, and sleeping on it."""

    def now_ns(self) -> int:
        """Nanoseconds since some start."""

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep to an absolute instant of this clock."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one node. ``nvml`` is the ``pynvml`` module, or None with the reason in ``nvml_why``.

    ``lock_path``: the file that an agent locks before it moves this node's knobs; empty where no other can reach it.
    """

    files: Files
    counters: Counters
    nvml: Any | None
    nvml_why: str
    clock: Clock
    lock_path: str = ""
    nvml_again: Callable[[], tuple[Any | None, str]] | None = None
    """Begins NVML, in a thread: what ``nvml`` and ``nvml_why`` would be now. None: they cannot change."""
