"""``clusterctl metrics`` and ``clusterctl mqtt``: the partition for Prometheus, and for a broker of MQTT.

Each runs as a process next to the cluster agent, and sends requests to the agent's socket when it is scraped or its
time comes. It may run as any user, since reading needs no right. So nobody who can reach the figures can reach the loop
that grants watts.

Dashboards and rules are made from these names (``docs.generator.monitoring``): one that is renamed here must be renamed
there. A job's number is the label ``jobid``, since Prometheus gives ``job`` a meaning of its own.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, get_args

import click
import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster_agent.budget.group_views import GroupView
from cluster_agent.commands.jobs import rows_of, rows_since
from cluster_agent.commands.nodes import socket_option
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.history.watts_ahead import request
from cluster_agent.jobs.job import STATES
from cluster_agent.jobs.job_nodes import NodeState
from cluster_agent.model_service.mqtt_jobs import PLUGIN, message_of
from cluster_agent.scheduler.switches import OPTIONS
from cluster_agent.serve.alarms import KINDS
from cluster_agent.serve.config import DEFAULT_CONFIG
from cluster_agent.serve.people_protocol import (
    BudgetView,
    CountJobs,
    CountJoules,
    JobRow,
    ListBudgetChanges,
    ListHistory,
    ListJobs,
    ListNodes,
    ListRunning,
    NodeRow,
    RunningJob,
    ShowBudget,
    UserJoules,
)
from foundation.mqtt.examon_topics import Message, Source, messages
from foundation.mqtt.mqtt_settings import MqttSettings, read_mqtt_settings
from foundation.shell.errors import UsageError
from foundation.shell.scrapes import serve_scrapes
from foundation.shell.settings import host_and_port

DEFAULT_LISTEN: Final = "127.0.0.1:9741"
ENDED_EVERY_S, ENDED_WITHIN_S = 60.0, 3600.0
"""Ours: so often the history is read for a broker, from so long ago: another manager reports ends late."""


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
    _Gauge("store_free_bytes", "store_free_bytes", "What the file system of the store has left."),
)

NODES: Final = (
    _Gauge("node_wanted_watts", "wanted_w", "The cap wanted by the last plan."),
    _Gauge("node_granted_watts", "granted_w", "The cap granted."),
    _Gauge("node_in_force_watts", "in_force_w", "The cap in force by the node's last report."),
    _Gauge("node_counted_watts", "counts_w", "What the node counts in the ledger."),
    _Gauge("node_power_watts", "draws_w", "The node's power by its last report; none of a node that does not report."),
    _Gauge("node_inlet_celsius", "inlet_c", "The air that it takes in, by its last report; none without a sensor."),
    _Gauge("node_report_age_seconds", "heard_s_ago", "Seconds since its last report."),
)

GROUPS: Final = (
    _Gauge("group_limit_watts", "limit_w", "The limit in force, DC watts of its nodes and its gear."),
    _Gauge("group_fixed_watts", "fixed_w", "What its gear draws, which nobody caps."),
    _Gauge("group_in_force_watts", "in_force_w", "The caps in force of its nodes together."),
    _Gauge("group_counted_watts", "counts_w", "What its nodes count together: the most that they may draw."),
    _Gauge("group_reserve_watts", "reserve_w", "In reserve for its nodes that reboot."),
    _Gauge("group_free_watts", "free_w", "What its limit still allows to grant; below 0: it must come down first."),
    _Gauge("group_over_watts", "over_w", "By how much its nodes and gear could exceed the limit now."),
    _Gauge("group_short_watts", "short_w", "What is missing for each of its nodes at its minimal operating power."),
    _Gauge("group_power_watts", "draws_w", "The power of its nodes that report it, without its gear."),
    _Gauge("group_nodes", "nodes", "Its nodes."),
    _Gauge("group_bound_nodes", "binds", "Its nodes whose caps its limit decided at the last plan."),
)
"""Of each group of the budget, with those below it: a sum over all groups counts watts more than once."""

OF_JOB: Final = ("jobid", "user", "manager")
"""``manager``: the cluster of another job manager, "another" if it named none; empty for the cluster agent's own."""

OTHERS: Final = {
    "up": ("gauge", "Whether the cluster agent answers.", ()),
    "alarms": ("gauge", "Alarms that are on.", ()),
    "alarm": ("gauge", "1 while an alarm of this kind is on, else 0.", ("kind",)),
    "budget_set_timestamp_seconds": ("gauge", "When the budget was set last, in Unix seconds, and by whom.", ("by",)),
    "group_info": ("gauge", "1; the group of the budget that the group is in, empty: the budget.", ("group", "parent")),
    "node_info": ("gauge", "1; the node's states.", ("node", "state", "jobs", "tag", "tag_source", "lease_class")),
    "node_bound": ("gauge", "1 for a node that its cap bounds, by its last report; what decided that cap.",
                   ("node", "by")),
    "node_waits": ("gauge", "1 for a node that has not the wanted cap yet; what it waits for.", ("node", "waits_for")),
    "jobs": ("gauge", "Jobs in the store.", ("state",)),
    "switches": (
        "counter",
        "Jobs that limits, or the nodes of their queue alone, have kept waiting or let go ahead; nodes that failed and"
        " ended a job, or had one wait. Begins at 0 with the agent.",
        ("switch",),
    ),
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
    "job_power_watts": ("gauge", "The power of the job's nodes by their reports.", OF_JOB),
    "job_energy_joules": (
        "counter",
        "The energy of the job so far; goes on after a restart of the cluster agent. A job of another manager that"
        " shares a node has those of its share, if the node's agent knows them, else none.",
        OF_JOB,
    ),
    "job_node_info": ("gauge", "1; the job has the node.", (*OF_JOB, "node")),
    "user_energy_joules": (
        "counter",
        "The energy of the user's jobs that have ended since the cluster agent started. Begins at 0 with the agent."
        " Jobs whose energy is not known add nothing.",
        ("user",),
    ),
    "user_ended_jobs": (
        "counter",
        "The user's jobs that have ended since the cluster agent started, by whether their energy is known. Begins at 0"
        " with the agent.",
        ("user", "energy"),
    ),
}  # fmt: skip
"""The other metrics without their prefix ``clusterctl_``: kind, meaning, labels."""


def _other(name: str, value: float | None = None) -> GaugeMetricFamily | CounterMetricFamily:
    """One of ``OTHERS``, with its only value or, without one, for rows to be added."""
    kind, help_, labels = OTHERS[name]
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(f"clusterctl_{name}", help_, value=value, labels=labels or None)


class _Running(NamedTuple):
    """A job that has nodes, whoever manages it. ``draws_w``: of each node that it has for itself; None: not known."""

    labels: list[str]
    nodes: list[str]
    draws_w: list[float | None]
    energy_j: float | None


class PartitionCollector(Collector):
    """Sends requests to the cluster agent at ``socket`` for each scrape; ``clusterctl_up`` is 0 if it does not
    answer."""

    def __init__(self, socket: Place) -> None:
        self._socket = socket

    def collect(self) -> Iterator[Metric]:
        """One family after the other; unknown values are left out."""
        try:
            budget = ask(self._socket, ShowBudget())
            rows = [_with_known_power(row) for row in ask(self._socket, ListNodes())]
        except ClusterError:
            yield _other("up", 0)
            return
        yield _other("up", 1)
        yield from _of_budget(budget)
        yield from _of_nodes(rows)
        running: list[_Running] = []
        is_known = False
        with contextlib.suppress(ClusterError):  # it runs no jobs, or has stopped since
            own = list(rows_of(self._socket, ListJobs(states=["running", "ending"])))
            tally = ask(self._socket, CountJobs())
            running += _own(own, rows)
            is_known = True
            yield from _of_states(tally, rows)
        with contextlib.suppress(ClusterError):  # it has stopped since, or is an older one
            running += _of_others(ask(self._socket, ListRunning()), rows)
            is_known = True
            yield self._changed()
            yield from self._of_users(running)
        if is_known:
            yield from _of_jobs(running, rows)

    def _changed(self) -> Metric:
        changed = _other("budget_set_timestamp_seconds")
        for change in ask(self._socket, ListBudgetChanges())[:1]:
            changed.add_metric([change.who], change.unix_s)
        return changed

    def _of_users(self, running: list[_Running]) -> Iterator[Metric]:
        """Joules by user. Who has a job that runs is there with 0 at least: Prometheus takes the first value that it
        sees of a counter as its beginning."""
        joules, jobs = _other("user_energy_joules"), _other("user_ended_jobs")
        users = {one.user: one for one in ask(self._socket, CountJoules())}
        for user in sorted({*users, *(job.labels[1] for job in running)}):
            one = users.get(user, UserJoules(user))
            joules.add_metric([user], one.energy_j)
            jobs.add_metric([user, "known"], one.jobs - one.unknown)
            jobs.add_metric([user, "unknown"], one.unknown)
        yield joules
        yield jobs


def _with_known_power(row: NodeRow) -> NodeRow:
    """Without the power of the last report where that is over: others may have the watts of a silent node, and of one
    that is off no cap is in force, so sums and alerts would find too much."""
    return msgspec.structs.replace(row, draws_w=None) if row.state in ("silent", "off", "left") else row


def _of_budget(budget: BudgetView) -> Iterator[Metric]:
    for name, field, help_ in BUDGET:
        if (value := getattr(budget, field)) is not None:
            yield GaugeMetricFamily(f"clusterctl_{name}", help_, value)
    yield _other("alarms", len(budget.alarms))
    kinds = _other("alarm")
    for kind in KINDS:
        kinds.add_metric([kind], float(kind in budget.alarm_kinds))
    yield kinds
    yield _other("energy_joules", budget.energy_j)
    yield from _of_groups(budget.groups)


def _of_groups(groups: list[GroupView]) -> Iterator[Metric]:
    """As many series of each as there are groups, and none without groups."""
    if not groups:
        return
    for name, field, help_ in GROUPS:
        family = GaugeMetricFamily(f"clusterctl_{name}", help_, labels=["group"])
        for one in groups:
            if (value := getattr(one, field)) is not None:
                family.add_metric([one.name], value)
        yield family
    info = _other("group_info")
    for one in groups:
        info.add_metric([one.name, one.parent], 1)
    yield info


def _of_nodes(rows: list[NodeRow]) -> Iterator[Metric]:
    for name, field, help_ in NODES:
        family = GaugeMetricFamily(f"clusterctl_{name}", help_, labels=["node"])
        for row in rows:
            if (value := getattr(row, field)) is not None:
                family.add_metric([row.name], value)
        yield family
    energy, states = _other("node_energy_joules"), _other("node_info")
    bound, waits = _other("node_bound"), _other("node_waits")
    for row in rows:
        if row.energy_j is not None:
            energy.add_metric([row.name], row.energy_j)
        states.add_metric([row.name, row.state, row.jobs, row.tag, row.tag_source, row.lease_class], 1)
        if row.bound_by:
            bound.add_metric([row.name, row.bound_by], 1)
        if row.waits_for:
            waits.add_metric([row.name, row.waits_for], 1)
    yield from (energy, states, bound, waits)


def _of_states(tally: dict[str, int], rows: list[NodeRow]) -> Iterator[Metric]:
    """Jobs and nodes by their states, where the cluster agent runs jobs."""
    jobs, by_state = _other("jobs"), _other("job_nodes")
    for state in STATES:
        jobs.add_metric([state], tally.get(state, 0))
    numbers = Counter(row.jobs for row in rows)
    for state in get_args(NodeState):
        by_state.add_metric([state], numbers[state])
    switched = _other("switches")
    for switch in OPTIONS:
        if switch in tally:
            switched.add_metric([switch], tally[switch])
    yield from (jobs, by_state, switched)


def _own(jobs: list[JobRow], rows: list[NodeRow]) -> Iterator[_Running]:
    nodes: dict[str, list[NodeRow]] = defaultdict(list)
    for row in rows:
        nodes[row.job].append(row)
    for job in jobs:
        its = nodes[str(job.job)]
        names = [row.name for row in its]
        yield _Running([str(job.job), job.user, ""], names, [row.draws_w for row in its], job.energy_j)


def _of_others(jobs: list[RunningJob], rows: list[NodeRow]) -> Iterator[_Running]:
    draws_w = {row.name: row.draws_w for row in rows}
    for job in jobs:
        of_it = [None if job.is_shared else draws_w.get(name) for name in job.nodes]
        yield _Running([job.job, job.user, job.manager or "another"], job.nodes, of_it, job.energy_j)


def _of_jobs(running: list[_Running], rows: list[NodeRow]) -> Iterator[Metric]:
    """Watts, joules and nodes of each job that has nodes. A job with a node whose power is not known has no watts."""
    watts, joules, info = _other("job_power_watts"), _other("job_energy_joules"), _other("job_node_info")
    numbers: Counter[str] = Counter()
    for job in running:
        known = [draw for draw in job.draws_w if draw is not None]
        if known and len(known) == len(job.nodes):
            watts.add_metric(job.labels, sum(known))
        if job.energy_j is not None:
            joules.add_metric(job.labels, job.energy_j)
        for node in job.nodes:
            info.add_metric([*job.labels, node], 1)
        numbers.update(job.nodes)
    node_jobs = _other("node_jobs")
    for row in rows:
        node_jobs.add_metric([row.name], numbers[row.name])
    yield from (watts, joules, info, node_jobs)


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


@click.command()
@click.option(
    "--config", "path", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, show_default=True, help="Settings."
)
@socket_option
def mqtt(path: Path, socket: Place) -> None:
    """Publish the partition's figures to the MQTT broker of [mqtt], in ExaMon's naming, until SIGTERM or Ctrl-C."""
    from foundation.mqtt.publisher import publish_figures

    settings = read_mqtt_settings(path)
    figures = BrokerFigures(settings, socket)
    publish_figures(settings, figures.source, f"clusterctl-{platform.node()}", figures)


class BrokerFigures:
    """What Prometheus would get, as messages; and each job that has ended, if users may be named."""

    def __init__(self, settings: MqttSettings, socket: Place) -> None:
        self.source = Source(settings.org, settings.cluster, PLUGIN)
        self._settings, self._socket = settings, socket
        self._due_s = 0.0
        self._sent: dict[str, float] = {}

    def __call__(self) -> Iterator[Message]:
        """All that there is now."""
        yield from messages(PartitionCollector(self._socket).collect(), self.source, self._settings.users)
        now_s = time.monotonic()
        if self._settings.users and now_s >= self._due_s:
            self._due_s = now_s + ENDED_EVERY_S
            with contextlib.suppress(ClusterError):
                yield from self._ended(time.time() - ENDED_WITHIN_S)

    def _ended(self, since_s: float) -> Iterator[Message]:
        """Jobs that have ended since then, each once. Readers know a job that comes again, as after a restart."""
        self._sent = {key: ended_s for key, ended_s in self._sent.items() if ended_s > since_s}
        for row in rows_since(self._socket, ListHistory(since_s)):
            key = f"{row.manager}/{row.job}/{row.began_s}"
            if key in self._sent:
                continue
            submission = request(row.user, row.application, row.nodes, row.request_s)
            if (found := message_of(row, submission, self.source)) is not None:
                self._sent[key] = row.ended_s
                yield found
