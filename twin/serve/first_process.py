"""The first process of a run: it sets up the namespaces, starts the server and the command, and ends with the command,
or, if the run is kept, with the last process that the command has left.

As init of its PID namespace it adopts orphans, and when it ends, the kernel kills all remaining processes. The server
ends first, so that remaining readers get ENOTCONN.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from twin._serve import lib
from twin.build_preload import library_path as preload_path
from twin.errors import TwinError
from twin.nvml import loader_cache
from twin.serve import containment, namespace, node_server

SERVED, GO = b"served", b"go"
"""To the launcher: the server runs. From the launcher: the run is registered, the command may start."""

WATCHED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD}

SI_KERNEL = 0x80
"""si_code of a signal that the kernel itself sent, as it does for Ctrl-C on the terminal (sigaction(2))."""

WRONG_USE = 2
"""Exit status when the twin cannot be served; the command was then not started."""

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""As a shell returns (POSIX 2.8.2)."""

_SERVER_END_S = 5.0

_HOST_SERVICES = (
    *("CONTAINERD_ADDRESS", "CONTAINER_HOST", "CUDA_MPS_PIPE_DIRECTORY", "DOCKER_HOST"),
    *("DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS"),
)
"""Variables that lead to daemons of the host."""


def live(
    plan: node_server.Plan,
    command: Sequence[str],
    library: str,
    devices: Sequence[str],
    launcher: socket.socket,
    *,
    keep: bool,
) -> NoReturn:
    """Body of the forked first process. Its signals are ``WATCHED`` and blocked."""
    status = WRONG_USE
    try:
        lib.process_die_with(0, signal.SIGKILL)  # the launcher has no process number in this namespace
        if not select.select([launcher], [], [], 0)[0]:  # it lives
            lib.process_rename(containment.FIRST_PROCESS.encode())
            status = _serve(plan, command, library, devices, launcher, keep)
    except TwinError as error:
        say(str(error))
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def _serve(
    plan: node_server.Plan,
    command: Sequence[str],
    library: str,
    devices: Sequence[str],
    launcher: socket.socket,
    keep: bool,
) -> int:
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        raise TwinError("the directory where this was started has been removed") from None
    namespace.leave_host(os.environ.get("NOTIFY_SOCKET"), devices)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server_pid = os.fork()
    if server_pid == 0:
        ours.close()
        launcher.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        node_server.serve(plan, theirs)
    theirs.close()
    ready = node_server.Ready()
    try:
        ready = _await_ready(ours)
        namespace.cover_sysfs(ready.roots, plan.machine)
        namespace.cover_proc(ready.settings)
        namespace.cover_nvml(library)
        namespace.offer_nvidia_smi()
        namespace.cover_others()
        launcher.send(SERVED)
        if launcher.recv(64) != GO:
            raise TwinError("the launcher ended before the command started")
        command_pid = os.fork()
        if command_pid == 0:
            launcher.close()
            _become(command, _environment(library), ready, ours, library, directory)
        ended = _wait(command_pid, server_pid)
        if keep and not ended.by_signal:
            _wait_for_others(server_pid, ended.status)
        return ended.status
    finally:
        _end_server(server_pid, ours, ready)


def _environment(library: str) -> dict[str, str]:
    """The command's environment: ours without ``_HOST_SERVICES``, with the run's own commands on the PATH, and with
    the library that every program loads (csrc/cpus_preload.c).

    The loader finds the twin's NVML by its list, but looks in LD_LIBRARY_PATH first, so there the twin's is first too.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _HOST_SERVICES}
    preloaded = [str(preload_path()), os.environ.get("LD_PRELOAD", "")]
    places = os.environ.get("LD_LIBRARY_PATH", "")
    if places or not os.path.exists(loader_cache.PLACE):
        kept["LD_LIBRARY_PATH"] = ":".join(place for place in (str(Path(library).parent), places) if place)
    kept["PATH"] = os.pathsep.join((namespace.COMMANDS, os.environ.get("PATH", os.defpath)))
    return {**kept, "LD_PRELOAD": ":".join(path for path in preloaded if path)}


def _await_ready(channel: socket.socket) -> node_server.Ready:
    message = channel.recv(1 << 16)
    if not message:
        raise TwinError("the twin's server ended before it was ready")
    ready = msgspec.json.decode(message, type=node_server.Ready)
    if ready.error:
        raise TwinError(ready.error)
    return ready


# ---- the command's process -----------------------------------------------------------------------------------------


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    ready: node_server.Ready,
    channel: socket.socket,
    library: str,
    directory: str,
) -> NoReturn:
    """In the forked child: leave the server's namespace, pass the seccomp listener on, prove containment, execute the
    command."""
    status = WRONG_USE
    try:
        namespace.leave_to_command(directory)
        containment.close_host_directories()
        _hand_over_calls(channel)
        containment.prove(ready, library, environment)
        _forget_interpreter_signals()
        try:
            os.execvpe(command[0], list(command), environment)
        except FileNotFoundError:
            say(f"{command[0]}: command not found")
            status = _NOT_FOUND
        except OSError as error:
            say(f"{command[0]}: {error.strerror}")
            status = _NOT_EXECUTABLE
    except TwinError as error:
        say(str(error))
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def _hand_over_calls(channel: socket.socket) -> None:
    listener = lib.seccomp_install()
    if listener == -errno.EBUSY:
        raise TwinError("this process is watched by another seccomp listener, and there can be only one")
    if listener < 0:
        raise TwinError(f"system calls cannot be intercepted: {os.strerror(-listener)} (seccomp, Linux 5.14)")
    socket.send_fds(channel, [node_server.LISTENER], [listener])
    os.close(listener)
    if channel.recv(64) != node_server.GO:
        raise TwinError("the twin's server ended before the command started")


def _forget_interpreter_signals() -> None:
    """Reset the signal handling for the command: undo the changes that Python makes at its start."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# ---- waiting and ending --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ended:
    """``status`` as a shell has it: the command's, or 128 + N if signal N ended it. ``by_signal``: the run was to end,
    by a signal sent to it, or one of the terminal that ended the command."""

    status: int
    by_signal: bool


def _wait(command: int, server_pid: int) -> _Ended:
    """Wait for the command; forward signals to it, and reap other processes of this namespace."""
    is_to_end = False
    while True:
        received = signal.sigwaitinfo(WATCHED)
        if received.si_signo != signal.SIGCHLD:
            # A signal from the terminal has reached the command as well. A shell survives it, and so does the run.
            if received.si_code != SI_KERNEL:
                is_to_end = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(command, received.si_signo)
            continue
        for pid, status in _reaped(server_pid):
            if pid == command:
                code = os.waitstatus_to_exitcode(status)
                return _Ended(code if code >= 0 else 128 - code, is_to_end or -code in WATCHED)


def _wait_for_others(server_pid: int, status: int) -> None:
    """Wait until the server is the only child: an orphan becomes our child before its parent can be reaped.

    Returns at the first signal as well, and when the server has ended, since nothing is served then.
    """
    if not _has_others(server_pid):
        return
    say(f"the command has ended with status {status}; what it left running stays served until it ends, or until Ctrl-C")
    while _has_others(server_pid):
        if signal.sigwaitinfo(WATCHED).si_signo != signal.SIGCHLD:
            return
        if any(pid == server_pid for pid, _ in _reaped(server_pid)):
            return


def _has_others(server_pid: int) -> bool:
    return any(int(each) != server_pid for each in Path("/proc/self/task/1/children").read_text().split())


def _reaped(server_pid: int) -> Iterator[tuple[int, int]]:
    """Reap the processes that have ended: number and wait status of each."""
    with contextlib.suppress(ChildProcessError):  # none is left, not even the server
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == server_pid:
                say("the twin's server has ended; its files now answer ENOTCONN")
            yield os.waitpid(ended.si_pid, 0)


def _end_server(pid: int, channel: socket.socket, ready: node_server.Ready) -> None:
    """Send the server STOP, so that it writes its report; kill it after a while.

    A server that is killed while it opens a file of its own waits for its own answer and cannot end. Aborting its FUSE
    connections releases it (Linux Documentation/filesystems/fuse, "abort").
    """
    with contextlib.suppress(OSError):
        channel.send(node_server.STOP)
    deadline = time.monotonic() + _SERVER_END_S
    with contextlib.suppress(ChildProcessError):  # it ended earlier
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(-1, signal.SIGKILL)  # and who serves a file system of the command's on which it may wait
                namespace.abort_fuse((ready.tree_device, ready.counters_device))
            time.sleep(0.002)
    channel.close()


def say(message: str) -> None:
    """One line on the command's standard error."""
    print(f"nodectl twin: {message}", file=sys.stderr, flush=True)
