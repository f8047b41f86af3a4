"""The front process: it has the sockets of the nodes' links. ``python -m cluster_agent.fabric.front FD``.

libzmq aborts its process when an allowed peer sends a heartbeat on a connection that is gone (docs/security.md). So
it runs here, where nothing is decided and nothing kept. The cluster agent has ledger, store and jobs, and starts the
next front process when this one ends (``front_supervisor``).

This process passes messages on, both ways, as they are. It reads no file: its keys come through the pipe, and the
cluster agent says for each handshake whether the peer's key is allowed. It ends when the pipe is closed, and ignores
the signals that a terminal or systemd sends to all processes at once.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import sys
import time
from typing import Final

import zmq

from cluster_agent.fabric import descriptors
from cluster_agent.fabric.front_pipe import (
    Came,
    CannotListen,
    Down,
    Handshake,
    Listen,
    Listening,
    Lost,
    Pipe,
    PipeError,
    Send,
    Turn,
)
from cluster_agent.fabric.key_handshakes import ENDPOINT, handshake, verdict
from foundation.process_rights import end_with_parent

ALIVE_S: Final = 1.0
PAUSE_S: Final = 0.005
"""Ours: messages from nodes that arrive within this time are passed on together, since the cluster agent's loop turns
no more often (``server.ROUND_S``). Messages to nodes do not wait."""

BATCH: Final = 500
FULL: Final = 1 << 18
"""Ours: messages passed on at once, and the bytes that may wait in the pipe before no more are read."""

FORGET_S: Final = 60.0


class Front:
    """The sockets, and the pipe to the cluster agent."""

    def __init__(self, pipe: Pipe[Down]) -> None:
        self._pipe = pipe
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 65_535)
        self._zap = self._context.socket(zmq.ROUTER)  # not REP, which takes one question at a time
        self._socket = self._context.socket(zmq.ROUTER)
        self._zap.bind(ENDPOINT)
        self._lost: list[Lost] = []
        self._keys: dict[bytes, str] = {}
        self._older_keys: dict[bytes, str] = {}
        self._aged_s = self._sent_s = 0.0

    def run(self) -> None:
        """Until the pipe is closed (``PipeError``)."""
        poller, patient = zmq.Poller(), zmq.Poller()
        turned_s = 0.0
        while True:
            is_full = self._pipe.waiting > FULL
            events = zmq.POLLOUT if is_full else zmq.POLLIN | (zmq.POLLOUT if self._pipe.waiting else 0)
            pause_s = turned_s + PAUSE_S - time.monotonic()
            if is_full or pause_s > 0:
                patient.register(self._pipe.fileno(), events)
                ready = dict(patient.poll(round(1000 * (ALIVE_S if is_full else pause_s)) + 1))
            else:
                for one in (self._socket, self._zap):
                    poller.register(one, zmq.POLLIN)
                poller.register(self._pipe.fileno(), events)
                ready = dict(poller.poll(round(1000 * ALIVE_S)))
            if ready.get(self._pipe.fileno(), 0) & (zmq.POLLIN | zmq.POLLERR):
                for message in self._pipe.receive():
                    self._do(message)
            if self._pipe.waiting <= FULL and time.monotonic() >= turned_s + PAUSE_S:
                turned_s = time.monotonic()
                self._pass_on(turned_s)
            self._pipe.flush()

    def _do(self, message: Down) -> None:
        if isinstance(message, Send):
            try:
                self._socket.send_multipart((message.connection, message.frame), zmq.NOBLOCK)
            except zmq.ZMQError as error:
                self._lost.append(Lost(message.connection, error.errno != zmq.EAGAIN))  # EHOSTUNREACH: it is gone
        elif isinstance(message, Listen):
            self._listen(message)
        else:
            self._zap.send_multipart(verdict(message.asker, message.request, message.public), zmq.NOBLOCK)

    def _listen(self, wanted: Listen) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or most > wanted.memory:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted.memory, wanted.memory))
        until_s = time.monotonic() + wanted.patience_s
        try:
            for option, value in wanted.options:
                self._socket.setsockopt(option, value)
            if wanted.public:
                self._socket.curve_server = True
                self._socket.curve_secretkey = wanted.secret.encode()
                self._socket.curve_publickey = wanted.public.encode()
                self._socket.zap_domain = b"nodes"
            while True:
                try:
                    self._socket.bind(wanted.url)
                    break
                except zmq.ZMQError as error:
                    if error.errno != zmq.EADDRINUSE or time.monotonic() >= until_s:
                        raise
                    time.sleep(0.01)
        except zmq.ZMQError as error:
            self._pipe.send(CannotListen(error.strerror))
            return
        self._pipe.send(Listening(str(self._socket.get_string(zmq.LAST_ENDPOINT))))

    def _pass_on(self, now_s: float) -> None:
        """One ``Turn``, if there is anything to say or nothing was for a while."""
        if now_s - self._aged_s > FORGET_S:  # who sends nothing for so long is looked up again
            self._keys, self._older_keys, self._aged_s = {}, self._keys, now_s
        handshakes: list[Handshake] = []
        came: list[Came] = []
        size = 0
        with contextlib.suppress(zmq.Again):
            while len(handshakes) < BATCH:
                handshakes.append(handshake(self._zap.recv_multipart(zmq.NOBLOCK)))
        with contextlib.suppress(zmq.Again):
            while len(came) < BATCH and size < FULL:
                came.append(one := self._next())
                size += len(one.frame)
        lost, self._lost = self._lost, []
        if came or handshakes or lost or now_s - self._sent_s >= ALIVE_S:
            self._sent_s = now_s
            self._pipe.send(Turn(came, handshakes, lost))

    def _next(self) -> Came:
        """One message, read to its end. Only its first part is kept."""
        name = self._socket.recv(zmq.NOBLOCK)
        public = self._keys.get(name)
        if public is None:
            first = self._socket.recv(zmq.NOBLOCK, copy=False)
            public = self._keys[name] = self._older_keys.get(name) or _key_of(first)
            frame = first.bytes
        else:
            frame = self._socket.recv(zmq.NOBLOCK)
        is_plain = name[:1] == b"\0"
        while self._socket.getsockopt(zmq.RCVMORE):
            self._socket.recv(zmq.NOBLOCK)
            is_plain = False
        return Came(name, public, is_plain, frame)


def _key_of(frame: zmq.Frame) -> str:
    """The key with which this connection made its handshake, as the answer to ZAP named it; "" without encryption."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def main() -> int:
    """Until the cluster agent ends, or wants it to end."""
    end_with_parent()  # also while it is stopped, with its port
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a key is in its memory
    descriptors.take()
    with contextlib.suppress(PipeError):
        Front(Pipe(socket.socket(fileno=int(sys.argv[1])), Down)).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
