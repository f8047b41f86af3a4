"""Asking the cluster agent: over the Unix socket on its machine, or from elsewhere over a link, with a key."""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.people import (
    ANSWER,
    ASK,
    LINK_REQUEST,
    PATIENCE_S,
    AnswerEnvelope,
    R,
    Request,
    RequestEnvelope,
    pack_request,
    unpack_answer,
)

LARGEST_ANSWER: Final = 1 << 26
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


def _by_socket(path: Path, request: RequestEnvelope) -> AnswerEnvelope:
    frame = msgspec.msgpack.encode(request)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        try:
            connection.connect(str(path))
            connection.sendall(_LENGTH.pack(len(frame)) + frame)
            (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
            return msgspec.msgpack.decode(_exactly(connection, size), type=AnswerEnvelope)
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


def _by_link(link: Link, request: RequestEnvelope) -> AnswerEnvelope:
    import zmq
    from zmq.utils.monitor import recv_monitor_message

    from nodectl.member.cluster_link import HANDSHAKES, why_refused
    from nodectl.wire.keys import read_pair, read_public
    from nodectl.wire.power_messages import WireError, pack, unpack

    pair, server = read_pair(link.key), read_public(link.server)
    frame = pack(ASK, request)
    if len(frame) > LINK_REQUEST:
        raise ClusterError(f"{len(frame)} bytes are more than a request over a link may have ({LINK_REQUEST})")
    with (
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
        dealer.get_monitor_socket(HANDSHAKES) as monitor,
    ):
        dealer.linger = 0
        dealer.setsockopt(zmq.MAXMSGSIZE, LARGEST_ANSWER)
        dealer.curve_publickey, dealer.curve_secretkey = pair.public.encode(), pair.secret.encode()
        dealer.curve_serverkey = server.encode()
        try:
            dealer.connect(link.url)
        except zmq.ZMQError as error:
            raise ClusterError(f"{link.url}: {error.strerror}; a URL is tcp://HOST:PORT") from None
        dealer.send(frame)
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        until_s = time.monotonic() + PATIENCE_S
        why = "nobody answers"
        while (left_s := until_s - time.monotonic()) > 0:
            ready = dict(poller.poll(round(left_s * 1000) + 1))
            if monitor in ready and (refused := why_refused(recv_monitor_message(monitor)["event"])):
                why = refused
                break
            if dealer in ready:
                try:
                    envelope = unpack(dealer.recv(), {ANSWER: LARGEST_ANSWER})
                except WireError as error:
                    raise ClusterError(f"{link.url}: {error}") from None
                if envelope.kind == ANSWER:
                    return msgspec.msgpack.decode(envelope.body, type=AnswerEnvelope)
    raise ClusterError(f"{link.url}: no answer from a cluster agent: {why}")


def link_of(url: str) -> Link:
    """To ``url`` with the key that CLUSTERCTL_KEY and CLUSTERCTL_SERVER name: by default ``clusterctl.key`` and
    ``cluster.pub`` in ~/.config/nodectl."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nodectl"
    key = os.environ.get("CLUSTERCTL_KEY") or home / "clusterctl.key"
    return Link(url, Path(key), os.environ.get("CLUSTERCTL_SERVER") or str(home / "cluster.pub"))
