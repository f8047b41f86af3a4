"""What people may ask of jobs, over the socket on this machine: who, what, and the answers.

A job belongs to the uid that the kernel named when it was submitted. Only that user and administrators end it or queue
it again; only administrators drain and resume nodes. Everybody may see the table; environment and script only the
owner and administrators, since people put secrets there.
"""

from __future__ import annotations

import pwd
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cluster_agent.budget.sharers.tag_sources import USER
from cluster_agent.errors import ClusterError, WrongUseError, no_such_node
from cluster_agent.fabric.people import NOBODY, Caller, Command
from cluster_agent.jobs.job import STATES, Job, JobSpec, State
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.serve.job_service import JobService
from nodectl.shell.errors import nearest

MOST_ROWS: Final = 1000
"""Ours: rows of one answer; who wants more asks for those behind the last one."""

MOST_JOBS: Final = 20_000
"""Ours: jobs of a user that may wait and run; all of them are in the cluster agent's memory."""

KINDS: Final = ("submit", "jobs", "job", "job-tally", "cancel", "requeue", "drain", "resume", "power")

MOST: Final = (1 << 63) - 1  # as SQLite numbers rows

Numbers = Annotated[list[Annotated[int, Meta(ge=1, le=MOST)]], Meta(max_length=MOST_ROWS)]


class AskJobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``clusterctl jobs``. Without ``everything`` and ``states``: jobs that wait or run. ``user``: a name or a uid."""

    everything: bool = False
    states: Annotated[list[str], Meta(max_length=len(STATES))] = []
    user: Annotated[str, Meta(max_length=96)] = ""
    after: Annotated[int, Meta(ge=0, le=MOST)] = 0


class AskJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``clusterctl jobs ID``."""

    job: Annotated[int, Meta(ge=1, le=MOST)]


class TellJobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``clusterctl cancel`` and ``requeue``."""

    jobs: Annotated[Numbers, Meta(min_length=1)]


class Drain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``clusterctl drain``."""

    node: str
    reason: Annotated[str, Meta(max_length=300)] = ""


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``clusterctl resume``."""

    node: str


class SetPower(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``clusterctl power``."""

    node: str
    is_on: bool


class JobRow(msgspec.Struct, frozen=True):
    """One line of ``clusterctl jobs``, and one row of its export. Times in Unix seconds; None where there is none.

    ``measured``: the share of ``energy_j`` that rests on measured power; ``covered``: the share of the node-seconds
    that any report covers. ``cap_w``: the mean cap while there was one, ``capped`` the share of time that was;
    ``bound_by``: what bound longest, for ``bound`` of the time. ``slowdown``: extra time as a share, by
    ``slowdown_from``. ``waits_for``: why it is queued still.
    """

    job: int
    user: str
    uid: int
    title: str
    state: State
    status: int | None
    reason: str
    nodes: int
    node_names: str
    walltime_s: int
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    attempts: int
    tag: str
    tag_source: str
    energy_j: float | None
    measured: float | None
    method: str
    node_s: float
    covered: float | None
    cap_w: float | None
    capped: float | None
    bound_by: str
    bound: float | None
    slowdown: float | None
    slowdown_from: str
    waits_for: str = ""


def row(job: Job, waits_for: str = "") -> JobRow:
    """A job as a line."""
    account, estimate = job.account, job.account.slowdown_estimate
    joules = account.joules
    bound_by = max(account.bound_s, key=lambda by: account.bound_s[by], default="")
    return JobRow(
        job=job.id, user=job.user, uid=job.uid, title=job.title, state=job.state, status=job.status, reason=job.reason,
        nodes=job.spec.nodes, node_names=",".join(job.nodes), walltime_s=job.spec.walltime_s,
        submitted_s=job.submitted_s, started_s=job.started_s, ended_s=job.ended_s, attempts=job.attempt,
        tag=job.tag or job.spec.tag.upper(), tag_source=job.tag_source or (USER if job.spec.tag else ""),
        energy_j=joules, measured=_share(account.energy_j.get("measured", 0.0), joules or 0.0), method=account.method,
        node_s=account.node_s, covered=_share(account.covered_s, account.node_s),
        cap_w=account.cap_j / account.capped_s if account.capped_s else None,
        capped=_share(account.capped_s, account.node_s), bound_by=bound_by,
        bound=_share(account.bound_s.get(bound_by, 0.0), account.node_s),
        slowdown=estimate[0] if estimate else None, slowdown_from=estimate[1] if estimate else "",
        waits_for=waits_for,
    )  # fmt: skip


def no_jobs() -> dict[str, Command]:
    """The same commands, for an agent that runs no jobs."""

    def refuse(caller: Caller, asked: Any) -> None:
        raise ClusterError("this cluster agent runs no jobs: a [jobs] table in its settings changes that")

    return {kind: Command("viewer", Any, refuse) for kind in KINDS}


class JobCommands:
    """``commands`` for the socket."""

    def __init__(self, side: JobService) -> None:
        self._side = side
        self.commands: dict[str, Command] = {
            "submit": Command("viewer", JobSpec, self._submit),
            "jobs": Command("viewer", AskJobs, self._jobs),
            "job": Command("viewer", AskJob, self._job),
            "job-tally": Command("viewer", dict[str, str], self._tally),
            "cancel": Command("viewer", TellJobs, self._cancel),
            "requeue": Command("viewer", TellJobs, self._requeue),
            "drain": Command("admin", Drain, self._drain),
            "resume": Command("admin", Resume, self._resume),
            "power": Command("admin", SetPower, self._power),
        }

    def _submit(self, caller: Caller, spec: JobSpec) -> int:
        if caller.uid == NOBODY:
            raise WrongUseError(
                f"{caller.name} is no user here, and jobs belong to users: submit on the agent's machine"
            )
        if sum(job.uid == caller.uid for job in self._side.live.jobs.values()) >= MOST_JOBS:
            raise ClusterError(
                f"{MOST_JOBS} jobs of {caller.name} wait or run already: submit more when some have ended"
            )
        with self._side.changing() as live:
            return live.submit(caller.uid, caller.name, spec).id

    def _jobs(self, caller: Caller, asked: AskJobs) -> list[JobRow]:
        uid = _uid(asked.user) if asked.user else None
        wrong = [state for state in asked.states if state not in STATES]
        if wrong:
            raise WrongUseError(f"no job is {wrong[0]!r}{nearest(wrong[0], STATES)}")
        alive = self._side.live.jobs if self._side.is_open else {}
        if asked.everything or asked.states:
            states = [state for state in STATES if state in asked.states]
            found = self._side.store.find(states=states, uid=uid, after=asked.after, limit=MOST_ROWS)
            found = [alive.get(job.id, job) for job in found]
        else:
            numbers = sorted(number for number in self._side.live.jobs if number > asked.after)
            found = [alive[number] for number in numbers if uid is None or alive[number].uid == uid][:MOST_ROWS]
        why = self._why_waiting(found)
        return [row(job, why.get(job.id, "")) for job in found]

    def _job(self, caller: Caller, asked: AskJob) -> tuple[JobRow, Job]:
        job = self._find(asked.job)
        shown = job
        if not _may_change(caller, job):
            spec = msgspec.structs.replace(job.spec, env={}, script="(its owner's)" if job.spec.script else "")
            shown = msgspec.structs.replace(job, spec=spec)
        return row(job, self._why_waiting([job]).get(job.id, "")), shown

    def _why_waiting(self, jobs: list[Job]) -> dict[int, str]:
        is_any = self._side.is_open and any(job.state == "queued" for job in jobs)
        return self._side.live.why_waiting() if is_any else {}

    def _tally(self, caller: Caller, asked: dict[str, str]) -> dict[str, int]:
        return self._side.store.tally()

    def _cancel(self, caller: Caller, asked: TellJobs) -> list[str]:
        jobs = self._own(caller, asked)
        with self._side.changing() as live:
            return [self._cancel_one(live, job) for job in jobs]

    def _cancel_one(self, live: Partition, job: Job) -> str:
        was = job.state
        live.cancel(job)
        if job.state == was:
            return f"job {job.id} is {job.state} already"
        return f"job {job.id} is {'being ended' if job.state == 'ending' else job.state}"

    def _requeue(self, caller: Caller, asked: TellJobs) -> list[str]:
        jobs = self._own(caller, asked)
        with self._side.changing() as live:
            for job in jobs:
                live.requeue(job)
        return [
            f"job {job.id} is {'queued' if job.state == 'queued' else 'ended first, then queued again'}" for job in jobs
        ]

    def _drain(self, caller: Caller, asked: Drain) -> list[str]:
        with self._side.changing() as live:
            _check_node(live, asked.node)
            live.drain(asked.node, asked.reason or f"by {caller.name}", caller.uid)
            run = live.nodes[asked.node].run
        return [f"{asked.node} gets no more jobs" + ("; the one that it has goes on" if run is not None else "")]

    def _resume(self, caller: Caller, asked: Resume) -> list[str]:
        with self._side.changing() as live:
            _check_node(live, asked.node)
            switched = live.nodes[asked.node].switched
            has_failed = switched is not None and switched.state == "failed"
            if live.nodes[asked.node].drained is None and not has_failed:
                return [f"{asked.node} was not drained"]
            live.resume(asked.node)
        return [f"{asked.node} may get jobs again"]

    def _power(self, caller: Caller, asked: SetPower) -> list[str]:
        if not self._side.can_switch:
            raise ClusterError(
                "this cluster agent switches no nodes: a table [jobs.power] in its settings and mode cap change that"
            )
        with self._side.changing() as live:
            _check_node(live, asked.node)
            node = live.nodes[asked.node]
            return [_switch_on(live, node) if asked.is_on else _switch_off(live, node)]

    def _own(self, caller: Caller, asked: TellJobs) -> list[Job]:
        """All of them, or a refusal before anything has been done."""
        jobs = [self._find(number) for number in asked.jobs]
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


def _switch_off(live: Partition, node: Node) -> str:
    state = node.switched.state if node.switched else "on"
    if node.run is not None:
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


def _may_change(caller: Caller, job: Job) -> bool:
    return caller.uid == job.uid or caller.role == "admin"


def _uid(user: str) -> int:
    if user.isascii() and user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise WrongUseError(f"no user is called {user!r} on the cluster agent's machine; a uid does as well") from None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
