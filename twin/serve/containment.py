"""The proof, made in the command's own process just before it starts, that what it will reach is the twin's.

On a real node a mount that failed, or a library found in another place, would let a test write real clocks and
limits. So nothing is taken from the launcher's good intentions: each door is tried the way a program would try it,
and one door that leads elsewhere ends the run with status 2 before the command has executed an instruction.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping

from twin import procfs
from twin._kernel import lib
from twin.errors import TwinError
from twin.serve import namespace

FUSE_SUPER_MAGIC = 0x65735546
"""statfs f_type of every FUSE file system (linux/magic.h)."""

GPU_MAGIC = 0x4E54474E
"""TWIN_GPU_MAGIC in twin/csrc/twin_gpu.h."""

KNOB_PLACES = ("/sys/devices/system/cpu", "/sys/class/powercap", "/sys/devices/virtual/powercap", "/sys/class/hwmon")
"""Where real knobs and sensors would be: these must be the twin's whatever the machine has, as procfs.FILES must."""

_LOAD_NVML = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" + sys.argv[1][:13] in line}
print(*mapped, sep="\\n")
"""


def prove(tree_device: int, roots: Iterable[str], library: str, environment: Mapping[str, str]) -> None:
    """TwinError naming the first door that does not lead to the twin; ``tree_device`` is its tree's ``st_dev``."""
    for path in (*KNOB_PLACES, *procfs.FILES, *roots):
        _prove_file_system(path, tree_device)
    _prove_gpu_state()
    _prove_library(library, environment)
    for path in namespace.devices():
        _prove_masked(path)


def prove_counters(counters_device: int) -> None:
    """TwinError unless perf_event_open(2) leads to the twin; to be called behind the seccomp filter."""
    fd = lib.perf_probe()
    if fd < 0:
        raise TwinError(f"perf_event_open is not the twin's: {os.strerror(-fd)}")
    try:
        if os.fstat(fd).st_dev != counters_device:
            raise TwinError("perf_event_open opens a counter of the real kernel")
    finally:
        os.close(fd)


def _prove_file_system(path: str, tree_device: int) -> None:
    kind = lib.filesystem_type(path.encode())
    if kind < 0:
        raise TwinError(f"{path} of the twin cannot be reached: {os.strerror(-kind)}")
    if kind != FUSE_SUPER_MAGIC or os.stat(path).st_dev != tree_device:
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
    """Load NVML by its plain name in a fresh process: the dynamic linker reads LD_LIBRARY_PATH only at start."""
    probe = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LOAD_NVML, namespace.NVML_NAME],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    found = probe.stdout.split()
    if probe.returncode or not found:
        raise TwinError(f"{namespace.NVML_NAME} does not load: {probe.stderr.strip().rpartition(chr(10))[2]}")
    for path in found:
        if not os.path.samefile(path, library):
            raise TwinError(f"{namespace.NVML_NAME} loads {path}, not the twin's {library}")


def _prove_masked(path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return
    raise TwinError(f"the real device {path} can still be opened")
