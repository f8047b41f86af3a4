"""Asking the cluster agent: over the Unix socket on its machine, or from elsewhere over a link, with a key."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import msgspec

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.people import (
    ANSWER,
    ASK,
    LINK_REQUEST,
    PATIENCE_S,
    R,
    ReceivedAnswer,
    Request,
    RequestEnvelope,
    pack_request,
    unpack_answer,
)

if TYPE_CHECKING:
    from foundation.wire.keys import KeyPair

LARGEST_ANSWER: Final = 1 << 26
ELSEWHERE_S: Final = 2.0
"""Ours: for so long an address that accepts connections may leave a request unanswered before the next one is tried."""

_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Link:
    """A cluster agent on another machine. ``key``: the file of one's own key pair; ``server``: the agent's public key,
    or a file that has it."""

    url: str
    key: Path
    server: str


Place: TypeAlias = Path | Link


def ask(place: Place, request: Request[R]) -> R:
    """Send ``request`` to the cluster agent there and return its answer. An error of the agent is raised here as if it
    were ours (``RefusedError``); ``ClusterError`` when nobody answers."""
    try:
        envelope = pack_request(request)
    except ValueError as error:
        raise WrongUseError(str(error)) from None
    try:
        got = _by_link(place, envelope) if isinstance(place, Link) else _by_socket(place, envelope)
        if got.error:
            raise RefusedError(got.error, got.status)
        return unpack_answer(request, got)
    except (struct.error, msgspec.MsgspecError):
        where = place.url if isinstance(place, Link) else place
        raise ClusterError(f"{where}: what answers is no cluster agent of this version: restart it") from None


class RefusedError(ClusterError):
    """What the agent answered."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_status = status


def _by_socket(path: Path, request: RequestEnvelope) -> ReceivedAnswer:
    frame = msgspec.msgpack.encode(request)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        try:
            connection.connect(str(path))
            connection.sendall(_LENGTH.pack(len(frame)) + frame)
            (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
            return msgspec.msgpack.decode(_exactly(connection, size), type=ReceivedAnswer)
        except OSError as error:
            why = error.strerror or "no answer"
            raise ClusterError(f"{path}: no cluster agent: {why}; is `clusterctl serve` running? (--socket)") from None


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise OSError(0, "it closed the connection")
        parts += part
    return bytes(parts)


def _by_link(link: Link, request: RequestEnvelope) -> ReceivedAnswer:
    """From the first address of the link on which a cluster agent answers."""
    from foundation.wire.addresses import endpoints, why_unreachable
    from foundation.wire.keys import read_pair, read_public
    from foundation.wire.power_messages import pack

    pair, server, frame = read_pair(link.key), read_public(link.server), pack(ASK, request)
    if len(frame) > LINK_REQUEST:
        raise ClusterError(f"{len(frame)} bytes are more than a request over a link may have ({LINK_REQUEST})")
    until_s, reasons = time.monotonic() + PATIENCE_S, dict[str, str]()
    while True:
        try:
            found = endpoints(link.url)
        except OSError as error:
            raise ClusterError(f"{link.url}: no cluster agent: its name has no address: {error.strerror}") from None
        for number, endpoint in enumerate(found, start=1):
            reasons[endpoint] = why_unreachable(endpoint, max(min(ELSEWHERE_S, until_s - time.monotonic()), 0.1))
            if reasons[endpoint]:
                continue
            with _Question(endpoint, pair, server) as question:
                shaken_by_s = until_s if number == len(found) else time.monotonic() + ELSEWHERE_S
                if question.shakes_hands(shaken_by_s):
                    return question.answer(frame, time.monotonic() + PATIENCE_S)
                reasons[endpoint] = question.why
        left_s = until_s - time.monotonic()
        if left_s <= 0 or any("key" in why for why in reasons.values()):
            break
        time.sleep(min(0.2, left_s))
    where = [why if one == link.url else f"{one.removeprefix('tcp://')}: {why}" for one, why in reasons.items()]
    raise ClusterError(f"{link.url}: no answer from a cluster agent: {'; '.join(where)}")


class _Question:
    """A connection to one address. Nothing is sent before the handshake, so another address may be tried after it has
    failed: no request is carried out twice."""

    def __init__(self, endpoint: str, pair: KeyPair, server: str) -> None:
        import zmq

        from foundation.wire.addresses import is_ipv6
        from foundation.wire.link_options import HANDSHAKES

        self.why = "nobody answers"
        self._endpoint, self._closing = endpoint, contextlib.ExitStack()
        context = self._closing.enter_context(zmq.Context())
        self._dealer = dealer = self._closing.enter_context(context.socket(zmq.DEALER))
        events = HANDSHAKES | zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._monitor = self._closing.enter_context(dealer.get_monitor_socket(events))
        dealer.linger = 0
        dealer.setsockopt(zmq.MAXMSGSIZE, LARGEST_ANSWER)
        dealer.setsockopt(zmq.IPV6, int(is_ipv6(endpoint)))
        dealer.curve_publickey, dealer.curve_secretkey = pair.public.encode(), pair.secret.encode()
        dealer.curve_serverkey = server.encode()
        try:
            dealer.connect(endpoint)
        except zmq.ZMQError as error:
            self._closing.close()
            raise ClusterError(f"{endpoint}: {error.strerror}; a URL is tcp://HOST:PORT") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def shakes_hands(self, until_s: float) -> bool:
        """Whether the peer is a cluster agent that takes our key, by then; if not, ``why`` has the reason."""
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        from foundation.wire.link_options import why_refused

        while self._monitor.poll(max(round(1000 * (until_s - time.monotonic())), 0)):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return True
            if refused := why_refused(event):
                self.why = refused
                return False
        return False

    def answer(self, frame: bytes, until_s: float) -> ReceivedAnswer:
        """Send a request; its answer."""
        from foundation.wire.power_messages import WireError, unpack

        self._dealer.send(frame)
        while self._dealer.poll(max(round(1000 * (until_s - time.monotonic())), 0)):
            try:
                envelope = unpack(self._dealer.recv(), {ANSWER: LARGEST_ANSWER})
            except WireError as error:
                raise ClusterError(f"{self._endpoint}: {error}") from None
            if envelope.kind == ANSWER:
                return msgspec.msgpack.decode(envelope.body, type=ReceivedAnswer)
        raise ClusterError(f"{self._endpoint}: no answer from a cluster agent: nobody answers")


def link_of(url: str) -> Link:
    """To ``url`` with the key that CLUSTERCTL_KEY and CLUSTERCTL_SERVER name: by default ``clusterctl.key`` and
    ``cluster.pub`` in ~/.config/nodectl."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nodectl"
    key = os.environ.get("CLUSTERCTL_KEY") or home / "clusterctl.key"
    return Link(url, Path(key), os.environ.get("CLUSTERCTL_SERVER") or str(home / "cluster.pub"))
