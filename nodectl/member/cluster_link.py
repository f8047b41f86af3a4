"""The node's end of the link to its cluster agent: reports up, grants down, messages about jobs both ways.

libzmq owns the connection in a thread of its own: the handshake, encryption, reconnection with growing and jittered
delays. The methods here never block (but ``wait``), so the agent's loop may call them at every tick. While the link is
slow or down only the newest report waits: the grant that answers an older one would end sooner.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from typing import Final

import zmq
import zmq.utils.monitor

from nodectl.jobs.job_runner import WAITING, Message
from nodectl.shell.errors import UsageError
from nodectl.wire.job_messages import DOWN, KINDS, MAX_START, JobQuery, NodeJobs, read_job_message
from nodectl.wire.keys import KeyPair
from nodectl.wire.power_messages import OLDEST, PROTOCOL, Envelope, Grant, Report, WireError, pack, read_grant, unpack

RECONNECT_MS: Final = 200
LAST_RECONNECT_MS: Final = 5_000
"""Ours: the delay before a reconnection, from a fifth of a second, doubling, to half a lease; libzmq adds jitter of up
to the first to each."""

SILENT_MS: Final = 4_000
"""Ours: a connection is opened again when nothing that was sent on it was acknowledged for so long (TCP_USER_TIMEOUT).
Something is sent every second, except during the handshake, in which one end waits: there TCP keepalive finds a dead
connection. libzmq's heartbeats are not used: version 4.3.5 aborts the process when a heartbeat is due, or arrives, on a
connection that is gone while its messages wait to be read."""

HANDSHAKE_MS: Final = 30_000
"""Ours: how long a handshake may take. It costs either end about a millisecond of processor time, and a cluster agent
that starts has to do it with all its nodes. With a shorter limit the nodes at the end of that queue would give up and
begin again at its end, and each try costs as much as the first."""

PRESENCE: Final = (
    (zmq.TCP_MAXRT, SILENT_MS),
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, SILENT_MS // 2000),
    (zmq.TCP_KEEPALIVE_INTVL, 1),
    (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
)
"""Socket options of both ends: when a connection counts as lost."""

QUEUED: Final = 4
"""Ours: messages waiting in libzmq in each direction; one that does not fit is dropped, since a later one replaces
it."""

_LOOPBACK: Final = ("tcp://127.", "tcp://[::1]", "tcp://localhost:", "ipc://", "inproc://")


HANDSHAKES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""Events by which libzmq reports a handshake that failed."""


def why_refused(event: int) -> str:
    """One of ``HANDSHAKES`` in words; "" for another event."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "our key is not on its list (`clusterctl keys allow`)"
    return "the handshake failed: is its public key the one given here?" if event & HANDSHAKES else ""


def refuse_open_link(url: str, is_insecure: bool) -> None:
    """``UsageError`` unless an unencrypted link was requested (``insecure``) and cannot leave this machine."""
    if not is_insecure:
        raise UsageError(
            f"{url}: no keys given, and nothing is sent unencrypted (make keys: `clusterctl keys new`; docs/cluster.md)"
        )
    if not url.startswith(_LOOPBACK):
        raise UsageError(f"{url}: without keys only this machine itself (tcp://127.0.0.1:PORT) may be reached")


REFUSED_S: Final = LAST_RECONNECT_MS / 1000
"""How long until the next try after a refused handshake, as after a connection that cannot be made. Libzmq makes none,
since it takes a refusal for final; but the key may be put on the list later."""


class ClusterLink:
    """A connection to the cluster agent at ``url``; libzmq reconnects until ``close``, and after a refusal this does.

    ``keys`` are this node's own, ``server_public`` is the key of the cluster agent that it trusts; both None with
    ``is_insecure`` on loopback.
    """

    def __init__(self, url: str, keys: KeyPair | None, server_public: str | None, is_insecure: bool = False) -> None:
        if keys is None or server_public is None:
            refuse_open_link(url, is_insecure)
        self.url = url
        self.is_up = False
        self.why_down = "not connected yet"
        self.dropped = 0
        """Reports that a newer one replaced before they could be sent, and frames that could not be decoded."""
        self.wants_jobs = False
        """Whether the cluster agent has sent any message about jobs on this connection."""
        self.job_queries = 0
        """How many ``JobQuery`` it has sent, on all connections."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor = self._socket.get_monitor_socket(
            HANDSHAKES | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
        )
        self._again_s = math.inf
        """When to connect again after a refused handshake."""
        self._waiting: Report | None = None
        self._jobs_waiting: NodeJobs | None = None
        self._job_messages: deque[Message] = deque(maxlen=WAITING)
        self._peer_speaks = OLDEST
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),  # queue nothing while there is no connection
            (zmq.SNDHWM, QUEUED),
            (zmq.RCVHWM, QUEUED),
            (zmq.MAXMSGSIZE, MAX_START),
            (zmq.RECONNECT_IVL, RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, LAST_RECONNECT_MS),
            *PRESENCE,
        ):
            self._socket.setsockopt(option, value)
        if keys is not None and server_public is not None:
            self._socket.curve_publickey = keys.public.encode()
            self._socket.curve_secretkey = keys.secret.encode()
            self._socket.curve_serverkey = server_public.encode()
        try:
            self._socket.connect(url)
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"{url}: {error.strerror}; a URL is tcp://HOST:PORT") from None

    def send(self, report: Report) -> None:
        """Send a report now, or as soon as possible unless a newer one comes first."""
        self.dropped += self._waiting is not None
        self._waiting = report
        self._send_waiting()

    def send_jobs(self, news: NodeJobs) -> None:
        """Send the jobs now, or as soon as possible unless newer ones come first; nothing while ``wants_jobs`` is
        false."""
        if self.wants_jobs:
            self._jobs_waiting = news
            self._send_waiting()

    def receive(self) -> list[Grant]:
        """The grants that have arrived; messages about jobs are kept for ``job_messages``, and messages of any other
        kind are ignored."""
        self._look()
        self._send_waiting()
        grants: list[Grant] = []
        with contextlib.suppress(zmq.Again):
            for _ in range(2 * QUEUED):
                try:
                    self._take(unpack(self._socket.recv(zmq.NOBLOCK), DOWN), grants)
                except WireError:
                    self.dropped += 1
        return grants

    def job_messages(self) -> list[Message]:
        """The messages about jobs that ``receive`` found since the last call."""
        found = list(self._job_messages)
        self._job_messages.clear()
        return found

    def wait(self, timeout_ms: int) -> None:
        """Wait until something arrives, but not longer than this. Not for the loop."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        poller.poll(timeout_ms)

    def close(self) -> None:
        """Close at once; what has not been sent is lost."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    def _take(self, envelope: Envelope, grants: list[Grant]) -> None:
        self._peer_speaks = min(envelope.speaks, PROTOCOL)
        if envelope.kind == "grant":
            grants.append(read_grant(envelope))
        elif envelope.kind in KINDS:
            message = read_job_message(envelope)
            self.wants_jobs = True
            self.job_queries += isinstance(message, JobQuery)
            if not isinstance(message, JobQuery | NodeJobs):
                self._job_messages.append(message)

    def _send_waiting(self) -> None:
        if self._waiting is not None:
            with contextlib.suppress(zmq.Again):
                self._socket.send(pack("report", self._waiting, self._peer_speaks), zmq.NOBLOCK)
                self._waiting = None
        if self._jobs_waiting is not None:
            with contextlib.suppress(zmq.Again):
                self._socket.send(pack("jobs", self._jobs_waiting, self._peer_speaks), zmq.NOBLOCK)
                self._jobs_waiting = None

    def _look(self) -> None:
        """Update the state of the connection from libzmq's events."""
        with contextlib.suppress(zmq.Again):
            while True:
                event = zmq.utils.monitor.recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
                self.is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    # the new peer may be an older version than the last one
                    self._peer_speaks, self.wants_jobs, self._jobs_waiting = OLDEST, False, None
                elif why := why_refused(event):
                    self.why_down, self._again_s = why, time.monotonic() + REFUSED_S
                elif event == zmq.EVENT_DISCONNECTED and "key" not in self.why_down:
                    self.why_down = "the connection was lost"
        if time.monotonic() >= self._again_s:
            self._again_s = math.inf
            if not self.is_up:
                self._connect_again()

    def _connect_again(self) -> None:
        with contextlib.suppress(zmq.ZMQError):  # libzmq may have given up the endpoint by itself
            self._socket.disconnect(self.url)
        self._socket.connect(self.url)
