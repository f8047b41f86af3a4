"""The links of a node manager: one socket that task managers and other nodes connect to, one to each other node.

Who speaks is known by the key of the connection, and each handshake is checked against ``allowed``. What cannot be sent
is lost, as any message may be. Source of the handshake (ZAP): ZeroMQ RFC 27.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import zmq

from cluster_agent.dispatch.live.dispatch_frames import LARGEST_FRAME
from cluster_agent.dispatch.live.partition_file import NodesFile
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.allowed import Allowed, Entry
from cluster_agent.fabric.key_handshakes import ENDPOINT, handshake, verdict
from foundation.wire.addresses import is_ipv6
from foundation.wire.keys import KeyPair
from foundation.wire.link_options import LAST_RECONNECT_MS, PRESENCE, RECONNECT_MS

RATE: Final = 400.0
"""Ours: messages a second and key, on average and at once; more are dropped."""
WAITING: Final = 256
_OPTIONS: Final = ((zmq.LINGER, 0), (zmq.SNDHWM, WAITING), (zmq.RCVHWM, WAITING), (zmq.MAXMSGSIZE, LARGEST_FRAME))


@dataclass(frozen=True, slots=True)
class Came:
    """A frame, the key's entry of its sender, and the way back to it."""

    entry: Entry
    way: bytes
    frame: bytes


def dealer(context: zmq.Context[zmq.Socket[bytes]], url: str, keys: KeyPair, server: str) -> zmq.Socket[bytes]:
    """A socket that speaks to the node manager at ``url`` alone; it connects again by itself."""
    made = context.socket(zmq.DEALER)
    more = ((zmq.RECONNECT_IVL, RECONNECT_MS), (zmq.RECONNECT_IVL_MAX, LAST_RECONNECT_MS), (zmq.IPV6, is_ipv6(url)))
    for option, value in (*_OPTIONS, *more, *PRESENCE):
        made.setsockopt(option, int(value))
    made.curve_publickey, made.curve_secretkey = keys.public.encode(), keys.secret.encode()
    made.curve_serverkey = server.encode()
    made.connect(url)
    return made


def key_of(allowed: Allowed, name: str) -> str:
    """The public key of a node; "": none is allowed."""
    return next((one.public for one in allowed.entries() if (one.role, one.name) == ("node", name)), "")


class ManagerLinks:
    """``ClusterError`` in one line where nobody can listen."""

    def __init__(
        self, url: str, keys: KeyPair, nodes: NodesFile, allowed: Allowed, clock_s: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._keys, self._nodes, self._allowed, self._clock_s, self._say = keys, nodes, allowed, clock_s, say
        self._tokens: dict[str, tuple[float, float]] = {}
        self._said: set[tuple[str, str]] = set()
        self._context = zmq.Context()
        self._zap = self._context.socket(zmq.ROUTER)
        self._zap.bind(ENDPOINT)
        self._socket = self._context.socket(zmq.ROUTER)
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        for option, value in (*_OPTIONS, (zmq.ROUTER_MANDATORY, 1), (zmq.IPV6, is_ipv6(url)), *PRESENCE):
            self._socket.setsockopt(option, int(value))
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        self._socket.zap_domain = b"dispatch"
        try:
            self._socket.bind(url)
        except zmq.ZMQError as error:
            self.close()
            raise ClusterError(f"{url}: cannot listen: {error.strerror}") from None

    def wait(self, others: list[int], timeout_s: float) -> None:
        """Until something comes here, or on one of these descriptors."""
        poller = zmq.Poller()
        for one in (self._socket, self._zap, *others):
            poller.register(one, zmq.POLLIN)
        poller.poll(max(round(1000 * timeout_s), 0))

    def receive(self) -> Iterator[Came]:
        """What has come under an allowed key, at most ``WAITING`` at a time."""
        self._shake_hands()
        with contextlib.suppress(zmq.Again):
            for _ in range(WAITING):
                way, *parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                public = str(parts[0].get("User-Id"))
                entry = self._allowed.find(public)
                if entry is None:
                    self.complain(public, "a key that has been revoked")
                elif not self._is_within_rate(public):
                    self.complain(entry.name, f"more than {RATE:g} messages a second")
                elif len(parts) == 1:
                    yield Came(entry, way.bytes, parts[0].bytes)

    def answer(self, way: bytes, frame: bytes) -> None:
        """To whoever sent something that way."""
        with contextlib.suppress(zmq.ZMQError):  # it is gone, or reads too slowly
            self._socket.send_multipart((way, frame), zmq.NOBLOCK)

    def send(self, node: int, frame: bytes) -> None:
        """To another node."""
        if node not in self._dealers:
            if not 0 <= node < len(self._nodes.nodes):
                self.complain(f"node {node}", f"{len(self._nodes.nodes)} nodes are known here: the lists differ")
                return
            one = self._nodes.nodes[node]
            public = key_of(self._allowed, one.name)
            if not public:
                self.complain(one.name, "its key is not on the list: nothing is sent to it")
                return
            self._dealers[node] = dealer(self._context, one.url, self._keys, public)
        with contextlib.suppress(zmq.ZMQError):
            self._dealers[node].send(frame, zmq.NOBLOCK)

    def complain(self, name: str, what: str) -> None:
        """One line for each kind of complaint."""
        if (name, what) not in self._said and len(self._said) < 1000:
            self._said.add((name, what))
            self._say(f"{name}: dropped: {what}")

    def close(self) -> None:
        """At once."""
        for one in (*self._dealers.values(), self._socket, self._zap):
            one.close(0)
        self._context.term()

    def _shake_hands(self) -> None:
        self._allowed.refresh()
        with contextlib.suppress(zmq.Again):
            while True:
                shown = handshake(self._zap.recv_multipart(zmq.NOBLOCK))
                entry = self._allowed.find(shown.public)
                is_in = entry is not None and entry.role in ("node", "submitter", "admin")
                if not is_in:
                    where = shown.address.decode()[:60]
                    self.complain(shown.public or "somebody", f"a key that may not come here, from {where}")
                public = shown.public if is_in else ""
                self._zap.send_multipart(verdict(shown.asker, shown.request, public), zmq.NOBLOCK)

    def _is_within_rate(self, public: str) -> bool:
        now_s = self._clock_s()
        tokens, filled_s = self._tokens.get(public, (RATE, now_s))
        tokens = min(tokens + max(now_s - filled_s, 0.0) * RATE, RATE)
        self._tokens[public] = max(tokens - 1, 0.0), now_s
        return tokens >= 1
