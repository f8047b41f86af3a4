"""Runs a command on the served twin.

    launcher ── first process of a PID and mount namespace ──┬── server: model, files, counters, system calls, socket
    (host)      (first_process.py)                           └── command, behind the seccomp filter

The command is unmodified: same terminal, same process group, and we return its exit status. This process stays on the
host, registers the run and forwards signals. If it ends, even by SIGKILL, the first process ends too, and with it all
processes of the run, including daemons.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import twin.nvml
from twin._serve import lib
from twin.build_preload import library_path
from twin.errors import TwinError
from twin.serve import first_process, namespace
from twin.serve.node_server import Plan
from twin.serve.registered_runs import Process, Register, Run

_CLONE_NEWPID = 0x20000000


def run(plan: Plan, command: Sequence[str], devices: Sequence[str] = (), *, keep: bool = False) -> int:
    """Serve the twin of ``plan`` to ``command``; returns the exit status for our own exit.

    Call it in the main thread of a process that does nothing else: its signals stay blocked. ``devices`` are nodes
    below /dev that the command gets in addition. With ``keep`` the run goes on until the last process that the command
    leaves has ended, or until a signal; the status is still the command's. TwinError, before the command starts, if the
    twin cannot be served here.
    """
    library = nvml_library()
    library_path()
    for device in devices:
        if not device.startswith("/dev/") or not os.path.exists(device):
            raise TwinError(f"--device {device}: no such device below /dev")
    if os.path.exists(namespace.CONTROL):
        raise TwinError("this process already runs on a served twin; one inside another is not possible")
    register = Register()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # From here on only sigwaitinfo takes signals; the command gets an empty mask before it starts.
    signal.pthread_sigmask(signal.SIG_BLOCK, first_process.WATCHED)
    if error := lib.namespaces_leave(_CLONE_NEWPID):
        raise TwinError(f"no PID namespace for the run: {os.strerror(-error)}; serving a twin needs CAP_SYS_ADMIN")
    first = os.fork()
    if first == 0:
        ours.close()
        first_process.live(plan, command, library, devices, theirs, keep=keep)
    theirs.close()
    record = None
    try:
        if ours.recv(64) == first_process.SERVED:
            record = Run(Process.of(os.getpid()), Process.of(_only_child(first)), plan.machine.name, list(command))
            register.enter(record)
            ours.send(first_process.GO)
        return _wait(first)
    finally:
        if record:
            register.leave(record)


def nvml_library() -> str:
    """The twin's NVML library; TwinError if it has not been built."""
    path = Path(twin.nvml.__file__).parent / namespace.NVML_NAME
    if not path.exists():
        raise TwinError(f"{path} has not been built; run `make setup`")
    return str(path)


def shell() -> list[str]:
    """The user's shell, for a run without a command."""
    return [os.environ.get("SHELL") or shutil.which("bash") or "/bin/sh"]


def _only_child(process: int) -> int:
    """The process number of the run's server on the host."""
    return int(Path(f"/proc/{process}/task/{process}/children").read_text().split()[0])


def _wait(first: int) -> int:
    """Wait for the run and forward signals to it. Its first process exits with the command's status."""
    while True:
        received = signal.sigwaitinfo(first_process.WATCHED)
        if received.si_signo != signal.SIGCHLD:
            # A signal from the terminal has reached the run as well.
            if received.si_code != first_process.SI_KERNEL:
                os.kill(first, received.si_signo)
            continue
        pid, status = os.waitpid(first, os.WNOHANG)
        if pid == first:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                print(f"nodectl twin: the run was killed by signal {-code}", file=sys.stderr)
            return code if code >= 0 else 128 - code
