"""What people may ask of jobs, over the socket on this machine: who, what, and the answers.

A job belongs to the uid that the kernel named when it was submitted. Only that user and administrators end it or queue
it again; only administrators drain and resume nodes. Everybody may see the table; environment and script only the
owner and administrators, since people put secrets there.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cluster_agent.budget.tag_sources import USER
from cluster_agent.errors import ClusterError, WrongUseError, no_such_node
from cluster_agent.fabric.people import NOBODY, Caller, Handlers
from cluster_agent.jobs.exported_state import state_of
from cluster_agent.jobs.job import ACTIVE, STATES, Account, Job, JobSpec
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.scheduler.switches.live_reservations import PERIODS, are_reserved, clock
from cluster_agent.serve.job_service import JobService
from cluster_agent.serve.people_protocol import (
    MOST_ROWS,
    Cancel,
    Changes,
    CountJobs,
    Drain,
    ExportState,
    JobNumber,
    JobRow,
    ListJobChanges,
    ListJobs,
    ListReservations,
    MeasureNode,
    Requeue,
    ReservationRow,
    Reserve,
    Resume,
    Sentences,
    ShowJob,
    Submit,
    SwitchPower,
    Unreserve,
)
from cluster_agent.serve.row_changes import PART, RowParts
from cluster_agent.workloads.state_file import MachineState
from foundation.shell.errors import nearest

REQUESTS: Final = (
    Submit, MeasureNode, ListJobs, ListJobChanges, ShowJob, CountJobs, ExportState, Cancel, Requeue, Drain, Resume,
    SwitchPower, Reserve, Unreserve, ListReservations,
)  # fmt: skip


NO_JOBS: Final = "this cluster agent runs no jobs"

MEAN_BYTES: Final = 8192
"""Ours: of what a user gives with a job, on average over as many jobs as a user may have. A start reads all of it."""

LEAST_BYTES: Final = 16 << 20
"""Ours: what all jobs of a user together may have in any case."""


def row(
    job: Job, now_s: float, as_shown: Callable[[float], float], waits_for: str = "", planned_s: float | None = None,
    account: Account | None = None,
) -> JobRow:  # fmt: skip
    """A job as a line. ``as_shown``: what the wall clock has for its times; ``account``: in place of its own."""
    account = job.account if account is None else account
    estimate = account.slowdown_estimate
    joules = account.joules
    bound_by = max(account.bound_s, key=lambda by: account.bound_s[by], default="")
    return JobRow(
        job=job.id, user=job.user, uid=job.uid, title=job.title, state=job.state, status=job.status, reason=job.reason,
        nodes=_width(job), requested=job.spec.nodes, node_names=",".join(job.nodes), walltime_s=job.spec.walltime_s,
        submitted_s=as_shown(job.submitted_s),
        started_s=None if job.started_s is None else as_shown(job.started_s),
        ended_s=None if job.ended_s is None else as_shown(job.ended_s), attempts=job.attempt,
        tag=job.tag or job.spec.tag.upper(), tag_source=job.tag_source or (USER if job.spec.tag else ""),
        energy_j=joules, measured=_share(account.energy_j.get("measured", 0.0), joules or 0.0), method=account.method,
        node_s=account.node_s, covered=_share(account.covered_s, account.node_s),
        cap_w=account.cap_j / account.capped_s if account.capped_s else None,
        capped=_share(account.capped_s, account.node_s), bound_by=bound_by,
        bound=_share(account.bound_s.get(bound_by, 0.0), account.node_s),
        slowdown=estimate[0] if estimate else None, slowdown_from=estimate[1] if estimate else "",
        waits_for=waits_for, took_s=_took_s(job, now_s),
        planned_s=None if planned_s is None else as_shown(planned_s),
    )  # fmt: skip


def _width(job: Job) -> int:
    """How many nodes it has, or had at its end: a policy may give it another number than it requests."""
    return job.spec.nodes if job.state == "queued" else len(job.nodes) or job.spec.nodes


def _took_s(job: Job, now_s: float) -> float | None:
    """For how long it runs, or ran; by one clock, whatever was done to the wall clock meanwhile."""
    if job.started_s is None or (job.ended_s is None and job.state not in ACTIVE):
        return None
    return max((now_s if job.ended_s is None else job.ended_s) - job.started_s, 0.0)


def no_jobs() -> Handlers:
    """The same requests, for an agent that runs no jobs."""

    def refuse(caller: Caller, request: Any) -> None:
        raise ClusterError(f"{NO_JOBS}: a [jobs] table in its settings changes that")

    return dict.fromkeys(REQUESTS, refuse)


class JobMarks:
    """Jobs that wait or run at places that they keep, and what their rows are made of (``row_changes``)."""

    def __init__(self, as_shown: Callable[[float], float]) -> None:
        self._as_shown = as_shown
        self._places: dict[int, int] = {}  # by number of a job, and so in the order of places
        self._numbers: list[int] = []
        self._jobs: Mapping[int, Job] = {}
        self._accounts: Mapping[int, Account] = {}
        self._why: Mapping[int, str] = {}
        self._planned_s: Mapping[int, int] = {}
        self._parts = self._new_parts()

    def _new_parts(self) -> RowParts[int, JobRow]:
        return RowParts(self._marks_at, self._row, "took_s")

    def follow(
        self, jobs: Mapping[int, Job], accounts: Mapping[int, Account], why: Mapping[int, str],
        planned_s: Mapping[int, int],
    ) -> None:  # fmt: skip
        """As it is now. Once most places are of jobs that are gone, all get new ones."""
        self._jobs, self._accounts, self._why, self._planned_s = jobs, accounts, why, planned_s
        if len(self._places) > 2 * len(jobs) + PART:
            self._places, self._parts = {}, self._new_parts()
        for number in jobs:
            if number not in self._places:
                self._places[number] = len(self._places)
        self._numbers = list(self._places)

    def answer(self, now_s: float, request: ListJobChanges) -> Changes[JobRow, int]:
        """As of the last ``follow``."""
        return self._parts.answer(now_s, len(self._places), request)

    def _marks_at(self, now_s: float, places: range) -> list[list[Any]]:
        numbers = self._numbers[places.start : places.stop]
        jobs = [self._jobs.get(number) for number in numbers]
        clock_s = round(self._as_shown(now_s) - now_s, 1)
        return [
            numbers,
            jobs,
            [None if job is None else _state_of(job) for job in jobs],
            [self._account(job) for job in jobs],
            list(map(self._why.get, numbers)),
            list(map(self._planned_s.get, numbers)),
            [clock_s] * len(numbers),
        ]

    def _account(self, job: Job | None) -> Account | None:
        """That people may see. A copy, since a job's own one grows while it runs."""
        if job is None or job.state not in ACTIVE:
            return None
        return self._accounts.get(job.id) or job.account.copy()

    def _row(
        self, now_s: float, _: int, job: Job | None, state: object, account: Account | None, why: str | None,
        planned_s: int | None, clock_s: float,
    ) -> JobRow | None:  # fmt: skip
        return None if job is None else row(job, now_s, self._as_shown, why or "", planned_s, account)


def _state_of(job: Job) -> tuple[object, ...]:
    """What becomes of a job in the course of time, apart from its account."""
    return (
        job.state, job.status, job.reason, job.attempt, job.nodes, job.submitted_s, job.started_s, job.ended_s, job.tag,
        job.tag_source,
    )  # fmt: skip


class JobRequests:
    """``handlers`` of the requests about jobs."""

    def __init__(self, side: JobService) -> None:
        self._side = side
        self._marks = JobMarks(side.as_shown)
        self._sizes: dict[int, int] = {}  # by number of a job, bytes of what its user has given
        self.handlers: Handlers = {
            Submit: self._submit,
            MeasureNode: self._measure,
            ListJobs: self._jobs,
            ListJobChanges: self._job_changes,
            ShowJob: self._job,
            CountJobs: self._tally,
            ExportState: self._export,
            Cancel: self._cancel,
            Requeue: self._requeue,
            Drain: self._drain,
            Resume: self._resume,
            SwitchPower: self._power,
            Reserve: self._reserve,
            Unreserve: self._unreserve,
            ListReservations: self._reservations,
        }

    def _submit(self, caller: Caller, request: Submit) -> JobNumber:
        return self._accept(caller, request.spec)

    def _measure(self, caller: Caller, request: MeasureNode) -> JobNumber:
        return self._accept(caller, msgspec.structs.replace(request.spec, nodes=1), request.node)

    def _accept(self, caller: Caller, spec: JobSpec, node: str = "") -> JobNumber:
        """Queue it; with ``node`` it measures that node, at full power."""
        if caller.uid == NOBODY:
            raise WrongUseError(
                f"{caller.name} is no user here, and jobs belong to users: submit on the agent's machine"
            )
        self._check_share(caller, [spec])
        with self._side.changing() as live:
            group = _group(caller.uid)
            return live.submit(caller.uid, caller.name, spec, [node] if node else [], bool(node), group).id

    def _check_share(self, caller: Caller, new: list[JobSpec]) -> None:
        """``ClusterError`` if the caller's jobs would be more, or larger together, than a user's may be."""
        alive, most = self._side.live.jobs, self._side.jobs_per_user
        if len(self._sizes) > 2 * len(alive) + most:
            self._sizes = {number: size for number, size in self._sizes.items() if number in alive}
        own = [job for job in alive.values() if job.uid == caller.uid]
        if len(own) + len(new) > most:
            raise ClusterError(f"{most} jobs of {caller.name} wait or run already: submit more when some have ended")
        for job in own:
            if job.id not in self._sizes:
                self._sizes[job.id] = _size(job.spec)
        most_bytes = max(most * MEAN_BYTES, LEAST_BYTES)
        if sum(self._sizes[job.id] for job in own) + sum(map(_size, new)) > most_bytes:
            raise ClusterError(
                f"the jobs of {caller.name} that wait or run have {most_bytes >> 20} MiB of scripts and environments"
                " already: submit more when some have ended, or move these to files that nodes can read"
            )

    def _jobs(self, caller: Caller, request: ListJobs) -> list[JobRow]:
        uid = _uid(request.user) if request.user else None
        wrong = [state for state in request.states if state not in STATES]
        if wrong:
            raise WrongUseError(f"no job is {wrong[0]!r}{nearest(wrong[0], STATES)}")
        accounts = self._side.accounts()
        alive = self._side.live.jobs if self._side.is_open else {}
        if request.everything or request.states:
            states = [state for state in STATES if state in request.states]
            found = self._side.store.page(states, uid, request.after, MOST_ROWS)
            found = [alive.get(job.id, job) for job in found]
        else:
            numbers = sorted(number for number in self._side.live.jobs if number > request.after)
            found = [alive[number] for number in numbers if uid is None or alive[number].uid == uid][:MOST_ROWS]
        return self._rows([_as_stored(job, accounts) for job in found])

    def _job_changes(self, caller: Caller, request: ListJobChanges) -> Changes[JobRow, int]:
        """What jobs wait for is worked out once for all parts, since each reason rests on the whole queue."""
        live = self._side.live
        if request.part == 0:
            accounts = self._side.accounts()
            self._marks.follow(dict(live.jobs), accounts, live.why_waiting(), live.planned_s)
        return self._marks.answer(self._side.now(), request)

    def _job(self, caller: Caller, request: ShowJob) -> tuple[JobRow, Job]:
        accounts = self._side.accounts()
        shown = job = _as_stored(self._find(request.job), accounts)
        if not _may_change(caller, job):
            spec = msgspec.structs.replace(job.spec, env={}, script="(its owner's)" if job.spec.script else "")
            shown = msgspec.structs.replace(job, spec=spec)
        return self._rows([job])[0], shown

    def _rows(self, jobs: list[Job]) -> list[JobRow]:
        why, planned_s = self._why_waiting(jobs)
        now_s, as_shown = self._side.now(), self._side.as_shown
        return [row(job, now_s, as_shown, why.get(job.id, ""), planned_s.get(job.id)) for job in jobs]

    def _why_waiting(self, jobs: list[Job]) -> tuple[dict[int, str], dict[int, int]]:
        """What jobs wait for, and by when they are planned to start, by their number."""
        if not (self._side.is_open and any(job.state == "queued" for job in jobs)):
            return {}, {}
        return self._side.live.why_waiting(), self._side.live.planned_s

    def _tally(self, caller: Caller, request: CountJobs) -> dict[str, int]:
        return self._side.store.tally() | (self._side.live.switched if self._side.is_open else {})

    def _export(self, caller: Caller, request: ExportState) -> MachineState:
        side = self._side
        return state_of(side.live, side.store, side.policy, side.now(), request.past)

    def _cancel(self, caller: Caller, request: Cancel) -> Sentences:
        jobs = self._own(caller, request.jobs)
        with self._side.changing() as live:
            return [self._cancel_one(live, job) for job in jobs]

    def _cancel_one(self, live: Partition, job: Job) -> str:
        was = job.state
        live.cancel(job)
        if job.state == was:
            return f"job {job.id} is {job.state} already"
        return f"job {job.id} is {'being ended' if job.state == 'ending' else job.state}"

    def _requeue(self, caller: Caller, request: Requeue) -> Sentences:
        jobs = self._own(caller, request.jobs)
        alive = self._side.live.jobs
        if more := [job.spec for job in jobs if job.uid == caller.uid and job.id not in alive]:
            self._check_share(caller, more)
        with self._side.changing() as live:
            for job in sorted(jobs, key=lambda job: job.id):  # a job that others wait for before these
                live.requeue(job)
        return [
            f"job {job.id} is {'queued' if job.state == 'queued' else 'ended first, then queued again'}" for job in jobs
        ]

    def _drain(self, caller: Caller, request: Drain) -> Sentences:
        with self._side.changing() as live:
            _check_node(live, request.node)
            live.drain(request.node, request.reason or f"by {caller.name}", caller.uid)
            runs = len(live.nodes[request.node].runs)
        goes_on = {0: "", 1: "; the one that it has goes on"}.get(runs, f"; the {runs} that it has go on")
        return [f"{request.node} gets no more jobs{goes_on}"]

    def _resume(self, caller: Caller, request: Resume) -> Sentences:
        with self._side.changing() as live:
            _check_node(live, request.node)
            switched = live.nodes[request.node].switched
            has_failed = switched is not None and switched.state == "failed"
            if live.nodes[request.node].drained is None and not has_failed:
                return [f"{request.node} was not drained"]
            live.resume(request.node)
        return [f"{request.node} may get jobs again"]

    def _power(self, caller: Caller, request: SwitchPower) -> Sentences:
        if not self._side.can_switch:
            raise ClusterError(
                "this cluster agent switches no nodes: a table [jobs.power] in its settings and mode cap change that"
            )
        with self._side.changing() as live:
            _check_node(live, request.node)
            node = live.nodes[request.node]
            return [_switch_on(live, node) if request.is_on else _switch_off(live, node)]

    def _reserve(self, caller: Caller, request: Reserve) -> Sentences:
        new = request.reservation
        for user in new.users:
            _check_user(user)
        with self._side.changing() as live:
            live.reserve(new)
        again = {every_s: f", and every {period} again" for period, every_s in PERIODS.items()}.get(new.every_s, "")
        until = clock(new.from_s + new.length_s)
        return [f"{are_reserved(new)} from {clock(new.from_s)} until {until}{again}"]

    def _unreserve(self, caller: Caller, request: Unreserve) -> Sentences:
        with self._side.changing() as live:
            live.unreserve(request.name)
        return [f"reservation {request.name} is deleted"]

    def _reservations(self, caller: Caller, request: ListReservations) -> list[ReservationRow]:
        live, now_s = self._side.live, self._side.now()
        jobs: dict[str, list[int]] = {}
        for job in live.jobs.values():
            jobs.setdefault(job.spec.reservation, []).append(job.id)
        return [
            ReservationRow(
                name=one.name,
                nodes=one.nodes,
                next_s=one.reserved().next_from_s(now_s) or one.from_s,
                length_s=one.length_s,
                every_s=one.every_s,
                users=one.users,
                is_open=one.reserved().is_open(now_s),
                jobs=sorted(jobs.get(one.name, [])),
                on=one.on,
            )
            for one in live.reservations.by_name.values()
        ]

    def _own(self, caller: Caller, numbers: list[JobNumber]) -> list[Job]:
        """All of them, each once, or a refusal before anything has been done."""
        jobs = [self._find(number) for number in dict.fromkeys(numbers)]
        for job in jobs:
            if not _may_change(caller, job):
                raise ClusterError(f"job {job.id} is of {job.user}: only its owner and administrators may do that")
        return jobs

    def _find(self, number: int) -> Job:
        alive = self._side.live.jobs.get(number) if self._side.is_open else None
        found = [alive] if alive else self._side.store.find([number])
        if not found:
            raise WrongUseError(f"there is no job {number} (`clusterctl jobs --all` lists them)")
        return found[0]


def _as_stored(job: Job, accounts: Mapping[int, Account]) -> Job:
    """The job with the account that people may see (``Runs.stored``)."""
    account = accounts.get(job.id) if job.state in ACTIVE else None
    return msgspec.structs.replace(job, account=account) if account else job


def _switch_off(live: Partition, node: Node) -> str:
    state = node.switched.state if node.switched else "on"
    if node.runs:
        raise ClusterError(f"{node.name} has a job: drain it and wait, or cancel the job")
    if state == "booting":
        raise ClusterError(f"{node.name} is booting: wait until that has ended")
    if state in ("off", "powering-off"):
        live.power.stay_off(node)
        return f"{node.name} is {'off' if state == 'off' else 'powering off'} and stays so until it is switched on"
    live.power.switch_off(node, is_by_hand=True)
    return f"{node.name} is powering off, and stays off until it is switched on"


def _switch_on(live: Partition, node: Node) -> str:
    state = node.switched.state if node.switched else "on"
    if state == "booting":
        return f"{node.name} is booting already"
    if state == "on" and node.is_up:
        return f"{node.name} is on"
    if state != "powering-off" and not live.power.is_silent(node):
        raise ClusterError(f"{node.name} is heard, so it is on: `clusterctl resume {node.name}`")
    live.power.switch_on(node)
    return f"{node.name} boots as soon as there are watts for that"


def _check_node(live: Partition, name: str) -> None:
    if name not in live.nodes:
        raise no_such_node(name, live.nodes)


def _size(spec: JobSpec) -> int:
    """Bytes of what a user gives with a job."""
    return len(msgspec.msgpack.encode(spec))


def _may_change(caller: Caller, job: Job) -> bool:
    return caller.uid == job.uid or caller.role == "admin"


def _uid(user: str) -> int:
    if user.isascii() and user.isdigit():
        if int(user) < 1 << 32:
            return int(user)
        raise WrongUseError(f"no user has the uid {user}: a uid has 32 bits")
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise WrongUseError(f"no user is called {user!r} on the cluster agent's machine; a uid does as well") from None


def _check_user(name: str) -> None:
    """``WrongUseError`` for a name of no user here: nobody could submit a job to the reservation as that one."""
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise WrongUseError(f"no user is called {name!r} on the cluster agent's machine") from None


def _group(uid: int) -> str:
    """The user's first group, by name; "": not known here."""
    try:
        return grp.getgrgid(pwd.getpwuid(uid).pw_gid).gr_name
    except KeyError:
        return ""


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
