"""The node manager of this node, a process of its own, and what passes between it and the jobs' thread.

    loop ── lease ──►  thread ── lease, parts, over a pair of sockets ──►  node manager (cluster_agent.dispatch)
                       JobThread ◄── starts, signals, forgets ──────────  links, journal

It has the links that other nodes and users connect to, so that neither what they send nor libzmq can end the agent. The
agent knows only its name, and starts it again when it ends; the jobs of the node go on meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from foundation.wire.dispatch_messages import Lease, ManagerSettings, packet, read_packet
from foundation.wire.job_messages import JobForget, JobSignal, JobStart, NodeJobs
from foundation.wire.power_messages import WireError
from nodectl.jobs.job_runner import JobThread

if TYPE_CHECKING:
    from nodectl.config import Config

MODULE: Final = "cluster_agent.dispatch.live.node_service"
LOOK_S: Final = 0.1
"""Ours: how often the parts are looked at, as by the jobs' thread."""
AGAIN_S: Final = 1.0
"""Ours: how long after its end it is started again, and how often it hears at least."""
END_S: Final = 5.0
PACKET: Final = 1 << 19
REFUSES: Final = "its jobs are dispatched without the cluster agent ([dispatch])"
"""Why this node takes no job from the cluster agent."""


class DispatchThread:
    """``lease``: set by the loop at each tick. ``close`` ends the process; jobs go on."""

    def __init__(
        self,
        settings: ManagerSettings,
        jobs: JobThread,
        log: Callable[[str], None] = lambda line: None,
        command: Sequence[str] = (sys.executable, "-m", MODULE),
        now_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    ) -> None:
        self.lease: tuple[int, int] = settings.tdp_mw, 0
        """The cap that should be in force, and until when it is granted (``now_ns``)."""
        self._settings, self._jobs, self._log, self._now_ns = settings, jobs, log, now_ns
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._pair: socket.socket | None = None
        self._sent: tuple[int, int, NodeJobs] | None = None
        self._sent_s = self._started_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)
        self._thread.start()

    def running(self) -> list[int]:
        """The numbers of the jobs that run here."""
        return [part.job for part in self._jobs.news().parts if not part.is_over]

    def close(self) -> None:
        """End the process."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._pair is None:
                if time.monotonic() - self._started_s < AGAIN_S:
                    self._is_over.wait(LOOK_S)
                    continue
                self._start()
            self._tell()
            self._hear()
        self._end()

    def _start(self) -> None:
        self._started_s = time.monotonic()
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, its):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            self._process = subprocess.Popen(
                [*self._command, str(its.fileno()), msgspec.json.encode(self._settings).decode()],
                stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], env=environment, cwd="/",
            )  # fmt: skip
        except OSError as error:
            ours.close()
            self._log(f"the node manager cannot be started: {error.strerror}")
            return
        finally:
            its.close()
        ours.settimeout(LOOK_S)
        self._pair, self._sent = ours, None

    def _tell(self) -> None:
        if self._pair is None:
            return
        cap_mw, end_ns = self.lease
        current = cap_mw, end_ns, self._jobs.news()
        if current == self._sent and time.monotonic() - self._sent_s < AGAIN_S:
            return
        try:
            self._pair.send(packet(Lease(cap_mw, max(end_ns - self._now_ns(), 0))))
            self._pair.send(packet(current[2]))
        except TimeoutError:
            return
        except OSError:
            self._end()
            return
        self._sent, self._sent_s = current, time.monotonic()

    def _hear(self) -> None:
        """What has come, or nothing for a while."""
        if self._pair is None:
            return
        try:
            frame = self._pair.recv(PACKET)
        except TimeoutError:
            return
        except OSError:
            frame = b""
        if not frame:
            self._end()
            return
        try:
            message = read_packet(frame)
        except WireError as error:
            self._log(f"the node manager: {error}")
            return
        if isinstance(message, JobStart | JobSignal | JobForget):
            self._jobs.post(message)

    def _end(self) -> None:
        """It ends when the pair is closed."""
        if self._pair is not None:
            self._pair.close()
            self._pair = None
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        status = process.wait()
        if not self._is_over.is_set():
            self._log(f"the node manager ended ({status}): it is started again, and jobs go on")


def open_dispatch(config: Config, jobs: JobThread | None, log: Callable[[str], None]) -> DispatchThread | None:
    """None for a node whose jobs the cluster agent starts."""
    own, cluster = config.dispatch, config.cluster
    if not own.listen or jobs is None:
        return None
    settings = ManagerSettings(
        node=cluster.name, listen=own.listen, directory=str(Path(own.keys).absolute()),
        key=str(Path(cluster.key).absolute()), journal=str(Path(config.state_dir, "dispatch").absolute()),
        tdp_mw=round(1000 * cluster.tdp_w), safe_mw=round(1000 * cluster.safe_w), user=own.user,
    )  # fmt: skip
    return DispatchThread(settings, jobs, log)
