"""Very many nodes in one process, as cheap as the protocol allows: the real lease, codec and handshake.

A node is a connection with a key of its own, and all of a process are of one ROUTER socket, which knows them by name:
a socket for each would cost three descriptors and a look at each. So a report may wait in libzmq while its connection
is not there (``nodectl.member.cluster_link`` would drop it), and after a break up to ``QUEUED`` old ones come first. A
report goes out once a period and at once when a cap has been taken. There is no hardware: a cap that is taken is in
force.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import time
from multiprocessing.connection import Connection
from typing import Final

import zmq

from foundation.wire.keys import KeyPair
from foundation.wire.link_options import LAST_RECONNECT_MS, PRESENCE, QUEUED, RECONNECT_MS
from foundation.wire.power_messages import PROTOCOL, Declaration, pack, read_grant, unpack
from nodectl.member.lease import NodeLease

DECLARED = Declaration(500_000, 150_000, 200_000, 0, "os", 200)
POWER_MW = 180_000

LEAST_WAIT_MS: Final = 2
"""Ours: reports that are due within this go out together."""


def run(url: str, server: str, starts_s: float, period_s: float, pipe: Connection) -> None:
    """Receive the names and keys of the nodes, and report until another period, or the end, arrives; then say how many
    reports were sent, how many were late, and the processor time since the first connection.

    Nodes begin one after the other over ``starts_s``. A report that is sent half a period late is late: then it is this
    process that has too little time.
    """
    os.setsid()  # where processor time is shared among sessions, the cluster agent has its own share
    nodes: list[tuple[str, KeyPair]] = pipe.recv()
    context = zmq.Context()
    socket = _socket(context, server)
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    leases = [NodeLease(name, "boot-1", DECLARED, 200_000, now_ns) for name, _ in nodes]
    names = [f"{i}".encode() for i in range(len(nodes))]
    begin, used_s = time.monotonic(), time.process_time()
    due = [(begin + starts_s * i / len(nodes), i) for i in range(len(nodes))]
    started = sent = late = 0

    def report(i: int) -> None:
        nonlocal sent
        frame = pack("report", leases[i].report(time.clock_gettime_ns(time.CLOCK_BOOTTIME), POWER_MW), PROTOCOL)
        with contextlib.suppress(zmq.ZMQError):  # as many wait already as may, or it is between two connections
            socket.send_multipart((names[i], frame), zmq.NOBLOCK)
            sent += 1

    def take(i: int, frame: bytes) -> None:
        envelope = unpack(frame)
        if envelope.kind != "grant":
            return
        grant, lease = read_grant(envelope), leases[i]
        before_mw = lease.cap_mw
        if not lease.take(time.clock_gettime_ns(time.CLOCK_BOOTTIME), grant):
            lease.confirm("seen")
            if grant.cap_mw != before_mw:
                report(i)

    while (order := _order(pipe)) != "end":
        if order:
            period_s = float(order)
            due = [(time.monotonic() + period_s * i / len(nodes), i) for i in range(len(nodes))]
        now = time.monotonic()
        while due[0][0] <= now:
            due_s, i = heapq.heappop(due)
            if i == started:  # the first time
                _connect(socket, url, names[i], nodes[i][1])
                started += 1
            late += now - due_s > period_s / 2
            report(i)
            heapq.heappush(due, (max(due_s + period_s, now), i))
        wait_s = min(due[0][0] - time.monotonic(), 0.1)
        if socket.poll(max(round(1000 * wait_s), LEAST_WAIT_MS)):
            with contextlib.suppress(zmq.Again):
                for _ in range(1000):
                    take(int(socket.recv(zmq.NOBLOCK)), socket.recv())
    with contextlib.suppress(OSError):  # then there is nobody to tell
        pipe.send((sent, late, time.process_time() - used_s))
    socket.close(0)
    context.term()


def _order(pipe: Connection) -> str:
    """What to do, if anything is new; to end when nobody is there any more."""
    with contextlib.suppress(EOFError):
        return str(pipe.recv()) if pipe.poll() else ""
    return "end"


def _socket(context: zmq.Context[zmq.Socket[bytes]], server: str) -> zmq.Socket[bytes]:
    """With the options of ``nodectl.member.cluster_link.ClusterLink``, but for ``IMMEDIATE``: a name is given to a
    connection before it is there."""
    made = context.socket(zmq.ROUTER)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.ROUTER_MANDATORY, 1),
        (zmq.SNDHWM, QUEUED),
        (zmq.RCVHWM, QUEUED),
        (zmq.RECONNECT_IVL, RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, LAST_RECONNECT_MS),
        *PRESENCE,
    ):
        made.setsockopt(option, value)
    made.curve_serverkey = server.encode()
    return made


def _connect(socket: zmq.Socket[bytes], url: str, name: bytes, keys: KeyPair) -> None:
    """One more connection, under a key of its own: a connection has the options that were set when it was begun."""
    socket.setsockopt(zmq.CONNECT_ROUTING_ID, name)
    socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
    socket.connect(url)
