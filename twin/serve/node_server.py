"""The server process of a served twin: the model in real time, its files, counters, GPUs and control socket.

The run's first process forks it inside its namespaces, and it ends with them. Once it has ended, every file and counter
of the twin fails with ENOTCONN. It never unmounts anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from twin._serve import lib
from twin.errors import TwinError
from twin.faults.active import Faults
from twin.faults.fault import Fault
from twin.files import procfs
from twin.files.sysfs_tree import SysfsTree
from twin.machine import Machine
from twin.msr.msr_files import MsrFiles
from twin.msr.registers import Registers
from twin.physics.model import Twin
from twin.programs.command_load import CommandLoad
from twin.programs.heartbeat_service import HeartbeatConversation
from twin.programs.kernel_service import KernelService
from twin.programs.workload import Workload
from twin.programs.workload_socket import WorkloadSocket
from twin.serve import fuse_tree, namespace
from twin.serve.control import ControlSocket, Joined
from twin.serve.mirror import Mirror
from twin.serve.perf_events import EventNames
from twin.serve.perf_service import PerfService
from twin.serve.syscall_server import SyscallServer

TICK_S = 0.005
"""Ours: period of foreign writers, of faults that begin or end, and of looks at who brings a workload. The model has
its own thread."""

_SEALS = fcntl.F_ADD_SEALS, 0x1 | 0x2 | 0x4
"""F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW (linux/fcntl.h): no process can shrink the memory under a reader."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to serve; fixed before the server is forked.

    ``report`` is the file for the truth at the end: a directory by descriptor (the run's /run and /dev are not the
    host's), and a name. ``command_load``: the CPU time of the run's processes is load on the emulated CPUs.
    """

    machine: Machine
    workload: Workload | None
    seed: int
    faults: tuple[Fault, ...]
    report: tuple[int, str] | None
    command_load: bool = False


class Ready(msgspec.Struct, frozen=True):
    """The server's first message: the device numbers of its files and counters, and the places to mount them over.

    ``roots`` are directories of /sys; of ``settings``, places below /proc, programs get private copies.
    """

    tree_device: int = 0
    counters_device: int = 0
    roots: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    error: str = ""


STOP, LISTENER, GO = b"stop", b"listener", b"go"
"""Messages of the first process to its server, and the response to ``LISTENER``: the command may start."""


def serve(plan: Plan, channel: socket.socket) -> NoReturn:
    """Body of the forked server. Communicates over ``channel`` (SOCK_SEQPACKET); ends at STOP or with the first
    process."""
    status = 1
    try:
        lib.process_rename(b"nodectl-twin")
        lib.process_use_one_arena()
        os.setsid()  # Ctrl-C on the terminal is for the command
        _detach_standard_files()
        try:
            server = _Server(plan)
        except (TwinError, OSError) as error:
            channel.send(msgspec.json.encode(Ready(error=str(error))))
            os._exit(1)
        channel.send(msgspec.json.encode(server.ready))
        server.converse(channel)
        status = 0
    finally:
        os._exit(status)  # no exit handlers: libfuse's would unmount, and the others are the launcher's


class _Server:
    """All parts of one served twin."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._memory = _gpu_memory()
        self._twin = Twin(plan.machine, None, plan.seed, gpu_memory=self._memory)
        self._faults = Faults(self._twin)
        self._tree = SysfsTree(self._twin, self._faults, _host_stat())
        for fault in plan.faults:
            self._faults.add(fault)
        settings = Mirror()
        tree_device = fuse_tree.mount(self._tree, settings, namespace.TREE)
        self._syscalls = SyscallServer(tree_device, (*procfs.FILES, *settings.roots), plan.machine.package_of)
        self._counters = PerfService(self._twin, self._faults, EventNames(self._tree, plan.machine), settings)
        if registers := Registers(self._tree):
            MsrFiles(registers, plan.machine.cpus).mount()
        self._stop = threading.Event()
        self._began_s = time.monotonic()
        self._has_begun = False
        kernels = KernelService(self._twin, plan.seed)
        ControlSocket(
            {
                "status": self._status,
                "report": lambda _: self._report(),
                "drawn": lambda _: {"at_s": time.monotonic(), "parts_j": self._twin.parts_j()},
                "fault-add": lambda given: self._faults.add_line(given["line"]),
                "fault-remove": lambda given: self._faults.remove(given["fault"]),
                "fault-list": lambda _: [[n, str(fault), stands] for n, fault, stands in self._faults.listing()],
            },
            lambda: Joined(kernels.conversation(), HeartbeatConversation(self._twin, plan.seed)),
        )
        self._workloads = WorkloadSocket(Path(namespace.RUN_DIRECTORY), namespace.WORKLOAD, self._twin)
        self.ready = Ready(tree_device, self._counters.device, self._tree.roots, settings.roots)
        threading.Thread(target=self._twin.run_realtime, args=(self._stop,), name="model", daemon=True).start()
        threading.Thread(target=self._tick, name="faults", daemon=True).start()

    def converse(self, channel: socket.socket) -> None:
        """Execute messages of the first process until STOP or its end."""
        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, 64, 1)
            if message == LISTENER and descriptors:
                self._syscalls.open(descriptors[0], self._counters.answer)
                if self._plan.workload is not None:
                    self._twin.start_workload(self._plan.workload)
                if self._plan.command_load:
                    load = CommandLoad(self._twin, frozenset((os.getpid(), os.getppid())))
                    threading.Thread(target=load.run, args=(self._stop,), name="load", daemon=True).start()
                self._has_begun = True
                channel.send(GO)
            elif message in (STOP, b""):
                break
        self._stop.set()
        if self._plan.report:
            directory, name = self._plan.report
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=directory)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(self._report())) + b"\n")

    def _report(self) -> dict[str, Any]:
        """The truth about the workload, labelled as emulated, with all that is needed to repeat the run."""
        workload = self._twin.workload
        what = {"workload": workload.name, "seed": workload.seed, "bias": workload.bias} if workload else {}
        truth: dict[str, Any] = msgspec.to_builtins(self._twin.report())
        return {"emulated": True, "machine": self._plan.machine.name, **what, **truth}

    def _tick(self) -> None:
        while not self._stop.wait(TICK_S):
            self._tree.act()
            self._counters.follow_faults()
            if self._has_begun:
                self._workloads.look()

    def _status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "machine": self._plan.machine.name,
            "server": os.getpid(),
            "for_s": time.monotonic() - self._began_s,
            "has_workload": self._twin.workload is not None,
            "finished": self._twin.finished,
            "told_units": self._twin.progress_units(),
            "open_counters": self._counters.open_counters,
            "faults": len(self._faults.listing()),
        }


def _gpu_memory() -> mmap.mmap:
    """Shared memory for the GPUs' state, sealed against a change of size, and the link by which programs find it."""
    fd = os.memfd_create("nodectl-twin-gpus", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, Twin.GPU_BYTES)
    fcntl.fcntl(fd, *_SEALS)
    os.fchmod(fd, 0o644)  # who has it for reading cannot open it for writing
    os.symlink(f"/proc/{os.getpid()}/fd/{fd}", namespace.GPUS)
    _offer_to_readers(os.open(namespace.GPUS, os.O_RDONLY | os.O_CLOEXEC))
    return mmap.mmap(fd, Twin.GPU_BYTES)


def _offer_to_readers(fd: int) -> None:
    """Send this descriptor to whoever connects: the kernel lets only root follow the link to another's memory."""
    readers = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    readers.bind(namespace.GPU_READERS)
    os.chmod(namespace.GPU_READERS, 0o666)
    readers.listen(socket.SOMAXCONN)

    def send() -> None:
        while True:
            connection, _ = readers.accept()
            with connection, contextlib.suppress(OSError):  # the reader did not wait
                socket.send_fds(connection, [b"\0"], [fd])

    threading.Thread(target=send, name="gpu-readers", daemon=True).start()


def _host_stat() -> Callable[[], str]:
    """Opens the host's /proc/stat now: later this path leads to the twin's file, which this process serves."""
    fd = os.open(procfs.STAT, os.O_RDONLY | os.O_CLOEXEC)

    def read() -> str:
        parts: list[bytes] = []
        while part := os.pread(fd, 1 << 20, sum(map(len, parts))):
            parts.append(part)
        return b"".join(parts).decode()

    return read


def _detach_standard_files() -> None:
    """Close the command's standard input and output, so that a pipe closes with the command."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
