"""The mount namespace in which the twin's files lie over the host's.

The order is what makes it safe. The namespace is made private *before* any mount, so nothing spreads to the host.
sysfs refuses mkdir, so an overlay with a writable upper layer in memory goes over /sys first, and the twin's
directories are bound into that; a program that writes to any other file of /sys then writes to its own copy, not to
the kernel. The overlay hides what was mounted below /sys (cgroups, tracefs); these mounts are moved back onto it.

Nothing is unmounted at the end: the namespace goes with its last process, and whoever outlives the twin's server
in it finds ENOTCONN, never the host's files behind a mount that was taken away.
Source: mount_namespaces(7), Linux Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from twin import procfs
from twin._kernel import ffi, lib
from twin.errors import TwinError

RUN_DIRECTORY = "/run/nodectl-twin"
"""On the host: one file per run. In a run's namespace: the run's own directory, in memory."""

CONTROL = f"{RUN_DIRECTORY}/control"
GPUS = f"{RUN_DIRECTORY}/gpus"
TREE = f"{RUN_DIRECTORY}/tree"
_LAYERS = f"{RUN_DIRECTORY}/layers"

MASKED = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/cpu/*/msr", "/dev/cpu/*/cpuid", "/dev/isst_interface")
"""Device nodes through which programs reach real clocks, limits and GPUs past all files."""

NVML_NAME = "libnvidia-ml.so.1"
_NVML_PLACES = (
    "/usr/lib*",
    "/usr/lib/*-linux-gnu*",
    "/usr/lib/*-linux-gnu/nvidia/*",
    "/usr/local/nvidia/lib*",
    "/lib*",
)

_MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_MOVE, _MS_REC, _MS_PRIVATE = 0x4, 0x20, 0x1000, 0x2000, 0x4000, 0x40000
"""linux/mount.h; Python has no names for them."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

    number: int
    parent: int
    point: str
    type: str
    source: str


def mounts(path: str = "/proc/self/mountinfo") -> Iterator[Mount]:
    """The mounts of a process, outermost first."""
    with open(path) as lines:
        for line in lines:
            fields, _, rest = line.partition(" - ")
            words, (kind, source, *_) = fields.split(), rest.split()
            point = words[4].encode().decode("unicode_escape")
            yield Mount(int(words[0]), int(words[1]), point, kind, source)


def enter() -> None:
    """Leave the host's namespace for a private copy and give it a run directory of its own."""
    if error := lib.namespace_of_mounts():
        raise TwinError(f"no mount namespace of its own: {os.strerror(-error)}; serving a twin needs CAP_SYS_ADMIN")
    mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    mount("nodectl-twin", RUN_DIRECTORY, "tmpfs", options="mode=0755")
    os.makedirs(TREE)


def cover_sysfs(roots: Iterable[str]) -> None:
    """Lay the twin's directories, served at ``TREE``, over those of /sys."""
    upper, work = f"{_LAYERS}/upper", f"{_LAYERS}/work"
    os.makedirs(upper)
    os.makedirs(work)
    for root in roots:
        if not os.path.isdir(root):
            os.makedirs(upper + root.removeprefix("/sys"))
    kept = list(_keep_submounts())
    mount("nodectl-twin", "/sys", "overlay", options=f"lowerdir=/sys,upperdir={upper},workdir={work}")
    for place, point in kept:
        if os.path.isdir(point):
            mount(place, point, flags=_MS_MOVE)
    for root in roots:
        mount(TREE + root, root, flags=_MS_BIND)


def cover_proc() -> None:
    """Lay the twin's files of /proc over the host's."""
    for path in procfs.FILES:
        mount(TREE + path, path, flags=_MS_BIND)


def _keep_submounts() -> Iterator[tuple[str, str]]:
    """Bind what is mounted directly on /sys to a safe place: pairs of that place and the mount point."""
    found = list(mounts())
    sysfs = {each.number for each in found if each.point == "/sys"}
    for index, each in enumerate(found):
        if each.parent in sysfs and each.point.startswith("/sys/"):
            place = f"{_LAYERS}/kept-{index}"
            os.makedirs(place)
            mount(each.point, place, flags=_MS_BIND | _MS_REC)
            yield place, each.point


def cover_nvml(library: str) -> None:
    """Put the twin's library in the place of each installed real one, for programs that load it by its full path."""
    places = {os.path.realpath(found) for place in _NVML_PLACES for found in glob.glob(f"{place}/{NVML_NAME}")}
    for place in places:
        if not os.path.samefile(place, library):
            mount(library, place, flags=_MS_BIND)


def devices(patterns: Iterable[str] = MASKED) -> list[str]:
    """The device nodes that exist here and are to be masked."""
    return [path for pattern in patterns for path in sorted(glob.glob(pattern)) if not os.path.isdir(path)]


def mask_devices(paths: Iterable[str]) -> None:
    """Make device nodes unusable, for root too: bound over themselves without device rights, open(2) gives EACCES."""
    for path in paths:
        mount(path, path, flags=_MS_BIND)
        mount("none", path, flags=_MS_REMOUNT | _MS_BIND | _MS_NODEV)


def abort_fuse(devices: Iterable[int]) -> None:
    """Cut FUSE connections, known by the ``st_dev`` of their file systems; those that are gone are passed over."""
    place = f"{RUN_DIRECTORY}/connections"
    if not os.path.isdir(place):
        os.makedirs(place)
        mount("none", place, "fusectl")
    for device in devices:
        with contextlib.suppress(FileNotFoundError), open(f"{place}/{os.minor(device)}/abort", "w") as abort:
            abort.write("1")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); TwinError with the reason."""
    error = lib.mount_at(
        source.encode(), target.encode(), kind.encode() or ffi.NULL, flags, options.encode() or ffi.NULL
    )
    if error:
        hint = " (is the kernel built with overlayfs?)" if kind == "overlay" and error == -errno.ENODEV else ""
        raise TwinError(f"cannot mount {kind or 'a bind'} on {target}: {os.strerror(-error)}{hint}")
