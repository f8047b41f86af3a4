"""The connection to a scheduler of Batsim's: one request, one answer, over ZeroMQ (its RFC 28, REQ and REP).

The scheduler is the server, and this end is the client. libzmq connects again by itself when a peer is gone, and would
wait for an answer that nobody gives any more; so the monitor of the socket says when a connection was lost.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final, Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from cluster_agent.errors import SchedulerError, WrongUseError
from foundation.shell.settings import tcp_address
from foundation.wire.addresses import endpoints, is_ipv6, is_loopback
from foundation.wire.link_options import HANDSHAKES

LARGEST_ANSWER: Final = 64 << 20
"""Ours, bytes: an answer that starts half a million jobs at once is about as large."""
LOOK_MS: Final = 50
"""Ours: after so long without an answer, and again after as long, one looks whether the connection is still there. To
wait for both at once costs 10 us of a processor more for each message."""


class Link:
    """``with Link(...) as link: answer = link.ask(message)``. ``messages``: how many were sent; ``waited_s``: how long
    their answers took together."""

    def __init__(self, address: str, timeout_s: float, is_remote: bool = False) -> None:
        """``WrongUseError`` for an address that is none, or is another machine's without ``is_remote``."""
        self.messages, self.waited_s = 0, 0.0
        self._address, self._timeout_s, self._is_connected = address, timeout_s, False
        if not address.startswith("ipc://") and tcp_address(address) is None:
            raise WrongUseError(f"--scheduler: {address} is no address: give tcp://HOST:PORT or ipc://PATH")
        if not is_remote and not is_loopback(address):
            raise WrongUseError(
                f"--scheduler: {address} may be another machine, and Batsim's protocol neither encrypts nor says who"
                " answers; if that is meant, add remote=true"
            )
        with contextlib.ExitStack() as closing:
            context = closing.enter_context(zmq.Context())
            self._socket = socket = closing.enter_context(context.socket(zmq.REQ))
            socket.linger, socket.rcvtimeo = 0, LOOK_MS
            socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_ANSWER)
            watched = HANDSHAKES | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            self._monitor = closing.enter_context(socket.get_monitor_socket(watched))
            try:
                endpoint = endpoints(address)[0]
                socket.setsockopt(zmq.IPV6, int(is_ipv6(endpoint)))
                socket.connect(endpoint)
            except (zmq.ZMQError, OSError) as error:
                raise WrongUseError(
                    f"--scheduler: {address}: {error.strerror}; give tcp://HOST:PORT or ipc://PATH"
                ) from None
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def ask(self, message: bytes) -> bytes:
        """Send a message; the answer to it. ``SchedulerError`` if the scheduler leaves, or does not answer in time."""
        begun_s = time.perf_counter()
        try:
            self._socket.send(message)
        except zmq.ZMQError as error:
            if error.errno != zmq.EFSM:
                raise
            # to read RCVMORE for each message would cost 4 us
            raise SchedulerError(
                f"the scheduler at {self._address} answers in several parts; Batsim's have one"
            ) from None
        self.messages += 1
        until_s = begun_s + self._timeout_s
        while time.perf_counter() < until_s:
            try:
                answer = self._socket.recv()
            except zmq.Again:
                self._look()
                continue
            self.waited_s += time.perf_counter() - begun_s
            return answer
        if self._is_connected:
            raise SchedulerError(
                f"the scheduler at {self._address} has not answered for {self._timeout_s:g} s; if it needs longer, give"
                " timeout_s"
            )
        raise SchedulerError(
            f"no scheduler has answered at {self._address} within {self._timeout_s:g} s: start it, such as `pybatsim"
            f" schedFcfs -s {self._address}`"
        )

    def _look(self) -> None:
        """What has happened to the connection."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_connected = True
            elif event != zmq.EVENT_DISCONNECTED:
                raise SchedulerError(
                    f"what listens at {self._address} is no scheduler of Batsim's: the handshake failed"
                )
            elif self._is_connected:
                raise SchedulerError(
                    f"the scheduler at {self._address} has left without an answer (what it has printed says why), or"
                    f" its answer was larger than {LARGEST_ANSWER >> 20} MiB"
                )
