"""``clusterctl metrics``: the partition for Prometheus.

It runs as a process next to the cluster agent and sends requests to the agent's socket whenever it is scraped. It may
run as any user, since reading needs no right. So nobody who can reach the metrics can reach the loop that grants watts.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple, get_args

import click
import prometheus_client
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from cluster_agent.commands.nodes import socket_option
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.jobs.job import STATES
from cluster_agent.jobs.job_nodes import NodeState
from cluster_agent.serve.people_protocol import CountJobs, ListNodes, NodeRow, ShowBudget
from nodectl.shell.plain_text import echo

DEFAULT_LISTEN: Final = "127.0.0.1:9741"


class _Gauge(NamedTuple):
    name: str
    field: str
    help: str


BUDGET: Final = (
    _Gauge("budget_watts", "budget_w", "The power budget in force, DC watts of nodes and the fixed power."),
    _Gauge("fixed_watts", "fixed_w", "The part of the budget that nobody caps."),
    _Gauge("counted_watts", "counts_w", "What all nodes count together: the most that they may draw."),
    _Gauge("reserve_watts", "reserve_w", "In reserve for nodes that reboot."),
    _Gauge("free_watts", "free_w", "What could still be granted."),
    _Gauge("over_watts", "over_w", "By how much nodes could exceed the budget now."),
    _Gauge("short_watts", "short_w", "What is missing for every node at its minimal operating power."),
    _Gauge("nodes", "nodes", "Nodes known."),
    _Gauge("silent_nodes", "silent", "Nodes without a lease."),
    _Gauge("epoch", "epoch", "The epoch of the cluster agent."),
)

NODES: Final = (
    _Gauge("node_wanted_watts", "wanted_w", "The cap wanted by the last plan."),
    _Gauge("node_granted_watts", "granted_w", "The cap granted."),
    _Gauge("node_in_force_watts", "in_force_w", "The cap in force by the node's last report."),
    _Gauge("node_counted_watts", "counts_w", "What the node counts in the ledger."),
    _Gauge("node_power_watts", "draws_w", "The node's power by its last report."),
    _Gauge("node_report_age_seconds", "heard_s_ago", "Seconds since its last report."),
)


class PartitionCollector(Collector):
    """Sends requests to the cluster agent at ``socket`` for each scrape; ``clusterctl_up`` is 0 if it does not
    answer."""

    def __init__(self, socket: Place) -> None:
        self._socket = socket

    def collect(self) -> Iterator[Metric]:
        """One family after the other; unknown values are left out."""
        try:
            budget = ask(self._socket, ShowBudget())
            rows = ask(self._socket, ListNodes())
        except ClusterError:
            yield GaugeMetricFamily("clusterctl_up", "Whether the cluster agent answers.", 0)
            return
        yield GaugeMetricFamily("clusterctl_up", "Whether the cluster agent answers.", 1)
        for name, field, help_ in BUDGET:
            yield GaugeMetricFamily(f"clusterctl_{name}", help_, getattr(budget, field))
        yield GaugeMetricFamily("clusterctl_alarms", "Alarms that are on.", len(budget.alarms))
        for name, field, help_ in NODES:
            family = GaugeMetricFamily(f"clusterctl_{name}", help_, labels=["node"])
            for row in rows:
                if (value := getattr(row, field)) is not None:
                    family.add_metric([row.name], value)
            yield family
        states = GaugeMetricFamily(
            "clusterctl_node_info",
            "1; the node's states.",
            labels=["node", "state", "jobs", "tag", "tag_source", "lease_class"],
        )
        for row in rows:
            states.add_metric([row.name, row.state, row.jobs, row.tag, row.tag_source, row.lease_class], 1)
        yield states
        yield from self._jobs(rows)

    def _jobs(self, rows: list[NodeRow]) -> Iterator[Metric]:
        try:
            tally = ask(self._socket, CountJobs())
        except ClusterError:
            return  # it runs no jobs, or has stopped since
        jobs = GaugeMetricFamily("clusterctl_jobs", "Jobs in the store.", labels=["state"])
        for state in STATES:
            jobs.add_metric([state], tally.get(state, 0))
        yield jobs
        node_jobs = GaugeMetricFamily("clusterctl_node_jobs", "Jobs that have the node.", labels=["node"])
        for row in rows:
            node_jobs.add_metric([row.name], 1 if row.job else 0)
        yield node_jobs
        by_state = GaugeMetricFamily("clusterctl_job_nodes", "Nodes by their state for jobs.", labels=["state"])
        numbers = Counter(row.jobs for row in rows)
        for state in get_args(NodeState):
            by_state.add_metric([state], numbers[state])
        yield by_state


@click.command()
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Address for scrapes.")
@socket_option
def metrics(listen: str, socket: Place) -> None:
    """Serve the partition to Prometheus, at http://HOST:PORT/metrics, until SIGTERM or Ctrl-C."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise WrongUseError(f"--listen {listen}: give HOST:PORT, like {DEFAULT_LISTEN}")
    ask(socket, ShowBudget())  # the agent must run at the start; later it may come and go
    registry = CollectorRegistry()
    registry.register(PartitionCollector(socket))
    stops = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # also in the server's threads, which begin here
    try:
        try:
            server, _ = prometheus_client.start_http_server(int(port), host.strip("[]"), registry)
        except OSError as error:
            raise ClusterError(f"--listen {listen}: cannot listen there: {error.strerror or error}") from None
        echo(f"clusterctl metrics: http://{listen}/metrics", to_stderr=True)
        signal.sigwait(stops)
        server.shutdown()
        server.server_close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
