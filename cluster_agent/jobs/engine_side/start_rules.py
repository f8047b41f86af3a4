"""Who may start when, however many nodes are idle: limits of users, groups and queues, reservations, and open queues.

The engine keeps these rules itself. Here people set reservations and hear why a job waits, and where a reservation or a
queue's time begins or ends, the engine is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cluster_agent.errors import ClusterError, WrongUseError, no_such_node
from cluster_agent.jobs.engine_side.engine_rows import EngineRows
from cluster_agent.jobs.job import Job
from cluster_agent.jobs.owned_watts.live_counts import claim_of
from cluster_agent.jobs.owned_watts.live_owner import Owner
from cluster_agent.jobs.times import EngineClock
from cluster_agent.scheduler.switches.live_reservations import Busy, JobNeed, Reservation, Reservations
from cluster_agent.scheduler.switches.reservations import FOREVER_S

if TYPE_CHECKING:
    from cluster_agent.store.job_store import JobStore


def stored_reservations(store: JobStore, watts: Owner) -> Reservations:
    """Those of before a restart. ``ClusterError`` for a policy that keeps none."""
    found = Reservations(store.reservations())
    try:
        for name in found.by_name:
            watts.check_reserves(name)
    except WrongUseError as error:  # of a policy that was chosen since
        raise ClusterError(str(error)) from None
    return found


def need_of(job: Job) -> JobNeed:
    """What it wants of reservations and queues."""
    return JobNeed(job.user, job.spec.nodes, job.spec.walltime_s, job.spec.reservation, job.spec.queue)


class StartRules:
    """Of the jobs in ``rows``."""

    def __init__(self, reservations: Reservations, rows: EngineRows, store: JobStore, clock: EngineClock) -> None:
        self._reservations, self._rows, self._store, self._clock = reservations, rows, store, clock
        self._watts, self._windows = rows.watts, rows.watts.switches.windows
        self._changes_s = float("-inf")
        """Until then no reservation begins or ends, and no queue opens."""

    def check(self, job: Job) -> None:
        """``WrongUseError`` for a job that could never start."""
        if (limits := self._watts.counts.limits) is not None and not job.spec.best_effort:
            limits.check(claim_of(job))
        self.check_times(job)

    def check_times(self, job: Job) -> None:
        """``WrongUseError`` for a job that its reservation or its queue can never run."""
        self._reservations.check_job(need_of(job))
        self._windows.check_job(need_of(job))

    def reserve(self, new: Reservation) -> None:
        """Keep nodes for the jobs of some users from now on. ``WrongUseError`` for a reservation that cannot be had."""
        nodes = self._rows.nodes
        self._watts.check_reserves(new.name)
        if unknown := sorted(set(new.on) - set(nodes)):
            raise no_such_node(unknown[0], nodes)
        now_s = self._clock.now_s()
        new = replace(new, made_s=now_s)
        self._reservations.check_new(new, len(nodes), self._busy(), now_s)
        self._store.reserve(new)
        self._reservations.by_name[new.name] = new
        self._follow_reservations()

    def unreserve(self, name: str) -> None:
        """Delete the reservation. ``WrongUseError`` if there is none, or jobs are in it."""
        self._reservations.find(name)
        jobs = [job for job in self._rows.jobs.values() if job.spec.reservation == name]
        if jobs:
            words = f"job {jobs[0].id}" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")
            raise WrongUseError(f"{words} wait or run in {name}: cancel them first (`clusterctl cancel`)")
        self._store.unreserve(name)
        self._reservations.remove(name, self._clock.now_s())
        self._follow_reservations()

    def look_again(self) -> None:
        """At the next turn, whether anything has begun or ended."""
        self._changes_s = float("-inf")

    def follow_time(self, cancel: Callable[[Job, str], None]) -> None:
        """Where a reservation begins or ends, or a queue opens, a pass is due. One that is over is forgotten, and jobs
        that still wait for it are cancelled, since they would wait forever."""
        now_s = self._clock.now_s()
        if now_s < self._changes_s:
            return
        if self._windows.is_behind(now_s):
            self._windows.follow(now_s)
            self._rows.scheduler.open(self._windows.queues)
        for name in self._reservations.over(now_s):
            self._store.unreserve(name)
            self._reservations.remove(name, FOREVER_S)
            self._follow_reservations()
        for job in [job for job in self._rows.jobs.values() if job.state == "queued" and job.spec.reservation]:
            if job.spec.reservation not in self._reservations.by_name:
                cancel(job, f"its reservation {job.spec.reservation} is over")
                self._store.save(job)
        changes_s = self._reservations.change_after_s(now_s), self._windows.change_after_s(now_s)
        self._rows.has_room, self._changes_s = True, min(changes_s)

    def why(self, jobs: Iterable[Job]) -> dict[int, str]:
        """Why those of the waiting jobs, by number, wait that have to, however many nodes are idle: their user, group
        or queue runs as much as it may, nodes are reserved, or the queue is closed."""
        if (limits := self._watts.counts.limits) is None:
            return {}
        jobs = [job for job in jobs if not job.spec.best_effort]
        runs = self._rows.runs.by_row.values()
        running = [claim_of(one.job) for one in runs if not one.job.spec.best_effort]
        found = limits.over(((job.id, claim_of(job)) for job in jobs), running)
        needs = [(job.id, need_of(job)) for job in jobs]
        now_s = self._clock.now_s()
        found |= self._reservations.why(needs, len(self._rows.nodes), self._busy(), now_s)
        return found | self._windows.why(needs, now_s)

    def _busy(self) -> list[Busy]:
        """The nodes that are taken, and until when at the latest."""
        found = [
            Busy(
                one.job.id,
                len(one.parts),
                (one.job.started_s or 0.0) + one.job.walltime_s,
                one.job.spec.reservation,
                one.parts,
            )
            for one in self._rows.runs.by_row.values()
            if not one.job.spec.best_effort  # it ends when others need its nodes
        ]
        away = sum(node.is_away for node in self._rows.nodes.values())
        return [*found, *([Busy(0, away, float("inf"))] if away else [])]

    def _follow_reservations(self) -> None:
        """They are others than before."""
        self._watts.reserve_now(self._reservations.reserved, self._rows.scheduler, self._clock.now_s())
        self.look_again()  # a pass is due
