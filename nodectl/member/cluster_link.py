"""The node's end of the link to its cluster agent: reports up, grants down, messages about jobs both ways.

libzmq owns the connection in a thread of its own: the handshake, encryption, reconnection with growing and jittered
delays. The methods here never block (but ``wait``), so the agent's loop may call them at every tick. While the link is
slow or down only the newest report waits: the grant that answers an older one would end sooner.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections import deque
from typing import Final

import zmq
import zmq.utils.monitor

from foundation.shell.errors import UsageError
from foundation.wire import phase_messages
from foundation.wire.addresses import InBackground, endpoints, is_ipv6, is_name, why_none_answers
from foundation.wire.job_messages import DOWN, KINDS, MAX_START, JobQuery, Message, NodeJobs, read_job_message
from foundation.wire.keys import KeyPair
from foundation.wire.link_options import (
    HANDSHAKES,
    LAST_RECONNECT_MS,
    PRESENCE,
    QUEUED,
    RECONNECT_MS,
    refuse_open_link,
    why_refused,
)
from foundation.wire.phase_messages import FromNode, PhasesForget, PhasesFound, read_phase_message
from foundation.wire.power_messages import (
    OLDEST,
    PROTOCOL,
    Envelope,
    Grant,
    Report,
    WireError,
    pack,
    read_grant,
    unpack,
)
from nodectl.jobs.job_runner import WAITING

TRY_S: Final = 3.0
"""Ours: for so long one of several addresses may leave a connection unanswered before the next one is tried."""

PAUSE_S, LAST_PAUSE_S = RECONNECT_MS / 1000, LAST_RECONNECT_MS / 1000
"""Between two turns through all addresses of a name, from the first to the last, doubling: as libzmq for one."""

DOUBT_S, DOUBT_AGAIN_S = 2.0, 30.0
"""Ours: when, and how often, the reason is looked for why there is no link."""

LARGER: Final = {**DOWN, **phase_messages.DOWN}
"""Kinds of message that may be larger than others."""

PHASES_WAITING: Final = 8
"""Ours: messages about phases that wait to be sent, or to be read; the newest count."""

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
        self._why_down = "not connected yet"
        self.dropped = 0
        """Reports that a newer one replaced before they could be sent, and frames that could not be decoded."""
        self.wants_jobs = False
        """Whether the cluster agent has sent any message about jobs on this connection."""
        self.job_queries = 0
        """How many ``JobQuery`` it has sent, on all connections."""
        self._way = _Way(url)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor = self._socket.get_monitor_socket(
            HANDSHAKES
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_CLOSED
            | zmq.EVENT_CONNECTED
            | zmq.EVENT_CONNECT_RETRIED
        )
        self._waiting: Report | None = None
        self._jobs_waiting: NodeJobs | None = None
        self._job_messages: deque[Message] = deque(maxlen=WAITING)
        self._phases_waiting: deque[FromNode] = deque(maxlen=PHASES_WAITING)
        self._phases_found: deque[PhasesFound] = deque(maxlen=PHASES_WAITING)
        self._to_forget: deque[PhasesForget] = deque(maxlen=PHASES_WAITING)
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
            self._way.start(self._socket)
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"{url}: {error.strerror}; a URL is tcp://HOST:PORT") from None

    @property
    def why_down(self) -> str:
        """Why there is no link: what the peer has said, and why no connection can be made."""
        doubt = self._way.doubt
        return (
            f"{self._why_down}; {doubt}" if doubt and not self.is_up and "key" not in self._why_down else self._why_down
        )

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

    def send_phases(self, message: FromNode) -> None:
        """Send this now, or as soon as possible."""
        self._phases_waiting.append(message)
        self._send_waiting()

    def receive(self) -> list[Grant]:
        """The grants that have arrived; messages about jobs are kept for ``job_messages``, those about phases for
        ``phase_messages`` and ``phases_to_forget``, and messages of any other kind are ignored."""
        self._look()
        self._send_waiting()
        grants: list[Grant] = []
        with contextlib.suppress(zmq.Again):
            for _ in range(2 * QUEUED):
                try:
                    self._take(unpack(self._socket.recv(zmq.NOBLOCK), LARGER), grants)
                except WireError:
                    self.dropped += 1
        return grants

    def job_messages(self) -> list[Message]:
        """The messages about jobs that ``receive`` found since the last call."""
        found = list(self._job_messages)
        self._job_messages.clear()
        return found

    def phase_messages(self) -> list[PhasesFound]:
        """The phases that ``receive`` found since the last call."""
        found = list(self._phases_found)
        self._phases_found.clear()
        return found

    def phases_to_forget(self) -> list[PhasesForget]:
        """What is to be deleted, as ``receive`` found since the last call."""
        found = list(self._to_forget)
        self._to_forget.clear()
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
        elif envelope.kind in phase_messages.KINDS_DOWN:
            phases = read_phase_message(envelope)
            (self._phases_found if isinstance(phases, PhasesFound) else self._to_forget).append(phases)

    def _send_waiting(self) -> None:
        if self._waiting is not None:
            with contextlib.suppress(zmq.Again):
                self._socket.send(pack("report", self._waiting, self._peer_speaks), zmq.NOBLOCK)
                self._waiting = None
        if self._jobs_waiting is not None:
            with contextlib.suppress(zmq.Again):
                self._socket.send(pack("jobs", self._jobs_waiting, self._peer_speaks), zmq.NOBLOCK)
                self._jobs_waiting = None
        with contextlib.suppress(zmq.Again):
            while self._phases_waiting:
                message = self._phases_waiting[0]
                kind = phase_messages.kind_of(message)
                self._socket.send(pack(kind, message, self._peer_speaks), zmq.NOBLOCK)
                self._phases_waiting.popleft()

    def _look(self) -> None:
        """Update the state of the connection from libzmq's events."""
        with contextlib.suppress(zmq.Again):
            while True:
                found = zmq.utils.monitor.recv_monitor_message(self._monitor, zmq.NOBLOCK)
                event = found["event"]
                if not self._way.saw(event, found["endpoint"].decode(errors="replace")):
                    continue
                self.is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    # the new peer may be an older version than the last one
                    self._peer_speaks, self.wants_jobs, self._jobs_waiting = OLDEST, False, None
                elif why := why_refused(event):
                    self._why_down = why
                elif event == zmq.EVENT_DISCONNECTED and "key" not in self._why_down:
                    self._why_down = "the connection was lost"
        self._way.go_on(self._socket, self.is_up)


class _Way:
    """The addresses of a URL, one after the other: which one a socket is connected to, and when it is the next one's
    turn. An URL without a name has one, and libzmq tries it again by itself, but for one that has refused us."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.doubt = ""
        """Why no connection can be made; "" as long as that is not known."""
        self._found: list[str] = []
        self._endpoint = ""
        """The one that the socket is connected to."""
        self._search: InBackground[list[str]] | None = None
        self._question: InBackground[str] | None = None
        self._pause_s = PAUSE_S
        self._due_s = math.inf
        """When the address that was tried last has had its time, or the pause is over."""
        self._down_s = time.monotonic()
        self._doubt_s = self._down_s + DOUBT_S

    def start(self, socket: zmq.Socket[bytes]) -> None:
        """Connect, or begin to resolve the name. Raises ``zmq.ZMQError`` for what is no URL."""
        if is_name(self.url):
            self._search = InBackground(lambda: endpoints(self.url))
        else:
            self._connect(socket, self.url)

    def saw(self, event: int, endpoint: str) -> bool:
        """An event of the socket's monitor; false for one of an address that was tried before."""
        if not is_name(self.url):
            if event & HANDSHAKES:
                self._due_s = time.monotonic() + REFUSED_S
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._due_s = math.inf
            return True
        if endpoint.lower() != self._endpoint.lower():
            return False
        if event == zmq.EVENT_CONNECTED:
            self._due_s = math.inf  # the handshake has its own limit
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._pause_s, self._due_s = PAUSE_S, math.inf
        elif event == zmq.EVENT_CONNECT_RETRIED or event & (HANDSHAKES | zmq.EVENT_DISCONNECTED):
            self._due_s = time.monotonic()
        return True

    def go_on(self, socket: zmq.Socket[bytes], is_up: bool) -> None:
        """Take the next step, if it is time for one; never waits."""
        now_s = time.monotonic()
        if is_up:
            self.doubt, self._down_s, self._doubt_s = "", now_s, now_s + DOUBT_S
        self._look_for_reasons(now_s)
        if self._search is not None and self._search.is_done():
            self._take_addresses(now_s)
        if now_s >= self._due_s and self._search is None:
            self._next(socket, now_s)

    def _next(self, socket: zmq.Socket[bytes], now_s: float) -> None:
        if self._endpoint:
            with contextlib.suppress(zmq.ZMQError):  # libzmq has given it up by itself
                socket.disconnect(self._endpoint)
            if not is_name(self.url):
                self._due_s = math.inf
                self._connect(socket, self._endpoint)
                return
            self._endpoint = ""
            if not self._found:  # all were tried: a pause
                self._due_s = now_s + self._pause_s * random.uniform(1.0, 1.5)
                self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
                return
        if not self._found:  # the name may have other addresses by now
            self._due_s, self._search = math.inf, InBackground(lambda: endpoints(self.url))
            return
        self._due_s = now_s + TRY_S
        self._connect(socket, self._found.pop(0))

    def _take_addresses(self, now_s: float) -> None:
        assert self._search is not None
        try:
            self._found = self._search.result()
            self._due_s = now_s
        except OSError as error:
            self.doubt = f"its name has no address: {error.strerror}"
            self._due_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        self._search = None

    def _connect(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        socket.setsockopt(zmq.IPV6, int(is_ipv6(endpoint)))
        socket.connect(endpoint)
        self._endpoint = endpoint

    def _look_for_reasons(self, now_s: float) -> None:
        """Find out in the background why there is no connection. Of one that is made and does not become a link the
        handshake says why."""
        if self._question is not None and self._question.is_done():
            found = self._question.result()
            self.doubt = found or "connections are accepted there, and no handshake has succeeded on one yet"
            self._question = None
        if now_s >= self._doubt_s and self._question is None:
            self._doubt_s = now_s + DOUBT_AGAIN_S
            self._question = InBackground(lambda: why_none_answers(self.url))
