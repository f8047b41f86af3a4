"""What both commands ``metrics`` do: answer Prometheus at an address until a signal ends the process."""

from __future__ import annotations

import signal
import socket

import prometheus_client
from prometheus_client.registry import Collector, CollectorRegistry

from foundation.shell.errors import NodectlError
from foundation.shell.plain_text import echo
from foundation.shell.settings import host_and_port


def _addresses(host: str, port: int) -> list[str]:
    """Every address of a name, of both families: a server for Prometheus listens on one address. ``OSError`` where it
    has none of this machine."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:
        raise OSError(socket.EAI_NONAME, f"{host!r} cannot be a name of a machine") from None
    places = list(dict.fromkeys((family, str(place[0])) for family, *_, place in found))
    if len(places) > 1:
        places = [one for one in places if _is_here(*one)] or places[:1]
    return [place for _, place in places]


def _is_here(family: int, address: str) -> bool:
    """Whether this machine has the address: a kernel without IPv6 has names with such addresses all the same."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def serve_scrapes(program: str, listen: str, collector: Collector) -> None:
    """Serve at http://``listen``/metrics until SIGTERM or SIGINT. ``listen`` is checked (``host_and_port``)."""
    host, port = host_and_port(listen)
    registry = CollectorRegistry()
    registry.register(collector)
    stops = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # also in the server's threads, which begin here
    try:
        try:
            servers = [
                prometheus_client.start_http_server(port, place, registry)[0] for place in _addresses(host, port)
            ]
        except OSError as error:
            raise NodectlError(f"--listen {listen}: cannot listen there: {error.strerror or error}") from None
        echo(f"{program}: http://{listen}/metrics", to_stderr=True)
        signal.sigwait(stops)
        for server in servers:
            server.shutdown()
            server.server_close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
