"""``clusterctl metrics``: the partition for Prometheus.

It runs as a process next to the cluster agent and sends requests to the agent's socket whenever it is scraped. It may
run as any user, since reading needs no right. So nobody who can reach the metrics can reach the loop that grants watts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple, get_args

import click
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster_agent.commands.jobs import rows_of
from cluster_agent.commands.nodes import socket_option
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.jobs.job import STATES
from cluster_agent.jobs.job_nodes import NodeState
from cluster_agent.serve.people_protocol import CountJobs, JobRow, ListJobs, ListNodes, NodeRow, ShowBudget
from foundation.shell.errors import UsageError
from foundation.shell.scrapes import serve_scrapes
from foundation.shell.settings import host_and_port

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
    _Gauge("loop_lag_seconds", "loop_lag_s", "The longest that anything waited for its handling in the last minute."),
)

NODES: Final = (
    _Gauge("node_wanted_watts", "wanted_w", "The cap wanted by the last plan."),
    _Gauge("node_granted_watts", "granted_w", "The cap granted."),
    _Gauge("node_in_force_watts", "in_force_w", "The cap in force by the node's last report."),
    _Gauge("node_counted_watts", "counts_w", "What the node counts in the ledger."),
    _Gauge("node_power_watts", "draws_w", "The node's power by its last report."),
    _Gauge("node_report_age_seconds", "heard_s_ago", "Seconds since its last report."),
)

OTHERS: Final = {
    "up": ("gauge", "Whether the cluster agent answers.", ()),
    "alarms": ("gauge", "Alarms that are on.", ()),
    "node_info": ("gauge", "1; the node's states.", ("node", "state", "jobs", "tag", "tag_source", "lease_class")),
    "jobs": ("gauge", "Jobs in the store.", ("state",)),
    "node_jobs": ("gauge", "Jobs that have the node.", ("node",)),
    "job_nodes": ("gauge", "Nodes by their state for jobs.", ("state",)),
    "node_energy_joules": (
        "counter",
        "What the node has drawn since the cluster agent started, by its reports. Begins at 0 with the agent.",
        ("node",),
    ),
    "energy_joules": (
        "counter",
        "What all nodes have drawn since the cluster agent started, as far as they report. Begins at 0 with the agent.",
        (),
    ),
    "job_power_watts": ("gauge", "The power of the job's nodes by their reports.", ("job", "user")),
    "job_energy_joules": (
        "counter",
        "The energy of the job so far; goes on after a restart of the cluster agent.",
        ("job", "user"),
    ),
}
"""The other metrics without their prefix ``clusterctl_``: kind, meaning, labels."""


def _other(name: str, value: float | None = None) -> GaugeMetricFamily | CounterMetricFamily:
    """One of ``OTHERS``, with its only value or, without one, for rows to be added."""
    kind, help_, labels = OTHERS[name]
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(f"clusterctl_{name}", help_, value=value, labels=labels or None)


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
            yield _other("up", 0)
            return
        yield _other("up", 1)
        for name, field, help_ in BUDGET:
            yield GaugeMetricFamily(f"clusterctl_{name}", help_, getattr(budget, field))
        yield _other("alarms", len(budget.alarms))
        yield _other("energy_joules", budget.energy_j)
        for name, field, help_ in NODES:
            family = GaugeMetricFamily(f"clusterctl_{name}", help_, labels=["node"])
            for row in rows:
                if (value := getattr(row, field)) is not None:
                    family.add_metric([row.name], value)
            yield family
        energy = _other("node_energy_joules")
        for row in rows:
            if row.energy_j is not None:
                energy.add_metric([row.name], row.energy_j)
        yield energy
        states = _other("node_info")
        for row in rows:
            states.add_metric([row.name, row.state, row.jobs, row.tag, row.tag_source, row.lease_class], 1)
        yield states
        yield from self._jobs(rows)

    def _jobs(self, rows: list[NodeRow]) -> Iterator[Metric]:
        try:
            tally = ask(self._socket, CountJobs())
            running = list(rows_of(self._socket, ListJobs(states=["running", "ending"])))
        except ClusterError:
            return  # it runs no jobs, or has stopped since
        jobs = _other("jobs")
        for state in STATES:
            jobs.add_metric([state], tally.get(state, 0))
        yield jobs
        node_jobs = _other("node_jobs")
        for row in rows:
            node_jobs.add_metric([row.name], 1 if row.job else 0)
        yield node_jobs
        yield from _of_jobs(running, rows)
        by_state = _other("job_nodes")
        numbers = Counter(row.jobs for row in rows)
        for state in get_args(NodeState):
            by_state.add_metric([state], numbers[state])
        yield by_state


def _of_jobs(running: list[JobRow], rows: list[NodeRow]) -> Iterator[Metric]:
    """Watts and joules of each job that has nodes. A job with a node whose power is not known has no watts here."""
    watts, joules = _other("job_power_watts"), _other("job_energy_joules")
    for job in running:
        draws = [row.draws_w for row in rows if row.job == str(job.job)]
        known = [draw for draw in draws if draw is not None]
        if draws and len(known) == len(draws):
            watts.add_metric([str(job.job), job.user], sum(known))
        if job.energy_j is not None:
            joules.add_metric([str(job.job), job.user], job.energy_j)
    yield watts
    yield joules


@click.command()
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Address for scrapes.")
@socket_option
def metrics(listen: str, socket: Place) -> None:
    """Serve the partition to Prometheus, at http://HOST:PORT/metrics, until SIGTERM or Ctrl-C."""
    try:
        host_and_port(listen)
    except UsageError:
        raise WrongUseError(f"--listen {listen}: give HOST:PORT, like {DEFAULT_LISTEN}") from None
    ask(socket, ShowBudget())  # the agent must run at the start; later it may come and go
    serve_scrapes("clusterctl metrics", listen, PartitionCollector(socket))
