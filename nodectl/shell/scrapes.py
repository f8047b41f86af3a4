"""What both commands ``metrics`` do: answer Prometheus at an address until a signal ends the process."""

from __future__ import annotations

import signal

import prometheus_client
from prometheus_client.registry import Collector, CollectorRegistry

from nodectl.shell.errors import NodectlError
from nodectl.shell.plain_text import echo
from nodectl.shell.settings import host_and_port


def serve_scrapes(program: str, listen: str, collector: Collector) -> None:
    """Serve at http://``listen``/metrics until SIGTERM or SIGINT. ``listen`` is checked (``host_and_port``)."""
    host, port = host_and_port(listen)
    registry = CollectorRegistry()
    registry.register(collector)
    stops = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # also in the server's threads, which begin here
    try:
        try:
            server, _ = prometheus_client.start_http_server(port, host, registry)
        except OSError as error:
            raise NodectlError(f"--listen {listen}: cannot listen there: {error.strerror or error}") from None
        echo(f"{program}: http://{listen}/metrics", to_stderr=True)
        signal.sigwait(stops)
        server.shutdown()
        server.server_close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
