"""Where the URL of a cluster agent leads: each address of its name, of both families, and why none answers.

libzmq resolves a name to one address of one family, and tries that one for ever. A name often has addresses of both
families of which one answers: the agent listens on one, a route or a firewall is missing for the other. So names are
resolved here, and whoever connects tries their addresses in turn. libzmq does not say why a connection cannot be made;
``why_unreachable`` finds out by a connection of its own.
Sources: getaddrinfo(3), RFC 6724 (its order), RFC 8305 ("happy eyeballs"), RFC 4007 (zones).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from foundation.shell.settings import tcp_address

ANSWERS_WITHIN_S: Final = 2.0
"""Ours: in this time a machine that is there has accepted a connection, or refused it."""

T = TypeVar("T")


def is_name(url: str) -> bool:
    """Whether an URL has a name that must be resolved; false for an address and for ipc:// and the like."""
    address = tcp_address(url)
    return address is not None and _literal(address[0]) is None


def is_loopback(url: str) -> bool:
    """Whether an URL cannot leave this machine."""
    address = tcp_address(url)
    if address is None:
        return url.startswith(("ipc://", "inproc://"))
    literal = _literal(address[0])
    return address[0] == "localhost" if literal is None else literal.is_loopback


def is_ipv6(url: str) -> bool:
    """Whether libzmq needs ZMQ_IPV6 for this URL: an IPv6 address, or all addresses of a machine."""
    return "[" in url or url.startswith("tcp://*:")


def endpoints(url: str) -> list[str]:
    """The URLs, without names, that an URL leads to, in the order of getaddrinfo(3). ``OSError``, whose ``strerror``
    has the reason, where its name has no address."""
    address = tcp_address(url)
    if address is None or _literal(address[0]) is not None:
        return [url]
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except (socket.gaierror, UnicodeError):
        try:  # AI_ADDRCONFIG does not count loopback: a machine without a network has names, too
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise OSError(socket.EAI_NONAME, f"{host!r} cannot be a name of a machine") from None
    return list(dict.fromkeys(_endpoint(family, str(place[0]), port, place) for family, *_, place in found))


def why_unreachable(endpoint: str, within_s: float = ANSWERS_WITHIN_S) -> str:
    """Why no connection to this address can be made; "" if one can, or if it is none of TCP. Waits so long."""
    address = tcp_address(endpoint)
    if address is None:
        return ""
    try:
        socket.create_connection(address, within_s).close()
    except TimeoutError:
        return f"no answer within {within_s:g} s"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error.strerror or error)
    return ""


def why_none_answers(url: str) -> str:
    """One line on all addresses of an URL; "" if one of them accepts connections. Waits, for each."""
    try:
        found = endpoints(url)
    except OSError as error:
        return f"its name has no address: {error.strerror}"
    reasons = []
    for endpoint in found:
        why = why_unreachable(endpoint)
        if not why:
            return ""
        reasons.append(why if found == [url] else f"{endpoint.removeprefix('tcp://')}: {why}")
    return "; ".join(reasons)


def plain_address(address: str) -> str:
    """A peer's address as people write it: of an IPv4 peer on a socket of both families without its prefix."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(address)
        return str(getattr(found, "ipv4_mapped", None) or found)
    return address


class InBackground(Generic[T]):
    """A call that may block, in a thread of its own that the process's end does not wait for."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._result: list[T | OSError] = []

        def run() -> None:
            try:
                self._result.append(call())
            except OSError as error:
                self._result.append(error)

        threading.Thread(target=run, name="addresses", daemon=True).start()

    def is_done(self) -> bool:
        """Whether ``result`` may be called."""
        return bool(self._result)

    def result(self) -> T:
        """What the call returned; its ``OSError`` is raised."""
        (found,) = self._result
        if isinstance(found, OSError):
            raise found
        return found


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def _endpoint(family: int, host: str, port: int, place: tuple[object, ...]) -> str:
    if family != socket.AF_INET6:
        return f"tcp://{host}:{port}"
    zone = int(str(place[3])) if len(place) > 3 else 0
    if zone and "%" not in host:  # a link-local address is one of an interface
        with contextlib.suppress(OSError):
            host = f"{host}%{socket.if_indextoname(zone)}"
    return f"tcp://[{host}]:{port}"
