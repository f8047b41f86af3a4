"""The joules of jobs that another manager ran: from the energy counters that nodes report, a row when a job has ended.

A node counts its joules in this boot (``Report.energy_mj``). A job's are the difference of the counters of its nodes
between the notice of its start and that of its end; a counter is continued from the last report by that report's power,
at most for ``LONGEST_S``. That is exact for nodes that a job has for itself, up to the error of that continuation, a
second of the difference in power.

Which of the jobs that shared a node drew what, these counters do not say. The nodes' agents do, where Slurm's Prolog
and Epilog are installed (``Report.site_jobs``, ``nodectl.site_jobs.joules_page``): then a job's joules are the sum of
what each of its nodes says, continued in the same way. Elsewhere such a job has none. Nor has a job one of whose nodes
has no counter, or booted while it ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cluster_agent.history.kept_rows import KeptRows
from cluster_agent.jobs.foreign_jobs import ForeignJob
from cluster_agent.serve.node_meter import LONGEST_S
from cluster_agent.serve.people_protocol import JoulesRow
from cluster_agent.slurm.bound_times import BoundTime
from foundation.wire.power_messages import Report

Counters = Mapping[str, tuple[str, int]]


def counter(report: Report, heard_s: float, now_s: float) -> tuple[str, int] | None:
    """Of a node by now: the boot that it counts, and mJ; None: it has none. ``heard_s``: when its report came."""
    if report.energy_mj < 0:
        return None
    return report.boot_id, report.energy_mj + _since_mj(max(report.power_mw, 0), heard_s, now_s)


def share_mj(report: Report, job: str, heard_s: float, now_s: float) -> int | None:
    """What a job has drawn of a node that it shares, by now; None: the node's agent does not say."""
    drawn_mj, power_mw = report.site_jobs.get(job, (None, 0))
    return None if drawn_mj is None else drawn_mj + _since_mj(power_mw, heard_s, now_s)


def _since_mj(power_mw: int, heard_s: float, now_s: float) -> int:
    """What has been drawn since a report, at most for ``LONGEST_S``."""
    return round(power_mw * min(max(now_s - heard_s, 0.0), LONGEST_S))


def row(job: ForeignJob, now: Counters, shares_mj: Mapping[str, int], wall_s: float, bound: BoundTime) -> JoulesRow:
    """Of a job that has ended. ``now``: the counters of its nodes; ``shares_mj``: what of each is the job's."""
    return JoulesRow(
        job=job.job, cluster=job.cluster, submitted_s=job.submitted_s, restarts=job.restarts, user=job.user,
        title=job.title, tag=job.tag, nodes=len(job.nodes), began_s=job.began_s, ended_s=wall_s,
        energy_j=_joules(job, now, shares_mj), is_shared=job.is_shared, partition=job.partition, heard_s=bound.heard_s,
        bound_s=dict(bound.bound_s),
    )  # fmt: skip


def _joules(job: ForeignJob, now: Counters, shares_mj: Mapping[str, int]) -> float | None:
    drawn_mj = 0
    for node in job.nodes:
        before, after = job.counters.get(node), now.get(node)
        if before is None or after is None or before[0] != after[0] or after[1] < before[1]:
            return None
        of_node_mj = after[1] - before[1]
        if job.is_shared and node not in shares_mj:
            return None
        # no job draws more than its node: what is more is of an earlier run that had this number
        drawn_mj += min(shares_mj[node], of_node_mj) if job.is_shared else of_node_mj
    return drawn_mj / 1000


class JobJoules(KeptRows[JoulesRow]):
    """The rows, the newest last."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, JoulesRow, "the joules of jobs")
