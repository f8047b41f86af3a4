"""Counter groups of perf_event_open, one per logical CPU, and their sweep in one native call.

Events of one CPU are opened as one group, so that the kernel counts them over the same time and one read gives them
all. Reading a group of eight costs as much as one of one: the interrupt to the other CPU is what costs. A *software*
PMU of the kernel, such as ``msr``, may join a group of hardware events. Where a kernel or a processor refuses a member
with EINVAL, or has too few counters for the group, that event gets a group of its own, and its count is merged into the
same row.
Source: perf_event_open(2); kernel/events/core.c (group_leader checks), arch/x86/events/core.c validate_group().
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pmu._native import ffi, lib
from pmu.descriptors import raise_descriptor_limit
from pmu.readings import RAW_MISSING, PmuError, type_i64


@dataclass(frozen=True, slots=True)
class Source:
    """An event for perf_event_open, and its name for people."""

    type_id: int
    config: int
    name: str


def try_open(source: Source, cpu: int) -> int:
    """Open the event on one CPU and close it again: 0, or the errno."""
    fd = int(lib.perf_open(source.type_id, source.config, cpu, -1))
    if fd < 0:
        return -fd
    os.close(fd)
    return 0


class PerfGroups:
    """Open groups: row ``i`` counts ``sources[i]`` on ``cpus[i]``; None in a row of sources leaves its cell missing.

    A CPU that cannot be counted (offline, counters in use) gives RAW_MISSING, and ``errors`` has why; running out of
    descriptors is a PmuError.
    """

    def __init__(self, cpus: Sequence[int], sources: Sequence[Sequence[Source | None]]) -> None:
        self._shape = (len(cpus), len(sources[0]) if sources else 0)
        wanted = sum(source is not None for row in sources for source in row)
        raise_descriptor_limit(wanted, f"counting {self._shape[1]} events on {len(cpus)} CPUs")
        self._descriptors: list[int] = []
        groups: list[_Group] = []
        try:
            for row, (cpu, row_sources) in enumerate(zip(cpus, sources, strict=True)):
                groups += self._open_cpu(row, cpu, row_sources)
        except BaseException:
            self.close()
            raise
        self._groups: Any = ffi.new("perf_group_t[]", len(groups))
        self._rows = [group.row for group in groups]
        for native, group in zip(self._groups, groups, strict=True):
            native.fd, native.row, native.error = group.fd, group.row, group.error
            native.n_events = len(group.columns)
            native.column[0 : len(group.columns)] = group.columns
            native.moved_ns = time.monotonic_ns()

    def sweep(self, out: type_i64) -> None:
        """Fill ``out`` ``[n_cpus, n_events]``; see ``pmu.ports.CounterSet``."""
        if out.shape != self._shape or not out.flags.c_contiguous:
            raise ValueError(f"expected a contiguous array of shape {self._shape}, got {out.shape}")
        cells = ffi.from_buffer("int64_t[]", out, require_writable=True)
        lib.sweep_groups(self._groups, len(self._rows), cells, *self._shape, RAW_MISSING)

    def errors(self) -> list[int]:
        """Per row, the errno of the last sweep (of opening, where that failed); 0 where all its events gave values."""
        errors = [0] * self._shape[0]
        for row, group in zip(self._rows, self._groups, strict=True):
            errors[row] = errors[row] or int(group.error)
        return errors

    def close(self) -> None:
        """Close every descriptor; sweeps afterwards give RAW_MISSING."""
        for group in getattr(self, "_groups", ()):
            group.fd, group.error = -1, errno.EBADF
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []

    def _open_cpu(self, row: int, cpu: int, sources: Sequence[Source | None]) -> list[_Group]:
        groups: list[_Group] = []
        for column, source in enumerate(sources):
            if source is None:
                continue
            group = next((g for g in groups if g.fd >= 0 and len(g.columns) < lib.GROUP_EVENTS), None)
            fd = self._open(source, cpu, group.fd) if group else -errno.EINVAL
            if group and fd >= 0:
                group.columns.append(column)
                continue
            if fd == -errno.EINVAL:
                fd = self._open(source, cpu, -1)
            groups.append(_Group(max(fd, -1), row, max(-fd, 0), [column]))
        for group in groups:
            if group.fd >= 0:
                group.error = -int(lib.perf_enable(group.fd))
        return groups

    def _open(self, source: Source, cpu: int, leader: int) -> int:
        fd = int(lib.perf_open(source.type_id, source.config, cpu, leader))
        if fd in (-errno.EMFILE, -errno.ENFILE):
            raise PmuError(
                f"opening {source.name} on CPU {cpu}: {os.strerror(-fd)}; {len(self._descriptors)} counters are open, "
                "raise LimitNOFILE of the service (or fs.file-max)"
            )
        if fd >= 0:
            self._descriptors.append(fd)
        return fd


@dataclass(slots=True)
class _Group:
    """A group while it is being opened."""

    fd: int
    row: int
    error: int
    columns: list[int]
