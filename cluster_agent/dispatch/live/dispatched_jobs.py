"""What the head learns of jobs that nodes dispatch among themselves: it has not started them, and counts them.

Each report names the jobs that run on its node. They become jobs of another manager (``cluster_agent.jobs``): the
sharer sees them, and their joules are counted. A job is over when no node that had it names it any more. A node that is
silent may still run its job, also after a restart of the head: the stored job keeps that node until it is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cluster_agent.errors import ClusterError
from cluster_agent.jobs.foreign_jobs import ForeignJobs
from foundation.wire.power_messages import Report

CLUSTER: Final = "dardis"
"""The manager's name in ``clusterctl notify list``."""


class DispatchedJobs:
    """``start`` and ``end`` notice a job's run and its end: by number, and nodes."""

    def __init__(self, jobs: ForeignJobs, start: Callable[[str, list[str]], None], end: Callable[[str], None]) -> None:
        self._start, self._end = start, end
        self._on: dict[str, set[str]] = {}
        self._changed: set[str] = set()
        self.trouble = ""
        """Why the last change could not be stored; it is tried again with the next reports."""
        for job in jobs.all():
            if job.cluster == CLUSTER:
                self._on[job.job] = set(job.nodes)

    def hear(self, reports: Iterable[Report]) -> None:
        """Take what nodes say now."""
        for report in reports:
            here = set(map(str, report.dispatched))
            for job in here - self._on.keys():
                self._on[job] = set()
            for job, nodes in self._on.items():
                if (report.node in nodes) != (job in here):
                    nodes ^= {report.node}
                    self._changed.add(job)
        self.trouble = ""
        for job in sorted(self._changed):
            try:
                if self._on[job]:
                    self._start(job, sorted(self._on[job]))
                else:
                    self._end(job)
            except ClusterError as error:
                self.trouble = str(error)
                return
            self._changed.discard(job)
            if not self._on[job]:
                del self._on[job]
