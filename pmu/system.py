"""The ports of the machine that we run on: its files, its counters, its NVML and CLOCK_MONOTONIC.

``root`` puts a directory before every path, so that the same code can read a recorded or artificial tree; counters and
GPUs are then still the real machine's.
"""

from __future__ import annotations

import errno
import importlib
import os
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from pmu._native import lib
from pmu.driver_values import ODD_ANSWERS
from pmu.instruments.counters import PerfCounters
from pmu.instruments.kept import NativeIntegers
from pmu.ports import Ports

CPU = "/sys/devices/system/cpu"
LOCK_DIRECTORY = "/run/nodectl"

MOST_SESSIONS = 100_000
"""Ours: each GPU's knob begins NVML once more, and so does each look at one that is lost."""

CHUNK = 65536
"""More than any sysfs file (one page); /proc/stat of a large node takes several."""


def system_ports(root: str = "") -> Ports:
    """The ports of this machine."""
    files = OsFiles(root)
    nvml, nvml_why = load_nvml()
    clock, lock_path = MonotonicClock(), "" if root else node_lock_path()
    return Ports(files, PerfCounters(files), nvml, nvml_why, clock, lock_path, load_nvml)


def begin_again(ports: Ports, root: str = "") -> Ports:
    """The ports of this machine for a new layout: counters are tried again, and NVML lists its cards again, which it
    does only after every user in this process has left it. No handle of before may be used afterwards."""
    if ports.nvml_again is not load_nvml:
        return ports
    end_nvml()
    nvml, nvml_why = load_nvml()
    return replace(ports, counters=PerfCounters(OsFiles(root)), nvml=nvml, nvml_why=nvml_why)


def node_lock_path() -> str:
    """The lock of the node whose clocks are in /sys here: one for the real sysfs, one for each emulated tree over it.

    It is in /run, where only root can make files: a lock that any user could take would keep every agent from starting.
    (A lock on sysfs itself would not work either: each network namespace has its own sysfs, and so may a service.)
    """
    try:
        device = os.stat(CPU).st_dev
    except OSError:
        return f"{LOCK_DIRECTORY}/lock"
    number = f"{os.major(device)}:{os.minor(device)}"
    kind = _file_system(number)
    return f"{LOCK_DIRECTORY}/lock" if kind in ("sysfs", "") else f"{LOCK_DIRECTORY}/lock-{kind}-{number}"


def _file_system(device: str) -> str:
    """The type of the mounted file system with that device number, or "" (proc_pid_mountinfo(5))."""
    try:
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:  # paths have any bytes
            mounts = [line.split() for line in file]
    except OSError:
        return ""
    return next((fields[fields.index("-") + 1] for fields in mounts if fields[2] == device), "")


class OsFiles:
    """Files of the kernel, or of a tree below ``root``. Errors are OSError with errno."""

    def __init__(self, root: str = "") -> None:
        self._root = os.path.realpath(root) if root else ""

    def read(self, path: str) -> str:
        """The whole text."""
        fd = os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read_all(fd).decode(errors="replace")
        finally:
            os.close(fd)

    def write(self, path: str, text: str) -> None:
        """Replace the text in one write(2), as sysfs wants it."""
        data = text.encode()
        fd = os.open(self._root + path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            taken = os.write(fd, data)
        finally:
            os.close(fd)
        if taken != len(data):
            raise OSError(errno.EIO, f"took {taken} of {len(data)} bytes", path)

    def keep(self, path: str) -> OsKeptFile:
        """Keep the file open."""
        return OsKeptFile(os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC))

    def keep_integers(self, paths: Sequence[str]) -> NativeIntegers:
        """Keep many files with one number each; see ``pmu.instruments.kept``."""
        return NativeIntegers([self._root + path for path in paths])

    def listdir(self, path: str) -> list[str]:
        """Names in a directory."""
        return os.listdir(self._root + path)

    def exists(self, path: str) -> bool:
        """Whether anything is there."""
        return os.path.exists(self._root + path)

    def writable(self, path: str) -> bool:
        """Whether this process may write it. sysfs denies a file without write permission to root as well."""
        try:
            mode = os.stat(self._root + path).st_mode
        except OSError:
            return False
        return bool(mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(self._root + path, os.W_OK)

    def realpath(self, path: str) -> str:
        """The path with links followed, without the root."""
        return os.path.realpath(self._root + path).removeprefix(self._root)


class OsKeptFile:
    """An open descriptor that is read from its start each time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self) -> bytes:
        """The whole content now."""
        return _read_all(self._fd)

    def close(self) -> None:
        """Close the descriptor; reading afterwards is an OSError."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MonotonicClock:
    """CLOCK_MONOTONIC."""

    def now_ns(self) -> int:
        """Nanoseconds since some start."""
        return time.monotonic_ns()

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep to an absolute instant, so that time spent elsewhere does not add up; signal handlers run meanwhile."""
        while lib.sleep_until(deadline_ns) == errno.EINTR:
            continue  # back in Python the handler runs, and may raise; then on to the same deadline


def load_nvml() -> tuple[Any | None, str]:
    """The ``pynvml`` module with NVML initialised, or None and the reason."""
    try:
        pynvml = _import_pynvml()
    except ImportError:
        return None, "no NVML binding: the package nvidia-ml-py is not installed (pip install 'nodectl[nvidia]')"
    try:
        pynvml.nvmlInit()
    except ODD_ANSWERS as error:
        return None, f"NVML does not start: {error}"
    except pynvml.NVMLError as error:
        if getattr(error, "value", 0) == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return None, "no NVIDIA driver: libnvidia-ml.so.1 is not found"
        return None, f"NVML does not start: {error}"
    return pynvml, ""


def _import_pynvml() -> Any:
    """pynvml imports ``ctypes.util`` for a function that it never calls. With it come tempfile, shutil and two
    compressors, 0.9 MB that an agent would have for good; so that module is loaded when the function is called."""
    name = "ctypes.util"
    if name in sys.modules:
        return importlib.import_module("pynvml")
    sys.modules[name] = later = ModuleType(name)
    later.__dict__["find_library"] = lambda library: importlib.import_module(name).find_library(library)
    try:
        return importlib.import_module("pynvml")
    finally:
        del sys.modules[name]


def end_nvml() -> None:
    """Leave NVML as often as it was begun in this process."""
    try:
        import pynvml
    except ImportError:
        return
    for _ in range(MOST_SESSIONS):
        try:
            pynvml.nvmlShutdown()
        except (pynvml.NVMLError, *ODD_ANSWERS):
            return


def _read_all(fd: int) -> bytes:
    data = chunk = os.pread(fd, CHUNK, 0)
    while len(chunk) == CHUNK:
        chunk = os.pread(fd, CHUNK, len(data))
        data += chunk
    return data
