"""The emulated node behind the four ports of ``pmu.ports``, in this process, in virtual or real time.

The real readers, policies and knobs run on it unchanged. Files come from the tree of ``twin.files.sysfs_tree``,
counters from the model, NVML is the real ``pynvml`` on the twin's own ``libnvidia-ml.so.1``, and sleeping advances the
model. So ten minutes of a node pass in seconds, and equal runs give equal bits. In real time (``RealTimeClock``) each
reading of the clock advances the model to CLOCK_MONOTONIC.

The NVML library has one state per process, as NVIDIA's has. So only one twin's GPUs can be attached at a time;
``InProcess`` is a context manager that detaches them at its end.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
import weakref
from types import TracebackType
from typing import Any

import numpy as np

from pmu.ports import Ports
from pmu.readings import RAW_MISSING, PmuError, type_i64
from twin.errors import TwinError
from twin.faults.active import Faults
from twin.files.sysfs_nodes import Attribute
from twin.files.sysfs_tree import SysfsTree
from twin.nvml.build import NvmlBuildError, library_path
from twin.physics.model import Twin

NVML_SONAME = "libnvidia-ml.so.1"


class InProcess:
    """One twin with its ``ports``, and the ``tree`` and the ``faults`` behind them.

    If ``faults`` is None, those of the machine file apply. TwinError if another twin's GPUs are attached in this
    process.
    """

    def __init__(self, twin: Twin, faults: Faults | None = None, is_realtime: bool = False) -> None:
        self.twin = twin
        self.tree = SysfsTree(twin, faults)
        self.faults = self.tree.faults
        self.faults.is_virtual = not is_realtime
        nvml, why = _attach_gpus(twin)
        self.ports = Ports(
            files=TreeFiles(self.tree),
            counters=ModelCounters(twin, self.faults),
            nvml=nvml,
            nvml_why=why,
            clock=(RealTimeClock if is_realtime else VirtualClock)(twin, self.tree),
        )

    def close(self) -> None:
        """Detach the GPUs, so that another twin's can be attached."""
        _detach_gpus(self.twin)

    def __enter__(self) -> InProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def ports(twin: Twin, faults: Faults | None = None) -> Ports:
    """The ports of ``twin``. Its GPUs stay attached until ``detach(twin)`` or until the twin is deleted."""
    return InProcess(twin, faults).ports


def detach(twin: Twin) -> None:
    """Detach the GPUs of ``twin``, if they are attached."""
    _detach_gpus(twin)


class VirtualClock:
    """The twin's virtual time; sleeping advances it. Faults are applied at their exact times meanwhile."""

    def __init__(self, twin: Twin, tree: SysfsTree) -> None:
        self._twin = twin
        self._tree = tree

    def now_ns(self) -> int:
        """The twin's CLOCK_MONOTONIC."""
        return self._twin.time_ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Advance the model to the first of its 50 us steps at or after ``deadline_ns``."""
        self._tree.act()
        while (left_ns := deadline_ns - self._twin.time_ns) > 0:
            age_ns = self._twin.age_ns
            stop_ns = self._tree.faults.next_ns(age_ns + left_ns)
            self._twin.advance((stop_ns - age_ns) / 1e9)
            self._tree.act()


class RealTimeClock(VirtualClock):
    """The twin's time, which follows CLOCK_MONOTONIC from now on. While the process does not run, the node goes on."""

    def __init__(self, twin: Twin, tree: SysfsTree) -> None:
        super().__init__(twin, tree)
        self._offset_ns = twin.time_ns - time.monotonic_ns()

    def now_ns(self) -> int:
        """Advances the model to now and returns the twin's CLOCK_MONOTONIC."""
        super().sleep_until_ns(time.monotonic_ns() + self._offset_ns)
        return super().now_ns()

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep; the model follows."""
        while (left_ns := deadline_ns - self.now_ns()) > 0:
            time.sleep(left_ns / 1e9)


class TreeFiles:
    """``pmu.ports.Files`` over the tree."""

    def __init__(self, tree: SysfsTree) -> None:
        self._tree = tree

    def read(self, path: str) -> str:
        """The whole content."""
        return self._tree.show(self._tree.find(path))

    def write(self, path: str, text: str) -> None:
        """One write(2) of the whole text."""
        self._tree.write(path, text.encode())

    def keep(self, path: str) -> KeptAttribute:
        """Open for repeated reading; OSError as open(2) gives it."""
        attribute = self._tree.find(path)
        if self._tree.kind(attribute.path) is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if attribute.show is None:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return KeptAttribute(self._tree, attribute)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory."""
        return self._tree.listdir(path)

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory, links followed."""
        try:
            return self._tree.kind(self._tree.realpath(path)) is not None
        except OSError:
            return False

    def writable(self, path: str) -> bool:
        """Whether there is a file that its owner may write."""
        try:
            return self.exists(path) and bool(self._tree.find(path).mode & 0o222)
        except OSError:
            return False

    def realpath(self, path: str) -> str:
        """``path`` with all links followed."""
        return self._tree.realpath(path)


class KeptAttribute:
    """An open attribute. When its device is removed, reading it fails with ENODEV (kernfs_seq_start)."""

    def __init__(self, tree: SysfsTree, attribute: Attribute) -> None:
        self._tree = tree
        self._attribute = attribute

    def read(self) -> bytes:
        """The content now."""
        try:
            return self._tree.show(self._attribute).encode()
        except FileNotFoundError:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), self._attribute.path) from None

    def close(self) -> None:
        """Does nothing: this owns no descriptor."""


class ModelCounters:
    """``pmu.ports.Counters`` over the model: only the machine's events exist."""

    def __init__(self, twin: Twin, faults: Faults) -> None:
        self._twin = twin
        self._faults = faults

    def why_not(self, event: str) -> str | None:
        """None if the event can be counted, else the error of perf_event_open."""
        machine = self._twin.machine
        if event not in machine.events:
            return f"this processor has no such event: perf_event_open({event}) gives ENOENT"
        numbers = [self._faults.counter_errno(event, cpu) for cpu in range(machine.cpus)]
        if not all(numbers):
            return None
        return f"perf_event_open({event}) gives {errno.errorcode[numbers[0]]}: {os.strerror(numbers[0])}"

    def how(self, event: str) -> str:
        """The PMU that counts an event: for reference cycles it may be the MSR PMU."""
        from_msr = event == "reference-cycles" and self._twin.machine.reference_source == "msr"
        return "msr/mperf/" if from_msr else event

    def open(self, cpus: tuple[int, ...], events: tuple[str, ...]) -> ModelCounterSet:
        """Open one group per CPU; PmuError if an event cannot be counted at all."""
        for event in events:
            if why := self.why_not(event):
                raise PmuError(f"cannot count {event}: {why}")
        return ModelCounterSet(self._twin, self._faults, cpus, events)


class ModelCounterSet:
    """``pmu.ports.CounterSet``: counts since it was opened, as a new perf event starts from zero."""

    def __init__(self, twin: Twin, faults: Faults, cpus: tuple[int, ...], events: tuple[str, ...]) -> None:
        self._twin = twin
        self._faults = faults
        self._cpus = cpus
        self._events = events
        there = [0 <= cpu < twin.machine.cpus for cpu in cpus]
        self._rows = np.asarray([cpu if is_there else 0 for cpu, is_there in zip(cpus, there, strict=True)], np.intp)
        self._first = self._counts()
        self._refused = np.array(
            [
                [not is_there or faults.counter_errno(event, cpu) != 0 for event in events]
                for cpu, is_there in zip(cpus, there, strict=True)
            ],
            dtype=bool,
        )

    def sweep(self, out: type_i64) -> None:
        """Fill ``out`` ``[n_cpus, n_events]``; RAW_MISSING if a counter could not be opened or has no value."""
        out[...] = self._counts() - self._first
        self._faults.spoil(self._events, self._cpus, out)
        if self._refused.any():
            out[self._refused] = RAW_MISSING

    def close(self) -> None:
        """Does nothing: this owns no descriptor."""

    def _counts(self) -> type_i64:
        return self._twin.counters(self._events)[self._rows]


# ---- one NVML library per process ----------------------------------------------------------------------------------

_attached: weakref.ref[Twin] | None = None
_release: weakref.finalize[Any, Twin] | None = None


def _attach_gpus(twin: Twin) -> tuple[Any | None, str]:
    """pynvml on the GPUs of ``twin``, or None and the reason."""
    global _attached, _release
    if not twin.machine.gpus:
        return None, f"machine {twin.machine.name} has no GPU"
    try:
        import pynvml
    except ImportError:
        return None, "pynvml is missing: install nvidia-ml-py"
    holder = _attached() if _attached is not None else None
    if holder is not None and holder is not twin:
        raise TwinError(
            f"the GPUs of another twin ({holder.machine.name}) are attached in this process, which has one NVML "
            "library: close its InProcess, or detach(twin), first"
        )
    library = _load(pynvml)
    library.twin_nvml_attach.argtypes = [ctypes.c_void_p]
    library.twin_nvml_attach(ctypes.c_void_p(twin.gpus_address))
    if holder is None:
        _attached = weakref.ref(twin)
        _release = weakref.finalize(twin, library.twin_nvml_attach, None)  # the library must not outlive the memory
    return pynvml, ""


def _detach_gpus(twin: Twin) -> None:
    global _attached, _release
    if _attached is not None and _attached() is twin and _release is not None:
        _release()
        _attached = _release = None


def _load(pynvml: Any) -> ctypes.CDLL:
    """Load our library under NVML's name. TwinError if a real driver's library is loaded already, which would get our
    writes."""
    try:
        ours = ctypes.CDLL(str(library_path()))
    except NvmlBuildError as error:
        raise TwinError(str(error)) from None
    # pynvml opens the library by its bare name, for which the loader returns the first library loaded under it
    by_name = ctypes.CDLL(NVML_SONAME)
    loaded = getattr(pynvml, "nvmlLib", None)
    if by_name._handle != ours._handle or (loaded is not None and loaded._handle != ours._handle):
        raise TwinError(
            f"another {NVML_SONAME} is already loaded in this process; an emulated node needs a process of its own"
        )
    return ours
