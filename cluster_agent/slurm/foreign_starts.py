"""Notices of jobs that another manager starts and ends, and how long a start waits until the caps of its nodes follow.

A start is planned for at once. It is answered when each node of the job may draw what that plan wants for it, so that
a prolog can keep the job back until then. So the newest grant that raises a node must be confirmed. That an older cap
would allow as much says nothing, since a lower one that was granted in between may still arrive. A cap that is still to
*fall* is not waited for: the watts above it count in the budget until the node has confirmed it, and the job loses
nothing by them. Nor are nodes that are not heard.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

from cluster_agent.budget.sharers.gap import Event
from cluster_agent.fabric.people import NOBODY, Caller, Later, Request
from cluster_agent.jobs.foreign_jobs import ForeignJob, ForeignJobs
from cluster_agent.serve.budget_service import Partition
from cluster_agent.serve.people_protocol import (
    MOST_ROWS,
    JoulesRow,
    ListForeign,
    ListJoules,
    ListRunning,
    Noticed,
    NotifyEnd,
    NotifyStart,
    RunningJob,
    Sentences,
)
from cluster_agent.slurm.bound_times import BoundTimes
from cluster_agent.slurm.job_joules import JobJoules, counter, row, share_mj
from foundation.shell.names import expanded, first_of
from foundation.wire.power_messages import Grant, Report

MOST_WAITING: Final = 1024
"""Ours: starts that wait at a time; a further one is answered at once, which its hook takes for a late head."""

NAMED: Final = 5
"""Ours: so many nodes are named in a line; of the others it has the number."""


class ForeignStarts:
    """``send`` sends the grants of a plan; ``now_s`` is the clock of the partition, ``wall_s`` the one of the rows."""

    def __init__(
        self,
        jobs: ForeignJobs,
        partition: Callable[[], Partition],
        send: Callable[[list[Grant]], None],
        now_s: Callable[[], float],
        joules: JobJoules,
        wall_s: Callable[[], float] = time.time,
        ended: Callable[[ForeignJob, JoulesRow], None] = lambda job, row: None,
    ) -> None:
        """``ended`` gets each job that has ended, with its joules."""
        self._jobs, self._partition, self._send, self._now_s = jobs, partition, send, now_s
        self._joules, self._wall_s, self._ended = joules, wall_s, ended
        self._bounds = BoundTimes()
        self._waiting: weakref.WeakSet[Later] = weakref.WeakSet()
        self.handlers: dict[type[Request[Any]], Callable[[Caller, Any], Any]] = {
            NotifyStart: self._start,
            NotifyEnd: self._end,
            ListForeign: self._list,
            ListJoules: self._list_joules,
            ListRunning: self._running,
        }

    def hear(self, now_s: float, reports: Iterable[Report]) -> None:
        """Reports of nodes: which caps bound their jobs."""
        self._bounds.hear(now_s, reports, self._jobs.all_on_nodes, self._partition().bound)

    def noticed_by(self, cluster: str) -> tuple[Callable[[str, list[str]], None], Callable[[str], None]]:
        """For a manager whose jobs the cluster agent notices itself: what to call at a start, and at an end."""
        caller = Caller(NOBODY, cluster, "notifier")

        def start(job: str, nodes: list[str]) -> None:
            self._start(caller, NotifyStart(job, nodes, cluster=cluster))

        def end(job: str) -> None:
            self._end(caller, NotifyEnd(job, cluster=cluster))

        return start, end

    def _start(self, caller: Caller, request: NotifyStart) -> Noticed | Later:
        now_s, partition = self._now_s(), self._partition()
        listed = expanded(request.node_list) if request.node_list else []
        nodes = list(dict.fromkeys([*request.nodes, *listed]))
        job = ForeignJob(
            request.job, nodes, request.tag, request.cluster, request.submitted_s, request.restarts, request.user,
            request.title, self._wall_s(), self._counters(nodes), partition=request.partition,
        )  # fmt: skip
        self._end_earlier(job)
        words = [self._jobs.start(job, partition.ledger.accounts.places)]
        if known := self._jobs.find(job.job, job.cluster):
            self._bounds.began(now_s, known)
        else:
            self._bounds.forget(job)
        ours = [node for node in nodes if node in partition.ledger.accounts.places]
        if foreign := [node for node in nodes if node not in partition.ledger.accounts.places]:
            words.append(f"not nodes of this cluster agent: {first_of(foreign, NAMED)}")
        self._happened(now_s, "start")
        if not ours:
            return Noticed("not ours", words)
        if partition.is_observing:
            return Noticed("observing", [*words, "mode observe: no cap is granted, and nothing waited for"])
        if not request.wait_s or len(self._waiting) >= MOST_WAITING:
            return self._noticed(ours, now_s, words)
        until_s = now_s + request.wait_s

        def look(at_s: float) -> Noticed | None:
            noticed = self._noticed(ours, now_s, words)
            return noticed if noticed.state == "in force" or at_s >= until_s else None

        later = Later(look, until_s)
        self._waiting.add(later)
        return later

    def _noticed(self, nodes: list[str], since_s: float, words: list[str]) -> Noticed:
        """Whether these nodes may draw what a plan made since then wants for them."""
        partition = self._partition()
        if partition.gap.updated_s < since_s:
            return Noticed("waiting", [*words, "the next plan is still to come"])
        caps_mw, accounts = partition.plan.caps_mw, partition.ledger.accounts
        planned = [name for name in nodes if name in caps_mw]
        assured_mw = accounts.assured_mw(accounts.at(planned)).tolist()
        late = [name for name, mw in zip(planned, assured_mw, strict=True) if mw < caps_mw[name]]
        silent = [name for name in nodes if name not in caps_mw]
        lines = [f"not heard, and not waited for: {first_of(silent, NAMED)}"] if silent else []
        if late:
            lines.append(f"caps still to be raised: {first_of(late, NAMED)} (`clusterctl why {late[0]}`)")
        return Noticed("waiting" if late else "in force", [*words, *lines])

    def _end(self, caller: Caller, request: NotifyEnd) -> Sentences:
        before = self._jobs.find(request.job, request.cluster)
        line = self._jobs.end(request.job, request.cluster, request.submitted_s, request.restarts)
        if before and self._jobs.find(request.job, request.cluster) is None:
            self._account(before)
        self._happened(self._now_s(), "end")
        return [line]

    def _end_earlier(self, job: ForeignJob) -> None:
        """Another run of the same number, whose end nobody has said, ends now."""
        before = self._jobs.find(job.job, job.cluster)
        if before and not job.is_run_of(before):
            self._jobs.end(before.job, before.cluster)
            self._account(before)

    def _account(self, ended: ForeignJob) -> None:
        made = self._row(ended)
        self._bounds.forget(ended)
        self._joules.add(made)
        self._ended(ended, made)
        self._partition().alarms.set("joules", self._joules.trouble)

    def _row(self, job: ForeignJob) -> JoulesRow:
        """Of a job, if it ended now."""
        now_s = self._now_s()
        shares_mj = (
            {node: share_mj(report, job.job, heard_s, now_s) for node, report, heard_s in self._heard(job.nodes)}
            if job.is_shared else {}
        )  # fmt: skip
        known_mj = {node: mj for node, mj in shares_mj.items() if mj is not None}
        return row(job, self._counters(job.nodes), known_mj, self._wall_s(), self._bounds.of(job))

    def _counters(self, nodes: list[str]) -> dict[str, tuple[str, int]]:
        now_s = self._now_s()
        found = {node: counter(report, heard_s, now_s) for node, report, heard_s in self._heard(nodes)}
        return {node: one for node, one in found.items() if one is not None}

    def _heard(self, nodes: list[str]) -> list[tuple[str, Report, float]]:
        """The last report of each of them, and when it came."""
        partition, now_s = self._partition(), self._now_s()
        return [
            (node, partition.reports[node], now_s - (partition.heard_s_ago(now_s, node) or 0.0))
            for node in nodes if node in partition.reports
        ]  # fmt: skip

    def _list_joules(self, caller: Caller, request: ListJoules) -> list[JoulesRow]:
        return self._joules.since(request.since_s, request.user, MOST_ROWS)

    def _running(self, caller: Caller, request: ListRunning) -> list[RunningJob]:
        found = []
        for job in self._jobs.all():
            joules = self._row(job).energy_j
            found.append(RunningJob(job.job, job.cluster, job.user, job.nodes, joules, job.is_shared))
        return found

    def _list(self, caller: Caller, request: ListForeign) -> list[ForeignJob]:
        return self._jobs.all()

    def _happened(self, now_s: float, what: Event) -> None:
        partition = self._partition()
        partition.happened(now_s, what)
        self._send(partition.turn(now_s))
