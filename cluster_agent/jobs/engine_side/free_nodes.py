"""Which nodes may start a job now.

To most policies nodes are alike. Emulated nodes and others run different programs, some run the jobs of one user only,
and some jobs name their nodes, as some reservations do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cluster_agent.jobs.admission import runners
from cluster_agent.jobs.engine_side.start_rules import need_of
from cluster_agent.jobs.job import Job
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.owned_watts.live_owner import Owner
from cluster_agent.jobs.times import EngineClock
from cluster_agent.scheduler.switches.live_reservations import Reservations
from foundation.wire.job_messages import NodeJobs


class FreeNodes:
    """Of a partition with these ``nodes``."""

    def __init__(self, nodes: Mapping[str, Node], watts: Owner, reservations: Reservations, clock: EngineClock) -> None:
        self._nodes, self._watts, self._reservations, self._clock = nodes, watts, reservations, clock
        self._is_mixed = False
        """Whether any node runs one command only."""
        self._users: set[int] = set()
        """The users whose jobs some node runs exclusively."""

    def heard(self, news: NodeJobs) -> None:
        """What the node says of the jobs that it runs."""
        self._is_mixed |= bool(news.runs_only)
        if news.runs_uid >= 0:
            self._users.add(news.runs_uid)

    def of(self, job: Job) -> list[Node]:
        """The nodes that may start the job now; if these are too few, last those that have best-effort jobs. A job that
        names its nodes needs those, and the engine, to which nodes are alike, has preempted on others at most."""
        is_mixed = self._is_mixed or self._watts.switches.has_partitions
        is_any = not (is_mixed or job.on or job.spec.requested or self._users - {job.uid})
        nodes = self._nodes.values() if is_any else runners(job, self._nodes.values())
        free = [node for node in nodes if node.may_start]
        if len(free) < job.spec.nodes or self._reservations.name_nodes:
            free += self._yielding(job, nodes)
        if self._reservations.name_nodes:
            names = self._reservations.choose((node.name for node in free), need_of(job), self._clock.now_s())
            free = [self._nodes[name] for name in names]
        return sorted(free, key=_waits_for_an_end)

    def _yielding(self, job: Job, nodes: Iterable[Node]) -> list[Node]:
        """Those that have best-effort jobs alone, for another job."""
        return [] if job.spec.best_effort else [node for node in nodes if node.may_yield]


def _waits_for_an_end(node: Node) -> bool:
    """Whether the start of a job there waits for the end of one that is preempted."""
    return bool(node.leaving or node.yields)
