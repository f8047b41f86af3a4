"""Runs a command on the served twin.

    launcher ── own mount namespace ──┬── server: model, FUSE, counters, control socket
                                      └── command, behind the seccomp filter

The command is our child and otherwise unmodified: same terminal, same process group, its exit status is ours. If the
launcher dies, by SIGKILL too, server and command die with it. At the end the server goes first, so that whoever is
left in the namespace meets ENOTCONN; the mounts go with the namespace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

import twin.nvml
from twin._kernel import lib
from twin.errors import TwinError
from twin.serve import containment, namespace, server
from twin.serve.runs import Process, Register, Run

WRONG_USE = 2
"""Exit status when the twin cannot be served; the command has then not been started."""

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""As a shell answers (POSIX 2.8.2)."""

_SERVER_END_S = 5.0
_SI_KERNEL = 0x80
"""si_code of a signal that the kernel itself sent, as it does for Ctrl-C on the terminal (sigaction(2))."""

_WATCHED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD}


def run(plan: server.Plan, command: Sequence[str]) -> int:
    """Serve the twin of ``plan`` to ``command``; returns the exit status for our own exit.

    To be called in a process of its own, by its main thread: it stays in the run's namespace, its signals blocked.
    TwinError, with the command not started, if the twin cannot be served here.
    """
    library = nvml_library()
    register = Register()  # before the host's directory disappears from sight
    namespace.enter()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = os.getpid()
    # From here on signals are taken by sigwaitinfo alone; the command gets an empty mask back before it starts.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    server_pid = os.fork()
    if server_pid == 0:
        ours.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server.serve(plan, theirs, launcher)
    theirs.close()
    ready = server.Ready()
    try:
        ready = _await_ready(ours)
        namespace.cover_sysfs(ready.roots)
        namespace.cover_proc()
        namespace.cover_nvml(library)
        namespace.mask_devices(namespace.devices())
        record = Run(Process.of(launcher), Process.of(server_pid), plan.machine.name, list(command))
        register.enter(record)
        try:
            command_pid = os.fork()
            if command_pid == 0:
                _become(command, _environment(library), ready, ours, library, launcher)
            return _wait(command_pid, server_pid)
        finally:
            register.leave(record)
    finally:
        _end_server(server_pid, ours, ready)


def nvml_library() -> str:
    """The twin's NVML library; TwinError if it has not been built."""
    path = Path(twin.nvml.__file__).parent / namespace.NVML_NAME
    if not path.exists():
        raise TwinError(f"{path} has not been built; run `make setup`")
    return str(path)


def _environment(library: str) -> dict[str, str]:
    """The command's environment: ours, with the twin's NVML found before any other."""
    places = [str(Path(library).parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(place for place in places if place)}


def _await_ready(channel: socket.socket) -> server.Ready:
    message = channel.recv(1 << 16)
    if not message:
        raise TwinError("the twin's server ended before it was ready")
    ready = msgspec.json.decode(message, type=server.Ready)
    if ready.error:
        raise TwinError(ready.error)
    return ready


# ---- the command's process -----------------------------------------------------------------------------------------


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    ready: server.Ready,
    channel: socket.socket,
    library: str,
    launcher: int,
) -> NoReturn:
    """In the forked child: hand over the seccomp listener, prove containment, execute the command."""
    status = WRONG_USE
    try:
        if lib.process_die_with(launcher, signal.SIGKILL):
            os._exit(WRONG_USE)
        _hand_over_counters(channel)
        containment.prove(ready.tree_device, ready.roots, library, environment)
        containment.prove_counters(ready.counters_device)
        _forget_interpreter_signals()
        try:
            os.execvpe(command[0], list(command), environment)
        except FileNotFoundError:
            _say(f"{command[0]}: command not found")
            status = _NOT_FOUND
        except OSError as error:
            _say(f"{command[0]}: {error.strerror}")
            status = _NOT_EXECUTABLE
    except TwinError as error:
        _say(str(error))
    finally:
        os._exit(status)


def _hand_over_counters(channel: socket.socket) -> None:
    listener = lib.seccomp_install()
    if listener == -errno.EBUSY:
        raise TwinError("this process already runs on a served twin; one inside another is not possible")
    if listener < 0:
        raise TwinError(f"perf_event_open cannot be intercepted: {os.strerror(-listener)} (seccomp, Linux 5.14)")
    socket.send_fds(channel, [server.LISTENER], [listener])
    os.close(listener)
    if channel.recv(64) != server.GO:
        raise TwinError("the twin's server ended before the command started")


def _forget_interpreter_signals() -> None:
    """Give the command the signals as we were given them: undo what Python does at its start."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# ---- waiting and ending --------------------------------------------------------------------------------------------


def _wait(command: int, server_pid: int) -> int:
    """Wait for the command, passing on signals sent to us; its status, or 128 + N if signal N ended it."""
    server_lives = True
    while True:
        received = signal.sigwaitinfo(_WATCHED)
        if received.si_signo != signal.SIGCHLD:
            # What came from the terminal has reached the command as well.
            if received.si_code != _SI_KERNEL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(command, received.si_signo)
            continue
        if server_lives and os.waitid(os.P_PID, server_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            server_lives = False
            _say("the twin's server has ended; its files now answer ENOTCONN")
        pid, status = os.waitpid(command, os.WNOHANG)
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_server(pid: int, channel: socket.socket, ready: server.Ready) -> None:
    """Ask the server to end, which lets it write its report; insist after a while.

    A server killed while it opened a file of its own waits for its own answer and cannot die; cutting its FUSE
    connections frees it (Linux Documentation/filesystems/fuse, "abort").
    """
    with contextlib.suppress(OSError):
        channel.send(server.STOP)
    deadline = time.monotonic() + _SERVER_END_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            namespace.abort_fuse((ready.tree_device, ready.counters_device))
        time.sleep(0.002)
    channel.close()


def shell() -> list[str]:
    """The user's shell, for a run without a command."""
    return [os.environ.get("SHELL") or shutil.which("bash") or "/bin/sh"]


def _say(message: str) -> None:
    print(f"nodectl twin: {message}", file=sys.stderr, flush=True)
