"""Where the page listens, and who is believed there.

A plain Unix socket: the kernel says who is at the other end. The proxy's Unix socket: the proxy says who is, in one
header, and the kernel that it is the proxy; what other sockets get in that header is ignored. Loopback: nobody is
known, or, with a token in the address, whoever has started the process.

A name in ``Host`` that is not this machine's would let a page from elsewhere read this one, once its name points to
127.0.0.1 (DNS rebinding), so only a proxy may use other names.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeAlias

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.admin import clear_stale
from cluster_agent.page.access import NOBODY, Viewers, is_name
from cluster_agent.page.http_messages import HttpRequest, RefusedRequestError
from cluster_agent.page.snapshot import Viewer
from foundation.directories import make_shared_directory
from foundation.shell.errors import UsageError
from foundation.shell.settings import host_and_port

BACKLOG: Final = 128
HERE: Final = ("localhost", "127.0.0.1", "[::1]", "page")
"""Host names of this machine; ``page`` is for whoever connects to a Unix socket and needs any name."""

_PEER: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


@dataclass(frozen=True, slots=True)
class PlainSocket:
    """Users of this machine."""

    listening: socket.socket
    viewers: Viewers
    base: str = ""

    def owner(self, peer: socket.socket) -> int | None:
        """The user at the other end."""
        return uid_of(peer)

    def viewer(self, peer: socket.socket, request: HttpRequest) -> Viewer:
        """As the kernel says."""
        check_host(request)
        return self.viewers.of_uid(uid_of(peer))


@dataclass(frozen=True, slots=True)
class ProxySocket:
    """A proxy that has authenticated its users. ``header``: in small letters; ``uids``: of the proxy."""

    listening: socket.socket
    viewers: Viewers
    header: str
    uids: frozenset[int]
    base: str = ""

    def owner(self, peer: socket.socket) -> int | None:
        """All come from the proxy."""
        return None

    def viewer(self, peer: socket.socket, request: HttpRequest) -> Viewer:
        """As the proxy says; nobody if it says nothing."""
        if uid_of(peer) not in self.uids:
            raise RefusedRequestError(HTTPStatus.FORBIDDEN, "this socket is for the proxy (--proxy-user)")
        name = request.headers.get(self.header, "")
        if name and not is_name(name):
            raise RefusedRequestError(HTTPStatus.BAD_REQUEST, f"{self.header} is not the name of a user")
        return self.viewers.of_name(name) if name else NOBODY


@dataclass(frozen=True, slots=True)
class Loopback:
    """A port of this machine. Of addresses without ``base``, which then has a token, it has no page."""

    listening: socket.socket
    knows: Viewer = NOBODY
    base: str = ""

    def owner(self, peer: socket.socket) -> int | None:
        """The kernel does not say."""
        return None

    def viewer(self, peer: socket.socket, request: HttpRequest) -> Viewer:
        """Whoever has the token."""
        check_host(request)
        given = request.path.encode()[: len(self.base.encode())]
        if not hmac.compare_digest(given, self.base.encode()):
            raise RefusedRequestError(HTTPStatus.NOT_FOUND, "no such page")
        return self.knows


Entrance: TypeAlias = PlainSocket | ProxySocket | Loopback
"""A listening socket and its rule. ``base``: what all its addresses begin with, "" or a path without a slash at its
end. ``owner``: the user whose share of connections a peer is part of; None: nobody's. ``viewer``: who looks;
``RefusedRequestError`` for a request that is not taken here."""


def uid_of(peer: socket.socket) -> int:
    """Who connected to this Unix socket."""
    _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(uid)


def check_host(request: HttpRequest) -> None:
    """``RefusedRequestError`` if the request is for another machine's name."""
    host = request.host.lower()
    if request.headers.get("host") is not None and host not in HERE and not _is_loopback(host):
        raise RefusedRequestError(HTTPStatus.MISDIRECTED_REQUEST, "this page has no such name: use localhost")


def _is_loopback(host: str) -> bool:
    """Whether it is an address that leads here: only names can be made to lead elsewhere."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def listen_at_path(path: Path, mode: int) -> socket.socket:
    """A Unix socket with this mode; ``ClusterError`` if it cannot be there."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        make_shared_directory(path.parent)
        clear_stale(path, "another page is; stop it first (SIGTERM)")
        before = os.umask(0o777 & ~mode)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ClusterError(f"{path}: cannot listen there: {error.strerror or error}") from None
    return listening


def loopback_of(text: str) -> tuple[str, int]:
    """HOST:PORT of loopback; ``WrongUseError`` for anything else."""
    try:
        host, port = host_and_port(text)
        host = "127.0.0.1" if host == "localhost" else host
        is_loopback = ip_address(host).is_loopback
    except (UsageError, ValueError):
        raise WrongUseError(f"--listen {text}: give /PATH of a Unix socket, or 127.0.0.1:PORT") from None
    if not is_loopback:
        raise WrongUseError(
            f"--listen {text}: others could connect there: give 127.0.0.1:PORT, or a proxy --proxy-socket"
        )
    return host, port


def listen_on_loopback(host: str, port: int = 0) -> socket.socket:
    """At an address of loopback; port 0: any that is free. ``ClusterError`` if that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ClusterError(f"{host}:{port}: cannot listen there: {error.strerror or error}") from None
    return listening


def stop_listening(entrance: Entrance) -> None:
    """Close it, and remove its path."""
    name = entrance.listening.getsockname()
    entrance.listening.close()
    if isinstance(name, str):
        with contextlib.suppress(OSError):
            Path(name).unlink()
