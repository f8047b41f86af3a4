"""The state of a live partition as a file (``workloads.state_file``), from which a replay starts."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING, Final

from cluster_agent.jobs.job import ACTIVE, Job, in_queue
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.workloads.state_file import VERSION, MachineState, StateJob

if TYPE_CHECKING:
    from cluster_agent.store.job_store import JobStore

PAST: Final = 1000
"""Ours: how many of the jobs that ended last a state has. The agent does nothing else while it reads them: 70 ms."""

LEARNED: Final = ("done", "failed", "timeout")
"""Of the jobs that ended, those from which the partition itself learns after a restart."""


def state_of(partition: Partition, store: JobStore, policy: str, now_s: float, past: int = PAST) -> MachineState:
    """All jobs that wait, but not for other jobs or a time, or run, and the ``past`` ones that ended last, in the order
    in which they joined the queue.

    Times are whole Unix seconds, as the engine has them: what happens in a second has happened when it is over.
    """
    postponed = partition.postponed
    alive = [job for job in partition.jobs.values() if job.id not in postponed and job.state in ("queued", *ACTIVE)]
    ended = [
        job
        for job in (store.ended(past, in_a_moment=True) if past else [])
        if job.state in LEARNED and job.started_s is not None
    ]
    jobs = sorted([*ended, *alive], key=in_queue)
    away = sum(node.state in ("down", "drained", "draining") for node in partition.nodes.values())
    rows = [_row(job, floor(now_s)) for job in jobs]
    t0_s, nodes = floor(now_s) + 1, max(len(partition.nodes), 1)
    stored_j = partition.stored_by(t0_s)
    return MachineState(VERSION, "partition", policy, t0_s, nodes, rows, 0, away, len(postponed), stored_j)


def _row(job: Job, now_s: int) -> StateJob:
    """A clock that began again earlier may have later times on the disk."""

    def second(time_s: float | None) -> int | None:
        return None if time_s is None or job.state == "queued" else min(floor(time_s), now_s)

    return StateJob(
        job=job.id,
        submit_s=min(floor(job.queued_s), now_s),
        width=len(job.nodes) or job.spec.nodes,  # a policy may have chosen others than it requests
        request_s=job.spec.walltime_s if job.configured is None else max(job.spec.walltime_s, job.configured.length_s),
        user=job.uid,
        start_s=second(job.started_s),
        end_s=second(job.ended_s),
        application=job.title,
        tag=job.tag or job.spec.tag.upper(),
        level=job.level,
        nodes=job.nodes,
    )
