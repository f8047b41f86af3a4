"""Very many nodes in one process, as cheap as the protocol allows: the real lease and codec, one zmq context for all.

A node is a DEALER socket with a key of its own. Sockets are watched by epoll, so a message costs no look at the
others. A report goes out once a second and at once when a cap has been taken. There is no hardware: a cap acts when it
is taken.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import time
from multiprocessing.connection import Connection

import zmq

from nodectl.keys import KeyPair
from nodectl.lease import NodeLease
from nodectl.link import LAST_RECONNECT_MS, QUEUED, RECONNECT_MS, SILENT_MS
from nodectl.wire import PROTOCOL, Declaration, pack, read_grant, unpack

DECLARED = Declaration(500_000, 150_000, 200_000, 0, "os", 200)
REPORT_S = 1.0
POWER_MW = 180_000


def run(url: str, server: str, nodes: list[tuple[str, KeyPair]], starts_s: float, pipe: Connection) -> None:
    """Report until told to end; then say how many reports were sent, how many were late, and the processor time.

    Nodes begin one after the other over ``starts_s``. A report that is sent half a period late is late: then it is this
    process that has too little time.
    """
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 65_535)
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    leases = [NodeLease(name, "boot-1", DECLARED, 200_000, now_ns) for name, _ in nodes]
    sockets: list[zmq.Socket[bytes]] = []
    epoll = select.epoll()
    at_descriptor: dict[int, int] = {}
    begin = time.monotonic()
    due = [(begin + starts_s * i / len(nodes), i) for i in range(len(nodes))]
    sent = late = 0

    def report(i: int) -> None:
        nonlocal sent
        frame = pack("report", leases[i].report(time.clock_gettime_ns(time.CLOCK_BOOTTIME), POWER_MW), PROTOCOL)
        with contextlib.suppress(zmq.Again):
            sockets[i].send(frame, zmq.NOBLOCK)
            sent += 1
        take(i)  # sending may have taken note of what came, and then epoll tells nothing

    def take(i: int) -> None:
        is_news, socket, lease = False, sockets[i], leases[i]
        with contextlib.suppress(zmq.Again):
            while True:
                envelope = unpack(socket.recv(zmq.NOBLOCK))
                if envelope.kind != "grant":
                    continue
                grant = read_grant(envelope)
                before_mw = lease.cap_mw
                if not lease.take(time.clock_gettime_ns(time.CLOCK_BOOTTIME), grant):
                    lease.confirm("seen")
                    is_news |= grant.cap_mw != before_mw
        if is_news:
            report(i)

    while not pipe.poll():
        now = time.monotonic()
        while due[0][0] <= now:
            due_s, i = heapq.heappop(due)
            if i == len(sockets):  # the first time
                sockets.append(_connected(context, url, server, nodes[i][1]))
                at_descriptor[sockets[i].getsockopt(zmq.FD)] = i
                epoll.register(sockets[i].getsockopt(zmq.FD), select.EPOLLIN)
            late += now - due_s > REPORT_S / 2
            report(i)
            heapq.heappush(due, (max(due_s + REPORT_S, now), i))
        for descriptor, _ in epoll.poll(min(max(due[0][0] - time.monotonic(), 0.0), 0.1), 256):
            take(at_descriptor[descriptor])
    with contextlib.suppress(EOFError):  # then there is nobody to tell
        pipe.recv()
        pipe.send((sent, late, time.process_time()))
    for socket in sockets:
        socket.close(0)
    context.term()


def _connected(context: zmq.Context[zmq.Socket[bytes]], url: str, server: str, keys: KeyPair) -> zmq.Socket[bytes]:
    """With the options of ``nodectl.link.ClusterLink``."""
    made = context.socket(zmq.DEALER)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.IMMEDIATE, 1),
        (zmq.SNDHWM, QUEUED),
        (zmq.RCVHWM, QUEUED),
        (zmq.RECONNECT_IVL, RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, LAST_RECONNECT_MS),
        (zmq.TCP_MAXRT, SILENT_MS),
        (zmq.HANDSHAKE_IVL, SILENT_MS),
    ):
        made.setsockopt(option, value)
    made.curve_publickey, made.curve_secretkey = keys.public.encode(), keys.secret.encode()
    made.curve_serverkey = server.encode()
    made.connect(url)
    return made
