"""Kernels on this node's own CPUs: one process of our C (``csrc/``), with one pinned thread on each CPU.

    this process ── standard input, whose end stops the kernel ──► nodectl-kernels
                 ◄── one counter per thread, in shared memory ───

The process ends with its input, with this process, and by SIGTERM. It has a process group of its own: Ctrl-C on the
terminal is for this process, which then stops it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from calibration.kernels.port import FINEST_FLOPS_PER_BYTE, KERNELS, Kernel, KernelError, check_cpus, check_kernel
from pmu.cpulist import parse_list
from pmu.findings import read_or_none
from pmu.ports import Files

PROGRAM: Final = Path(__file__).parent / "nodectl-kernels"

OVER_CACHE: Final = 4
"""How many times its share of the last-level cache a thread's memory is, as STREAM requires of all arrays."""

WITHOUT_CACHE_B: Final = 256 << 20
"""Ours: where the kernel shows no cache, all threads together get so much times ``OVER_CACHE``."""

MOST_OF_MEMORY: Final = 0.5
"""Ours: the share of free memory that a kernel takes at most."""

_SLOT_B: Final = 128  # SLOT_BYTES of csrc/kernels.h
_READY_S: Final = 120.0  # ours: filling half of a large memory
_END_S: Final = 60.0  # ours: verifying it


class NativeKernels:
    """A ``KernelPort`` on the CPUs that this process may use. ``width``: vectors other than the widest (``widths()``).
    ``memory_b``: memory of a thread in place of ``OVER_CACHE`` times its share of the last-level cache."""

    is_emulated: Final = False

    def __init__(self, files: Files, width: str = "", memory_b: int | None = None, program: Path = PROGRAM) -> None:
        self._files, self._width, self._memory_b, self._program = files, width, memory_b, program
        self._process: subprocess.Popen[bytes] | None = None
        self._counters: mmap.mmap | None = None
        self._threads = 0
        self._units = 0.0
        self._line = ""  # the process's own, when it has failed

    def __del__(self) -> None:
        self._kill()  # subprocess keeps a process that lives, with its input open

    def widths(self) -> tuple[str, ...]:
        """The widths of vectors that this CPU has, the narrowest first."""
        try:
            done = subprocess.run([self._program, "widths"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise KernelError(f"{self._program}: cannot be run ({error}); `make setup` builds it") from None
        return tuple(done.stdout.split())

    @property
    def cpus(self) -> tuple[int, ...]:
        """Those that this process may use."""
        return tuple(sorted(os.sched_getaffinity(0)))

    def kernels(self) -> tuple[Kernel, ...]:
        """All of them."""
        return KERNELS

    def start(self, kernel: Kernel, cpus: Sequence[int]) -> None:
        """Start its process; returns when every thread has filled its memory and computes."""
        if self._process is not None:
            raise KernelError("a kernel runs already: stop it first")
        check_kernel(kernel)
        check_cpus(cpus, self.cpus)
        steps = round(kernel.flops_per_byte / FINEST_FLOPS_PER_BYTE)
        self._units, self._threads, self._line = 0.0, len(cpus), ""
        with contextlib.closing(_Shared(len(cpus) * _SLOT_B)) as shared:
            self._counters = mmap.mmap(shared.fd, len(cpus) * _SLOT_B, prot=mmap.PROT_READ)
            arguments = [kernel.name, self._width or "-", self._memory_of_thread(kernel, cpus), steps, shared.fd]
            self._process = self._begun([*map(str, (*arguments, os.getpid(), *cpus))], shared.fd)
        try:
            self._await_ready()
        except BaseException:
            self._kill()
            raise

    def units_done(self) -> float:
        """The sum of the threads' counters; an error if the process has ended by itself."""
        if self._process is None:
            return self._units
        if self._process.poll() is not None:
            raise KernelError(self._reason(self._process))
        self._units = max(self._units, self._count())
        return self._units

    def stop(self) -> None:
        """Close the process's input, and wait until each thread has verified its result."""
        process = self._process
        if process is None:
            return
        assert process.stdin
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            status = process.wait(_END_S)
        except BaseException as error:
            self._kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise KernelError(f"the kernel's process did not end within {_END_S:g} s and was killed") from None
            raise
        self._units = max(self._units, self._count())
        why = self._reason(process) if status else ""
        self._release()
        if why:
            raise KernelError(why)

    def _count(self) -> float:
        assert self._counters is not None
        return float(np.frombuffer(self._counters, np.uint64).reshape(self._threads, -1)[:, 0].sum())

    # ---- the process

    def _begun(self, arguments: list[str], fd: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [str(self._program), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=(fd,), process_group=0,
            )  # fmt: skip
        except OSError as error:
            self._release()
            raise KernelError(f"{self._program}: {error.strerror}; `make setup` builds it") from None

    def _await_ready(self) -> None:
        process = self._process
        assert process and process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(_READY_S):
                raise KernelError(f"the kernel's threads were not ready within {_READY_S:g} s")
        if process.stdout.readline() != b"ready\n":
            process.wait(_END_S)
            raise KernelError(self._reason(process))

    def _reason(self, process: subprocess.Popen[bytes]) -> str:
        """Why a process has ended: its own line, or its signal."""
        assert process.stderr and process.returncode is not None
        if process.returncode < 0:
            return f"the kernel's process was ended by {signal.Signals(-process.returncode).name}"
        self._line = self._line or process.stderr.read().decode(errors="replace").strip().split("\n")[-1]
        return self._line or f"the kernel's process ended with status {process.returncode}"

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._release()

    def _release(self) -> None:
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        if self._counters is not None:
            self._counters.close()
        self._process = self._counters = None

    # ---- memory

    def _memory_of_thread(self, kernel: Kernel, cpus: Sequence[int]) -> int:
        """Bytes: every thread the same, and its array (of a triad: each of three) above its share of its cache."""
        if kernel.name == "fma":
            return 0
        arrays = 3 if kernel.name == "stream" else 1
        if self._memory_b is not None:
            return self._memory_b
        needed = max(_cache_share_b(self._files, cpu, cpus) for cpu in cpus) * OVER_CACHE * arrays
        free = psutil.virtual_memory().available
        if needed * len(cpus) > MOST_OF_MEMORY * free:
            raise KernelError(
                f"{kernel.name}: {needed * len(cpus) >> 20} MiB are needed to be above the caches, and"
                f" {int(free) >> 20} MiB are free: use fewer CPUs"
            )
        return needed


class _Shared:
    """Memory without a name that another process can map."""

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("nodectl-kernels")
        os.ftruncate(self.fd, size)

    def close(self) -> None:
        os.close(self.fd)


def _cache_share_b(files: Files, cpu: int, cpus: Sequence[int]) -> int:
    """Bytes of the last-level cache of a CPU for each of ``cpus`` that share it; at least its largest private one."""
    folder = f"/sys/devices/system/cpu/cpu{cpu}/cache"
    shares = [WITHOUT_CACHE_B // len(cpus)]
    try:
        names = files.listdir(folder)
    except OSError:
        names = []
    found = []
    for name in names:
        size = read_or_none(files, f"{folder}/{name}/size")
        shared = read_or_none(files, f"{folder}/{name}/shared_cpu_list")
        if size and shared and size.strip().endswith("K"):
            among = len(set(parse_list(shared)) & set(cpus))
            found.append((int(size.strip()[:-1]) << 10) // max(among, 1))
    return max(found or shares)
