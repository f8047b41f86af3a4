"""For which part of a job's time a cap bound its nodes, and what decided that cap: from the nodes' reports.

A report says whether the cap bound the node since the report before; what decided the cap is what ``clusterctl why``
says at that moment. A time between two reports counts for ``LONGEST_S`` at most, since nobody knows more of a longer
silence. On a node that jobs share, its cap binds each of them. These times are in memory alone: after a restart of the
cluster agent they begin again, and ``heard_s`` says how much of the job's time they cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cluster_agent.budget.sharers.needs import is_cap_bound
from cluster_agent.jobs.foreign_jobs import ForeignJob
from cluster_agent.serve.node_meter import LONGEST_S
from foundation.wire.power_messages import Report

Bound = Callable[[Report], tuple[str, float | None]]
"""For a report of a cap-bound node: what bound it, and the predicted slowdown."""

UNKNOWN: Final = "not known"
"""What bound a node for which the last plan had no cap."""


@dataclass(slots=True)
class BoundTime:
    """Node-seconds: ``heard_s`` that reports cover, and of these ``bound_s`` in which a cap bound, by what bound."""

    heard_s: float = 0.0
    bound_s: dict[str, float] = field(default_factory=dict)
    seen_s: dict[str, float] = field(default_factory=dict)  # by node, until when it is accounted for


class BoundTimes:
    """Of the jobs of another manager that run."""

    def __init__(self) -> None:
        self._jobs: dict[str, BoundTime] = {}

    def began(self, now_s: float, job: ForeignJob) -> None:
        """The job runs on these nodes; a second notice of a run changes nothing of the nodes that are known."""
        seen_s = self._jobs.setdefault(job.key, BoundTime()).seen_s
        for node in job.nodes:
            seen_s.setdefault(node, now_s)

    def hear(self, now_s: float, reports: Iterable[Report], jobs_on: Mapping[str, list[str]], bound: Bound) -> None:
        """Reports, and which jobs each node has."""
        for report in reports:
            jobs = jobs_on.get(report.node)
            if not jobs:
                continue
            by = (bound(report)[0] or UNKNOWN) if is_cap_bound(report) else ""
            for job in jobs:
                one = self._jobs.setdefault(job, BoundTime())
                seconds = min(max(now_s - one.seen_s.get(report.node, now_s), 0.0), LONGEST_S)
                one.seen_s[report.node] = now_s
                one.heard_s += seconds
                if by:
                    one.bound_s[by] = one.bound_s.get(by, 0.0) + seconds

    def of(self, job: ForeignJob) -> BoundTime:
        """Of a job, so far."""
        return self._jobs.get(job.key, BoundTime())

    def forget(self, job: ForeignJob) -> None:
        """The job has ended."""
        self._jobs.pop(job.key, None)
