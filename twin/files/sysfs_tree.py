"""The /sys of the emulated node and its files of /proc, with the contents and write semantics of the machine's kernel.

The same tree serves ``pmu.ports.Files`` in process (twin/in_process_node.py) and a FUSE server. One dictionary maps
paths to attributes. A read computes the value from the twin at that moment, so no value is stale. Faults are applied
here, between the attribute and its reader or writer.

Source of the semantics: Linux 6.x, fs/kernfs/file.c, drivers/cpufreq, drivers/powercap, drivers/hwmon,
arch/x86/events and Documentation/ABI/testing; each sibling file names its own.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping

from twin.faults.active import Effect, Faults, type_standing
from twin.files import (
    procfs,
    sysfs_cache,
    sysfs_cpu,
    sysfs_cpufreq,
    sysfs_cpuidle,
    sysfs_hwmon,
    sysfs_numa,
    sysfs_pci,
    sysfs_perf,
    sysfs_powercap,
    sysfs_thermal,
    sysfs_uncore,
)
from twin.files.sysfs_nodes import PAGE_BYTES, Attribute, Nodes, as_string
from twin.physics.model import Twin
from twin.physics.responsiveness import write_delay_s

ROOTS = (
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/devices/virtual/powercap",
    "/sys/devices/virtual/thermal",
    "/sys/bus/cpu",
    "/sys/bus/node",
    "/sys/class/powercap",
    "/sys/class/thermal",
    "/sys/class/hwmon",
    "/sys/bus/event_source/devices",
)
"""Directories of every twin. Machines add the folders of their own devices."""


class SysfsTree:
    """Files, directories and links below /sys, and ``procfs.FILES``, by absolute path.

    ``roots`` are the directories to mount; all other nodes are below one of them. Faults of the machine file are used
    when ``faults`` is None; ``host_stat`` is for ``procfs``. Errors are OSError with the errno of the real kernel. The
    tree stores users' requests, so a twin keeps one tree for its life.
    """

    def __init__(self, twin: Twin, faults: Faults | None = None, host_stat: Callable[[], str] | None = None) -> None:
        self.twin = twin
        self.faults = Faults(twin) if faults is None else faults
        self._nodes = nodes = Nodes()
        for root in ROOTS:
            nodes.directory(root)
        sysfs_cpu.add(nodes, twin.machine)
        sysfs_cache.add(nodes, twin.machine)
        sysfs_numa.add(nodes, twin.machine)
        sysfs_cpuidle.add(nodes, twin)
        sysfs_thermal.add(nodes, twin)
        self.policies = sysfs_cpufreq.add(nodes, twin)
        sysfs_uncore.add(nodes, twin)
        procfs.add(nodes, twin, self.policies, host_stat)
        self.zones = sysfs_powercap.add(nodes, twin)
        device_roots = [*sysfs_hwmon.add(nodes, twin), *sysfs_perf.add(nodes, twin), *sysfs_pci.add(nodes, twin)]
        self._storing = threading.Lock()  # one store at a time, as with the kernel's locks
        self.delayed_s = 0.0  # the sum of delays of slow files so far, in virtual time
        self.roots: tuple[str, ...] = (*ROOTS, *device_roots)
        self._found = dict(nodes.files)  # every name by which a file was accessed
        self.faults.know_files(nodes.names)

    def kind(self, path: str) -> str | None:
        """ "dir", "file" or "link" without following a last link; None if there is no such node."""
        try:
            path = self._nodes.real_parent(path)
        except OSError:
            return None
        if path in self._nodes.links or path in self._nodes.children:
            if self._is_removed(path):
                return None
            return "link" if path in self._nodes.links else "dir"
        attribute = self._nodes.files.get(path)
        return "file" if attribute is not None and not self.faults.is_absent(self._standing(attribute)) else None

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, in the order they were made."""
        real = self.realpath(path)
        if real not in self._nodes.children or self._is_removed(real):
            raise _error(errno.ENOTDIR if real in self._nodes.files else errno.ENOENT, path)
        return [name for name in self._nodes.children[real] if self.kind(f"{real.rstrip('/')}/{name}") is not None]

    def readlink(self, path: str) -> str:
        """The target of the link, relative to its directory."""
        real = self._nodes.real_parent(path)
        if real not in self._nodes.links:
            raise _error(errno.EINVAL if self.kind(path) else errno.ENOENT, path)
        return self._nodes.links[real]

    def mode(self, path: str) -> int:
        """Permission bits of a file (links are not followed: 0777) or directory."""
        match self.kind(path):
            case "dir":
                return 0o755
            case "link":
                return 0o777
            case "file":
                return self._nodes.files[self._nodes.real_parent(path)].mode
        raise _error(errno.ENOENT, path)

    def realpath(self, path: str) -> str:
        """``path`` with all links followed; the last component need not exist."""
        return self._nodes.real(path)

    def find(self, path: str) -> Attribute:
        """The file at ``path``, links followed."""
        attribute = self._found.get(path)
        if attribute is None:
            real = self.realpath(path)
            attribute = self._nodes.files.get(real)
            if attribute is None:
                raise _error(errno.EISDIR if real in self._nodes.children else errno.ENOENT, path)
            self._found[path] = attribute
        return attribute

    def read(self, path: str) -> bytes:
        """The file's whole content, computed now."""
        return self.show(self.find(path)).encode()

    def show(self, attribute: Attribute) -> str:
        """The present text of this attribute."""
        if attribute.show is None:
            raise _error(errno.EACCES, attribute.path)
        standing = self._standing(attribute)
        try:
            if not standing:
                return attribute.show()
            self.delayed_s += self.faults.delay_s(standing)
            return self.faults.shown(standing, attribute.path, attribute.show, attribute.wraps_at)
        except OSError as error:
            raise _error(error.errno or errno.EIO, attribute.path) from None

    def write(self, path: str, data: bytes) -> int:
        """One ``write(2)``: returns the bytes written, or raises the OSError of the store function.

        A file without write permission cannot be opened for writing: EACCES, for root too, as in sysfs
        (fs/kernfs/file.c, KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK).
        """
        attribute = self.find(path)
        if attribute.store is None:
            raise _error(errno.EACCES, path)
        if not data:
            return 0
        standing = self._standing(attribute)
        effect = Effect.FULL
        self.delayed_s += self.write_delay_s
        if standing:
            self.delayed_s += self.faults.delay_s(standing)
            effect = self.faults.written(standing, attribute.path)
        if effect is not Effect.DROPPED:
            try:
                with self._storing:
                    attribute.store(as_string(data), effect is Effect.FULL)
            except OSError as error:
                raise _error(error.errno or errno.EIO, path) from None
        return min(len(data), PAGE_BYTES)

    def names(self) -> Mapping[str, str]:
        """Every name that a file has, also through links to its directory: name to path without links."""
        return self._nodes.names()

    def delay_s(self, path: str) -> float:
        """Delay of an access to this file now, in seconds (fault ``slow``); the server of the file waits."""
        try:
            standing = self._standing(self.find(path))
        except OSError:
            return 0.0
        return self.faults.delay_s(standing) if standing else 0.0

    @property
    def write_delay_s(self) -> float:
        """Delay of any write now, because the node hangs; the server of the files waits."""
        return write_delay_s(self.twin)

    def act(self) -> None:
        """Apply the faults that are due by now (``Faults.act``)."""
        self.faults.act(self.write)

    def _is_removed(self, path: str) -> bool:
        """Whether a fault has removed this directory, or what this link points to."""
        if not self.faults.removes_files:
            return False
        return self.faults.is_removed([path, *self._nodes.names_of_directory(path)])

    def _standing(self, attribute: Attribute) -> type_standing:
        """Faults on this file; searched again after a fault was added or removed."""
        if attribute.standing_generation != self.faults.generation:
            generation = self.faults.generation
            attribute.standing = self.faults.on_file(self._nodes.names_of(attribute.path))
            attribute.standing_generation = generation
        return attribute.standing


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
