"""Comparing what the cluster agent believes to run with what another manager says, again and again.

The hooks of Slurm and OAR are quick and may be lost: a manager that was killed runs no epilog, and Slurm may give the
number of a job that it lost to the next one. So the queue is the truth. The order matters: what the cluster agent
knows is read *before* the queue, so a job that starts in between is not taken for one that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.people import Request
from cluster_agent.jobs.foreign_jobs import ForeignJob
from cluster_agent.serve.people_protocol import NotifyEnd, NotifyStart
from cluster_agent.slurm.queue_json import QueuedJob

EVERY_S: Final = 10.0


def compare(known: Iterable[ForeignJob], queue: Sequence[QueuedJob]) -> tuple[list[NotifyEnd], list[NotifyStart]]:
    """What to notify, so that the cluster agent knows of the queue's jobs and of no others. ``known``: of this cluster
    alone. A job that it knows with other nodes, another submission or another count of restarts is started again,
    which takes the place of what was known."""
    before = {one.job: one for one in known}
    now = {job.job: job for job in queue}
    ends = [
        NotifyEnd(one.job, one.cluster, one.submitted_s, one.restarts) for one in before.values() if one.job not in now
    ]
    return ends, [_start(job) for job in now.values() if _differs(before.get(job.job), job)]


def _differs(one: ForeignJob | None, job: QueuedJob) -> bool:
    """The cluster agent keeps only its own nodes of a job, so those that it lacks are no difference."""
    return one is None or (one.submitted_s, one.restarts) != (job.submitted_s, job.restarts) or not (
        set(one.nodes) <= job.nodes
    )  # fmt: skip


def _start(job: QueuedJob) -> NotifyStart:
    return NotifyStart(
        job=job.job, tag=job.tag, node_list=job.node_list, cluster=job.cluster, submitted_s=job.submitted_s,
        restarts=job.restarts, user=job.user[:96], title=job.title[:256], partition=job.partition[:96],
    )  # fmt: skip


class Follower:
    """``turn`` compares once. ``known`` asks the cluster agent, ``send`` notifies it; ``say`` logs. ``read``
    asks the manager: the jobs that have nodes now, and words of states that are not known here."""

    def __init__(
        self,
        known: Callable[[], list[ForeignJob]],
        read: Callable[[], tuple[list[QueuedJob], list[str]]],
        send: Callable[[Request[object]], object],
        say: Callable[[str], None],
        cluster: str,
        manager: str = "Slurm",
    ) -> None:
        self._known, self._read, self._send, self._say, self._cluster = known, read, send, say, cluster
        self._manager = manager
        self._said: set[str] = set()
        self._sent: dict[str, QueuedJob] = {}
        self._trouble = ""

    def turn(self) -> bool:
        """Compare and notify. False, and a line when it begins, if somebody does not answer; then nothing is ended: who
        is silent does not say that a job is gone."""
        try:
            known = [one for one in self._known() if one.cluster == self._cluster]
            jobs, unknown = self._read()
            self._note(unknown)
            ours = [job for job in jobs if job.cluster in ("", self._cluster)]
            ends, starts = compare(known, ours)
            now = {job.job: job for job in ours}
            for end in ends:
                self._send(end)
                self._say(f"job {end.job} is gone from {self._manager} and no epilog has said so: ended")
            names = {one.job for one in known}
            for start in starts:
                if start.job in names or self._sent.get(start.job) != now[start.job]:  # else it has none of our nodes
                    self._send(start)
            self._sent = now
        except ClusterError as error:
            if str(error) != self._trouble:
                self._say(f"{error}; jobs that are known go on")
            self._trouble = str(error)
            return False
        if self._trouble:
            self._say(f"{self._manager} and the cluster agent answer again")
        self._trouble = ""
        return True

    def _note(self, words: list[str]) -> None:
        if new := sorted(set(words) - self._said):
            self._said.update(new)
            self._say(f"job states that are not known here, taken for running: {', '.join(new)}")
