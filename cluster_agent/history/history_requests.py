"""The history in the cluster agent: from reports and ends to rows, and what people may ask of it.

Everybody on the agent's machine may read rows, as they may see the table of jobs; administrators make the agent forget
a user. The store of jobs keeps its own records, as accounting needs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cluster_agent.errors import ClusterError, StoreError
from cluster_agent.fabric.people import Caller, Request
from cluster_agent.history.job_history import HistoryRow, JobHistory
from cluster_agent.history.kept_rows import KEPT
from cluster_agent.history.phase_tables import PhaseRow, PhaseTables
from cluster_agent.history.watts_ahead import PAST_JOBS, Alive, WattsAhead, alive
from cluster_agent.jobs.foreign_jobs import ForeignJob, ForeignJobs
from cluster_agent.jobs.job import Job
from cluster_agent.serve.people_protocol import (
    MOST_ROWS,
    CountJoules,
    ForgetHistory,
    JoulesRow,
    ListHistory,
    ListPhases,
    Sentences,
    UserJoules,
)
from foundation.wire.phase_messages import FromNode, ToNode
from foundation.wire.power_messages import Report

if TYPE_CHECKING:
    from cluster_agent.serve.job_service import JobService
    from cluster_agent.slurm.job_joules import JobJoules


class PhaseLink(Protocol):
    """Of the link to nodes (``fabric.router``): messages about phases of programs, to one node and from all."""

    def send_phases(self, node: str, message: ToNode) -> bool:
        """Queue it; false where that is impossible."""
        ...

    def phase_news(self) -> Sequence[FromNode]:
        """What has come since the last call."""
        ...


LATE_S: Final = 600.0
"""Ours: how long after the end of its job a node may leave what it has measured: it may have had no link."""


class PhaseFolder(NamedTuple):
    """Where phases of programs are kept, by which wall clock (Unix seconds), and who hears of trouble. ``is_on``:
    whether any are to be kept."""

    folder: Path
    wall_s: Callable[[], float]
    say: Callable[[str], None]
    is_on: bool = True


class HistoryRequests:
    """``handlers`` of the requests; ``hear``, ``own_ended`` and ``foreign_ended`` are for whoever gets these news.
    ``jobs``: our own; ``reports``: the newest of each node; ``as_shown`` gives the wall clock for a job's times."""

    def __init__(
        self,
        history: JobHistory,
        jobs: Callable[[], JobService | None],
        foreign: ForeignJobs,
        joules: JobJoules,
        reports: Callable[[], Mapping[str, Report]],
        link: Callable[[], PhaseLink],
        phases: PhaseFolder,
    ) -> None:
        self.history = history
        self._link = link
        self._phases = PhaseTables(
            phases.folder, self._job, lambda node, message: link().send_phases(node, message), phases.wall_s,
            phases.say, phases.is_on,
        )  # fmt: skip
        self._jobs, self._foreign, self._joules, self._reports = jobs, foreign, joules, reports
        self._users: dict[str, UserJoules] = {}
        self._now_s = 0.0
        self._ahead: WattsAhead | None = None
        self.handlers: dict[type[Request[Any]], Callable[[Caller, Any], Any]] = {
            CountJoules: self._by_user,
            ListHistory: self._list,
            ListPhases: self._list_phases,
            ForgetHistory: self._forget,
        }

    def forecast(self, budget_w: float, wall_s: float) -> WattsAhead:
        """Of the next hours, from what has ended; it learns from what will end."""
        self._ahead = WattsAhead(budget_w, self._past(), wall_s)
        return self._ahead

    def _past(self) -> list[HistoryRow]:
        return self.history.rows(0.0, "", KEPT)[-PAST_JOBS:]

    def alive(self) -> list[Alive]:
        """The jobs that wait or run."""
        jobs = self._jobs()
        own = jobs.live.jobs.values() if jobs is not None and jobs.is_open else ()
        return alive(own, self._foreign.all(), jobs.as_shown if jobs is not None else lambda unix_s: unix_s)

    def busy(self) -> set[str]:
        """The nodes that have a job."""
        jobs = self._jobs()
        return {*(jobs.busy if jobs is not None else ()), *self._foreign.on_nodes}

    def hear(self, now_s: float, wall_s: float, reports: Sequence[Report]) -> None:
        """Reports of nodes, and what they have sent of phases; and what is due is saved."""
        self._now_s = now_s
        self._phases.hear(now_s, self._link().phase_news())
        self._phases.step(now_s, (report.node for report in reports))
        jobs = self._jobs()
        self.history.hear(reports, jobs.job_on if jobs else self._foreign.on_nodes)
        self.history.step(now_s, wall_s)

    def close(self) -> None:
        """Save the counts of jobs that run."""
        self.history.save()

    def own_ended(self, job: Job) -> None:
        """A job of ours that had nodes."""
        jobs, account = self._jobs(), job.account
        if jobs is None or job.started_s is None or job.ended_s is None:
            return
        joules, covered_s = account.joules, account.covered_s
        self._add(job.user, joules)
        watts = joules / covered_s * len(job.nodes) if joules and joules > 0 and covered_s > 0 else None
        row = HistoryRow(
            job=str(job.id), user=job.user, application=job.title, nodes=len(job.nodes),
            submitted_s=jobs.as_shown(job.submitted_s), began_s=jobs.as_shown(job.started_s),
            ended_s=jobs.as_shown(job.ended_s), run_s=max(job.ended_s - job.started_s, 0.0), cores=job.spec.cores,
            request_s=job.spec.walltime_s, state=job.state, tag=job.tag, tag_source=job.tag_source, energy_j=joules,
            watts=watts, cap_w=account.cap_j / account.capped_s if account.capped_s else None,
            is_shared=bool(job.halves),
        )  # fmt: skip
        self._ended(str(job.id), row, job.nodes)

    def foreign_ended(self, job: ForeignJob, of_it: JoulesRow) -> None:
        """A job of another manager, with its joules."""
        self._add(of_it.user, of_it.energy_j)
        run_s = max(of_it.ended_s - of_it.began_s, 0.0)
        energy_j = 0.0 if of_it.is_shared else of_it.energy_j or 0.0  # a share says nothing of a node's watts
        watts = energy_j / run_s if energy_j > 0 and run_s > 0 else None
        row = HistoryRow(
            job=of_it.job, user=of_it.user, application=of_it.title, nodes=of_it.nodes,
            submitted_s=float(of_it.submitted_s) or of_it.began_s, began_s=of_it.began_s, ended_s=of_it.ended_s,
            run_s=run_s, manager=of_it.cluster or "another", tag=of_it.tag, energy_j=of_it.energy_j, watts=watts,
            is_shared=of_it.is_shared,
        )  # fmt: skip
        self._ended(job.key, row, job.nodes)

    def _ended(self, key: str, row: HistoryRow, nodes: Iterable[str]) -> None:
        self.history.ended(key, row, self._last(nodes))
        if self._ahead is not None:
            self._ahead.ended(row)

    def _add(self, user: str, joules: float | None) -> None:
        """A job of this user has ended."""
        one = self._users.setdefault(user, UserJoules(user))
        one.jobs += 1
        one.unknown += joules is None
        one.energy_j += max(joules or 0.0, 0.0)

    def _by_user(self, caller: Caller, request: CountJoules) -> list[UserJoules]:
        return list(self._users.values())

    def _last(self, nodes: Iterable[str]) -> list[Report]:
        reports = self._reports()
        return [reports[node] for node in nodes if node in reports]

    def _list(self, caller: Caller, request: ListHistory) -> list[HistoryRow]:
        return self.history.rows(request.since_s, request.user, MOST_ROWS)

    def _job(self, number: int) -> Job | None:
        jobs = self._jobs()
        if jobs is None or not jobs.is_open:
            return None
        if (alive_job := jobs.live.jobs.get(number)) is not None:
            return alive_job
        with contextlib.suppress(StoreError):  # a node's message must not end the head on a full disk
            for job in jobs.store.find([number]):
                return job if jobs.now() - (job.ended_s or 0.0) <= LATE_S else None
        return None

    def _list_phases(self, caller: Caller, request: ListPhases) -> list[PhaseRow]:
        rows = self._phases.rows(request.user)
        return rows if caller.role == "admin" else [row for row in rows if row.user == caller.name]

    def _forget(self, caller: Caller, request: ForgetHistory) -> Sentences:
        jobs = self._jobs()
        running_jobs = [job.id for job, _ in jobs.live.runs.running() if job.user == request.user] if jobs else []
        own = [str(number) for number in running_jobs]
        foreign = [one.key for one in self._foreign.all() if one.user == request.user]
        removed = self.history.forget(request.user, [*own, *foreign])
        self._users.pop(request.user, None)
        try:
            joules = self._joules.forget(request.user)
        except OSError as error:
            raise ClusterError(f"the joules of {request.user}'s jobs cannot be removed: {error.strerror}") from None
        if self._ahead is not None:
            self._ahead.learn_again(self._past())
        line = f"{removed} jobs of {request.user} are forgotten, and the joules of {joules} of another manager"
        running = len(own) + len(foreign)
        line += f"; nothing will be kept of the {running} that run now" if running else ""
        return [line, self._phases.forget(self._now_s, request.user, running_jobs, self._reports())]
