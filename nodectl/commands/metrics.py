"""``nodectl metrics`` and ``nodectl mqtt``: this node for Prometheus, and for a broker of MQTT.

Each is a process of its own without any right: it reads the page that the agent replaces once a second
(``nodectl.loop.metrics_page``). So nobody who can reach the figures can reach what moves knobs, and the agent needs no
network.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import click
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from foundation.mqtt.examon_topics import Source, messages
from foundation.shell.errors import UsageError
from foundation.shell.scrapes import serve_scrapes
from nodectl.commands import config_option
from nodectl.commands.run import configure
from nodectl.config import DEFAULT_PATH
from nodectl.loop.metrics_page import FAMILIES, STALE_PERIODS, STALE_S, WRITTEN, metrics_path
from pmu.system import node_lock_path


class PageCollector(Collector):
    """Reads the agent's page for each scrape. ``nodectl_up`` is 0 if there is none, or an old one (``STALE_S``)."""

    def __init__(self, path: str) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        """What the agent has published; nothing but ``nodectl_up`` when it is down."""
        try:
            with open(self._path, encoding="utf-8") as file:
                text = file.read()
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - float(text.rpartition(WRITTEN)[2])
            families = list(text_string_to_metric_families(text))
        except (OSError, ValueError):
            age_s, families = math.inf, []
        periods_s = [row.value for one in families if one.name == "nodectl_period_seconds" for row in one.samples]
        is_fresh = 0.0 <= age_s < max(STALE_S, STALE_PERIODS * max(periods_s, default=0.0))
        yield GaugeMetricFamily("nodectl_up", FAMILIES["up"][1], float(is_fresh))
        yield from families if is_fresh else ()


@click.command()
@config_option
@click.option("--listen", metavar="HOST:PORT", help="Address for scrapes, in place of [metrics] listen.")
def metrics(file: Path | None, listen: str | None) -> None:
    """Serve this node to Prometheus, at http://HOST:PORT/metrics, until SIGTERM or Ctrl-C.

    The agent publishes its figures if the settings have [metrics] listen.
    """
    config = configure(file, {("metrics", "listen"): ("--listen", listen)} if listen is not None else {})
    if not config.metrics.listen:
        raise UsageError(
            f'{file or DEFAULT_PATH}: set [metrics] listen = "127.0.0.1:9742": without it nothing is shown'
        )
    serve_scrapes("nodectl metrics", config.metrics.listen, PageCollector(metrics_path(node_lock_path())))


@click.command()
@config_option
def mqtt(file: Path | None) -> None:
    """Publish this node's figures to the MQTT broker of [mqtt], in ExaMon's naming, until SIGTERM or Ctrl-C."""
    from foundation.mqtt.publisher import publish_figures

    config = configure(file, {})
    settings, node = config.mqtt, config.cluster.name
    if not settings.broker:
        raise UsageError(
            f'{file or DEFAULT_PATH}: set [mqtt] broker = "broker.site:8883", org and cluster: without them nothing is'
            " published"
        )
    source, page = Source(settings.org, settings.cluster, "nodectl_pub", node), metrics_path(node_lock_path())
    collector = PageCollector(page)
    publish_figures(settings, source, f"nodectl-{node}", lambda: messages(collector.collect(), source, settings.users))
