"""Which nodes may start a job now.

To most policies nodes are alike. Emulated nodes and others run different programs, some run the jobs of one user only,
and some jobs name their nodes, as some reservations do.
"""

from __future__ import annotations

from collections.abc import Mapping

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
        """The nodes that may start the job now."""
        is_mixed = self._is_mixed or self._watts.switches.has_partitions
        is_any = not (is_mixed or job.on or job.spec.requested or self._users - {job.uid})
        nodes = self._nodes.values() if is_any else runners(job, self._nodes.values())
        free = [node for node in nodes if node.may_start]
        if not self._reservations.name_nodes:
            return free
        names = self._reservations.choose((node.name for node in free), need_of(job), self._clock.now_s())
        return [self._nodes[name] for name in names]
