"""The proof, in the command's own process just before it starts, that it will reach only the twin.

On a real node a failed mount, or a library found in another place, would let a test write real clocks and limits. So
the launcher's work is not trusted: each escape path is tried as a program would try it. If one leads to the host, the
run ends with status 2 before the command has executed an instruction.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from twin._serve import lib
from twin.errors import TwinError
from twin.files import procfs
from twin.nvml import loader_cache
from twin.serve import mounts, namespace
from twin.serve.node_server import Ready

GPU_MAGIC = 0x4E54474E
"""TWIN_GPU_MAGIC in twin/csrc/twin_gpu.h."""

KNOB_PLACES = ("/sys/devices/system/cpu", "/sys/class/powercap", "/sys/devices/virtual/powercap", "/sys/class/hwmon")
"""Places of real knobs and sensors. On every machine they must be the twin's, as procfs.FILES must."""

FIRST_PROCESS = "nodectl-twin-1"
"""Name of the first process of a run, the parent of all processes visible in it."""

_SYSFS_MAGIC, _PROC_MAGIC = 0x62656572, 0x9FA0
_MSR = os.makedev(202, 0)
"""/dev/cpu/0/msr, as an example of a device that reaches hardware."""

_PROBE = f"{namespace.RUN_DIRECTORY}/probe"

_LOAD_NVML = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" + sys.argv[1][:13] in line}
print(*mapped, sep="\\n")
"""


def prove(ready: Ready, library: str, environment: Mapping[str, str]) -> None:
    """TwinError naming the first escape path that is open. Call it after the seccomp filter is installed."""
    _prove_counters(ready.counters_device)
    for path in (*KNOB_PLACES, *procfs.FILES, *ready.settings, *ready.roots):
        _prove_file_system(path, ready.tree_device)
    _prove_mounts()
    _prove_processes()
    _prove_gpu_state()
    for each in (environment, {}):  # also for programs that are started without environment
        _prove_library(library, each)
    _prove_new_mounts(ready.tree_device)
    _prove_no_devices()
    _prove_registers()


def close_host_directories() -> None:
    """Keep descriptors of directories from the command, since they would lead to the host's files.

    TwinError if the command would inherit an open file of the host's sysfs, or a directory of it as a standard file.
    """
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if not os.get_inheritable(fd) and fd > 2:
                continue
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                os.set_inheritable(fd, False)
        except OSError:
            continue  # the descriptor of the listing itself, or a standard file that is closed
        if lib.filesystem_type(f"/proc/self/fd/{fd}".encode()) == _SYSFS_MAGIC:
            raise TwinError(f"descriptor {fd} is open on the host's /sys; close it first")


def _prove_counters(counters_device: int) -> None:
    fd = lib.perf_probe()
    if fd < 0:
        raise TwinError(f"perf_event_open is not the twin's: {os.strerror(-fd)}")
    try:
        if os.fstat(fd).st_dev != counters_device:
            raise TwinError("perf_event_open opens a counter of the real kernel")
    finally:
        os.close(fd)


def _prove_mounts() -> None:
    for each in mounts.listed():
        if each.type in ("sysfs", "devtmpfs") and each.root not in namespace.EMPTY_OF_SYSFS:
            raise TwinError(f"the host's {each.type} is still mounted on {each.point}")


def _prove_processes() -> None:
    name = Path("/proc/1/comm").read_text(errors="replace").strip()
    if name != FIRST_PROCESS:
        raise TwinError(f"/proc shows the host's processes (the first is {name})")


def _prove_new_mounts(tree_device: int) -> None:
    """A program's own mounts of sysfs and procfs must also show the twin's files."""
    os.makedirs(_PROBE, exist_ok=True)
    for kind, file in (("sysfs", "devices/system/cpu"), ("proc", "cpuinfo")):
        mounts.mount("none", _PROBE, kind)
        try:
            if os.stat(f"{_PROBE}/{file}").st_dev != tree_device:
                raise TwinError(f"a new mount of {kind} shows the host's")
        finally:
            mounts.detach(_PROBE)
    os.rmdir(_PROBE)


def _prove_no_devices() -> None:
    try:
        os.mknod(_PROBE, stat.S_IFCHR | 0o600, _MSR)
    except OSError as error:
        if error.errno == errno.EPERM:
            return
        raise TwinError(f"{_PROBE}: {error.strerror}") from None
    os.unlink(_PROBE)
    raise TwinError("nodes of the host's devices can be made")


def _prove_registers() -> None:
    """Where a register is shown as a device, its file system must not open devices."""
    folder = "/dev/cpu/0"
    if not os.path.exists(folder):
        return
    is_ours = any(each.point == "/dev/cpu" and each.type == "fuse" for each in mounts.listed())
    if not is_ours or not os.statvfs(folder).f_flag & mounts.NODEV:
        raise TwinError(f"{folder} may open the registers of the host's CPUs")


def _prove_file_system(path: str, tree_device: int) -> None:
    kind = lib.filesystem_type(path.encode())
    if kind < 0:
        raise TwinError(f"{path} of the twin cannot be reached: {os.strerror(-kind)}")
    shown = _PROC_MAGIC if path.startswith("/proc") else _SYSFS_MAGIC
    if kind != shown or os.stat(path).st_dev != tree_device:
        raise TwinError(f"{path} is not the twin's (file system type {kind:#x})")


def _prove_gpu_state() -> None:
    try:
        with open(namespace.GPUS, "rb") as state:
            magic = struct.unpack("=I", state.read(4))[0]
    except (OSError, struct.error) as error:
        raise TwinError(f"{namespace.GPUS}: the state of the twin's GPUs cannot be read: {error}") from None
    if magic != GPU_MAGIC:
        raise TwinError(f"{namespace.GPUS} is not the state of the twin's GPUs (magic {magic:#x})")


def _prove_library(library: str, environment: Mapping[str, str]) -> None:
    """Load NVML by its plain name in a new process, since the dynamic linker reads LD_LIBRARY_PATH only at start."""
    probe = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LOAD_NVML, namespace.NVML_NAME],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    found = probe.stdout.split()
    if not environment and not os.path.exists(loader_cache.PLACE) and not found:
        return  # without a list of the loader's there is no default path to it
    if probe.returncode or not found:
        raise TwinError(f"{namespace.NVML_NAME} does not load: {probe.stderr.strip().rpartition(chr(10))[2]}")
    for path in found:
        if not os.path.samefile(path, library):
            raise TwinError(f"{namespace.NVML_NAME} loads {path}, not the twin's {library}")
