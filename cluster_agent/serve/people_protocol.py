"""Everything that people may request of the cluster agent, and what it answers.

One class per request: its fields are the body on the wire, ``kind`` its name there, ``role`` who may send it, and the
type in brackets its answer. ``clusterctl`` sends them (``fabric.ask``), the agent handles them (``server``,
``job_requests``). The names of kinds and fields are those of the wire and of ``--json``: scripts and older commands
depend on them.

Watts end in ``_w``, seconds in ``_s``, times are Unix seconds; missing values are None.
"""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from cluster_agent.budget.budget_line import MOST_W
from cluster_agent.budget.group_views import GroupView
from cluster_agent.budget.kept_counts import Change
from cluster_agent.budget_rules.rule_sets import RulesView
from cluster_agent.fabric.people import Finite, Request
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.history.phase_tables import PhaseRow
from cluster_agent.jobs.exported_state import PAST
from cluster_agent.jobs.foreign_jobs import ForeignJob
from cluster_agent.jobs.job import STATES, Job, JobSpec, State
from cluster_agent.scheduler.switches.live_reservations import Name, Reservation
from cluster_agent.serve.why import Why
from cluster_agent.workloads.state_file import MachineState

MOST_ROWS: Final = 1000
"""Ours: rows of one answer; who wants more requests those after the last one."""

MOST: Final = (1 << 63) - 1  # as SQLite numbers rows

JobNumber: TypeAlias = Annotated[int, Meta(ge=1, le=MOST)]
JobNumbers: TypeAlias = Annotated[list[JobNumber], Meta(min_length=1, max_length=MOST_ROWS)]
NodeName: TypeAlias = Annotated[str, Meta(max_length=96)]
Milliwatts: TypeAlias = Annotated[int, Meta(gt=0, le=1000 * MOST_W)]
Sentences: TypeAlias = list[str]
"""What was done, one line each."""


# --- nodes


class NodeRow(msgspec.Struct):
    """One line of ``clusterctl nodes``, with the terms of ``why``."""

    name: str
    state: str
    wanted_w: Finite | None
    granted_w: Finite | None
    in_force_w: Finite
    counts_w: Finite
    draws_w: Finite | None
    tag: str
    """The job's tag at the last plan; without one the tag that the node agent reports."""
    quality: str
    lease_class: str
    heard_s_ago: Finite | None
    jobs: str = ""
    """Idle, allocated, draining, drained or down; empty: the cluster agent runs no jobs."""
    job: str = ""
    jobs_why: str = ""
    tag_source: str = ""
    energy_j: Finite | None = None
    """Drawn since the cluster agent started, as far as the node's reports say; None: it has reported no power."""
    bound_by: str = ""
    """What bounds its power by its last report: the sharer and its reason; empty: no cap does, or it is silent."""
    waits_for: str = ""
    """What keeps it from the wanted cap (``why.WaitsFor``); empty: nothing."""
    inlet_c: Finite | None = None
    """Degrees of the air that it takes in, at the warmest sensor; None: no sensor has a sound reading."""


class ListNodes(Request[list[NodeRow]], frozen=True):
    """``clusterctl nodes``: all of them, or ``most`` of those after a name. Ten thousand rows take the cluster agent a
    tenth of a second, in which it does nothing else."""

    kind = "nodes"
    after: NodeName = ""
    most: Annotated[int, Meta(ge=0, le=MOST)] = 0


Row = TypeVar("Row", bound=msgspec.Struct)
Key = TypeVar("Key")


class Changes(msgspec.Struct, Generic[Row, Key], frozen=True):
    """The rows of a part that have changed since a version, and what of it has gone since."""

    run: int
    """Another one counts its versions from 1 again, and this answer has all rows: another process, or other parts."""
    version: int
    """Of the part, after these changes."""
    parts: int
    """How many there are: they are numbered from 0."""
    at_s: Finite
    """When this was so, by a clock of the cluster agent, with which seconds that grow in all other rows have grown."""
    rows: list[Row]
    gone: list[Key]


class ListChanges(msgspec.Struct, frozen=True):
    """What a listing gives, for whoever lists again and again: one part of it, and of that what has changed since the
    ``version`` of an answer of the same ``run``. A row stays in its part."""

    part: Annotated[int, Meta(ge=0, le=MOST)] = 0
    run: Annotated[int, Meta(ge=0, le=MOST)] = 0
    since: Annotated[int, Meta(ge=0, le=MOST)] = 0


class ListNodeChanges(ListChanges, Request[Changes[NodeRow, NodeName]], frozen=True):
    """Changes of what ``ListNodes`` gives. What grows is ``heard_s_ago``."""

    kind = "node-changes"


class ExplainCap(Request[Why], frozen=True):
    """``clusterctl why``."""

    kind = "why"
    node: NodeName


class ForgetNode(Request[Sentences], frozen=True):
    """``clusterctl nodes forget``. ``is_off``: the person states that the node has no power."""

    kind = "node-forget"
    role = "admin"
    node: NodeName
    is_off: bool = False


# --- the budget


class Ahead(msgspec.Struct, frozen=True):
    """What jobs are expected to draw in ``in_s`` seconds, with a band for nine of ten such forecasts; None: too few
    have been seen. Idle nodes and fixed power are not in it."""

    in_s: Finite
    expected_w: Finite
    low_w: Finite | None
    high_w: Finite | None


class BudgetView(msgspec.Struct, frozen=True):
    """The budget and its use. ``over_w``: by how much nodes could exceed it now, 0 if they cannot."""

    budget_w: Finite
    fixed_w: Finite
    counts_w: Finite
    reserve_w: Finite
    free_w: Finite
    over_w: Finite
    mop_w: Finite
    short_w: Finite
    nodes: int
    silent: int
    is_young: bool
    mode: str
    sharer: str
    epoch: int
    steps: list[tuple[Finite, Finite]]
    """Announced steps: (seconds from now, watts)."""
    alarms: list[str]
    lowering_s: Finite | None = None
    """How long, at most, until ``over_w`` is confirmed to be gone; None: nothing is being lowered."""
    loop_lag_s: Finite = 0.0
    """The longest that anything waited for the end of its handling in the last 30 to 60 s."""
    energy_j: Finite = 0.0
    """Drawn by all nodes since the cluster agent started, as far as their reports say."""
    alarm_kinds: list[str] = []
    """Of each of ``alarms``, its kind (``alarms.KINDS``)."""
    store_free_bytes: int | None = None
    """What the store's file system has left for the cluster agent; None: it cannot be read."""
    ahead: list[Ahead] = []
    """The next hours; empty: nothing is said, as of an older cluster agent."""
    ahead_over: list[str] = []
    """Which announced steps are less than jobs are expected to draw."""
    groups: list[GroupView] = []
    """Rooms, racks and the like that have limits of their own, each after its parent."""
    rules: list[RulesView] = []
    """The sets of rules of the settings, in their order."""


class ShowBudget(Request[BudgetView], frozen=True):
    """``clusterctl budget show``."""

    kind = "budget"


class ListBudgetChanges(Request[list[Change]], frozen=True):
    """``clusterctl budget log``: the newest first."""

    kind = "budget-changes"


class SetBudget(Request[Sentences], frozen=True):
    """``clusterctl budget set``."""

    kind = "budget-set"
    role = "admin"
    w: Annotated[float, Meta(gt=0, le=MOST_W)]
    dry_run: bool = False
    group: Annotated[str, Meta(max_length=64)] = ""
    """The group whose limit is set; "": the whole budget."""


class SetSchedule(Request[Sentences], frozen=True):
    """``clusterctl budget schedule``: steps of (Unix seconds, milliwatts), and the file they came from."""

    kind = "budget-schedule"
    role = "admin"
    steps: Annotated[list[tuple[Finite, Milliwatts]], Meta(min_length=1, max_length=2000)]
    source: Annotated[str, Meta(max_length=4096)]
    group: Annotated[str, Meta(max_length=64)] = ""


class SwitchRules(Request[Sentences], frozen=True):
    """``clusterctl budget rules NAME --on`` or ``--off``."""

    kind = "budget-rules"
    role = "admin"
    name: Annotated[str, Meta(max_length=64)]
    is_on: bool


class LowerBudget(Request[Sentences], frozen=True):
    """``clusterctl budget lower``: for so many hours from now on, within ``[hazard]`` of the settings; 0 ends it."""

    kind = "budget-lower"
    role = "admin"
    hours: Annotated[float, Meta(ge=0, le=24)]
    why: Annotated[str, Meta(max_length=1000)]


# --- jobs


class JobRow(msgspec.Struct, frozen=True):
    """One line of ``clusterctl jobs``, and one row of its export.

    ``measured``: the share of ``energy_j`` that rests on measured power; ``covered``: the share of the node-seconds
    that any report covers. ``cap_w``: the mean cap while there was one, ``capped`` the share of time that was;
    ``bound_by``: what bound longest, for ``bound`` of the time. ``slowdown``: extra time as a share, by
    ``slowdown_from``. ``waits_for``: why it is queued still. ``nodes``: how many it has or had, and before
    its start as ``requested``: a policy may give it another number. ``took_s``: for how long it runs, or ran, by a
    clock that nobody sets; the other times are of the agent's wall clock. ``planned_s``: by when the policy plans to
    start it; None: it plans nothing for it.
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
    submitted_s: Finite
    started_s: Finite | None
    ended_s: Finite | None
    attempts: int
    tag: str
    tag_source: str
    energy_j: Finite | None
    measured: Finite | None
    method: str
    node_s: Finite
    covered: Finite | None
    cap_w: Finite | None
    capped: Finite | None
    bound_by: str
    bound: Finite | None
    slowdown: Finite | None
    slowdown_from: str
    waits_for: str = ""
    requested: int = 0
    took_s: Finite | None = None
    planned_s: Finite | None = None


class Submit(JobSpec, Request[JobNumber], frozen=True):
    """``clusterctl submit``: a job, which belongs to the user who sends it. The answer is its number."""

    kind = "submit"

    @property
    def spec(self) -> JobSpec:
        """The job alone, as it is stored."""
        return JobSpec(**msgspec.structs.asdict(self))


class MeasureNode(Request[JobNumber], frozen=True):
    """``clusterctl calibrate``: a job on this one node, which needs its full power. The answer is its number."""

    kind = "measure-node"
    role = "admin"
    node: NodeName
    spec: JobSpec


class ListJobs(Request[list[JobRow]], frozen=True):
    """``clusterctl jobs``. Without ``everything`` and ``states``: jobs that wait or run. ``user``: a name or a uid."""

    kind = "jobs"
    everything: bool = False
    states: Annotated[list[str], Meta(max_length=len(STATES))] = msgspec.field(default_factory=list)
    user: Annotated[str, Meta(max_length=96)] = ""
    after: Annotated[int, Meta(ge=0, le=MOST)] = 0
    """Only jobs with a greater number: the last of the rows before."""


class ListJobChanges(ListChanges, Request[Changes[JobRow, int]], frozen=True):
    """Changes of what ``ListJobs`` gives without options. What grows is ``took_s`` of jobs that run."""

    kind = "job-changes"


class ShowJob(Request[tuple[JobRow, Job]], frozen=True):
    """``clusterctl jobs ID``."""

    kind = "job"
    job: JobNumber


class CountJobs(Request[dict[str, int]], frozen=True):
    """How many jobs of the store are in each state, for ``clusterctl metrics``; by the name of a switch, how many it
    has changed."""

    kind = "job-tally"


class ExportState(Request[MachineState], frozen=True):
    """``clusterctl state export``. ``past``: how many of the jobs that ended last it has."""

    kind = "state-export"
    past: Annotated[int, Meta(ge=0, le=PAST)] = PAST


class ExportReplay(Request[dict[str, str]], frozen=True):
    """``clusterctl state export --replay``: the text of each file, by name."""

    kind = "replay-export"


class Cancel(Request[Sentences], frozen=True):
    """``clusterctl cancel``. For the jobs' owner and administrators."""

    kind = "cancel"
    jobs: JobNumbers


class Requeue(Request[Sentences], frozen=True):
    """``clusterctl requeue``. For the jobs' owner and administrators."""

    kind = "requeue"
    jobs: JobNumbers


class Drain(Request[Sentences], frozen=True):
    """``clusterctl drain``."""

    kind = "drain"
    role = "admin"
    node: NodeName
    reason: Annotated[str, Meta(max_length=300)] = ""


class Resume(Request[Sentences], frozen=True):
    """``clusterctl resume``."""

    kind = "resume"
    role = "admin"
    node: NodeName


class Reserve(Request[Sentences], frozen=True):
    """``clusterctl reserve NAME``."""

    kind = "reserve"
    role = "admin"
    reservation: Reservation


class Unreserve(Request[Sentences], frozen=True):
    """``clusterctl reserve NAME --delete``."""

    kind = "unreserve"
    role = "admin"
    name: Name


class ReservationRow(msgspec.Struct, frozen=True):
    """One line of ``clusterctl reserve``. ``next_s``: when its present interval began, or the next one does."""

    name: str
    nodes: int
    next_s: Finite
    length_s: int
    every_s: int
    users: list[str]
    is_open: bool
    jobs: list[int]
    on: list[str] = []


class ListReservations(Request[list[ReservationRow]], frozen=True):
    """``clusterctl reserve``."""

    kind = "reservations"


# --- jobs of another manager

JobName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=96)]
Word: TypeAlias = Annotated[str, Meta(max_length=96)]
CapsState: TypeAlias = Literal["in force", "waiting", "observing", "not ours"]
"""Of a job's nodes: each may draw what the plan wants for it; some may not yet; no cap is granted at all (mode
observe); none of its nodes is this cluster agent's."""


class Noticed(msgspec.Struct, frozen=True):
    """What became of a start. ``words``: one line each, for people."""

    state: CapsState
    words: list[str]


class NotifyStart(Request[Noticed], frozen=True):
    """``clusterctl notify start``, ``nodectl-hook start``: a job of another manager runs on these nodes. Those that are
    not ours are left out. The answer comes when the caps of the others are in force, ``wait_s`` later at most.
    ``node_list``: more nodes, as in SLURM_JOB_NODELIST."""

    kind = "notify-start"
    role = "notifier"
    job: JobName
    nodes: Annotated[list[NodeName], Meta(max_length=100_000)] = msgspec.field(default_factory=list)
    tag: Word = ""
    node_list: Annotated[str, Meta(max_length=1 << 16)] = ""
    cluster: Word = ""
    submitted_s: Annotated[int, Meta(ge=0, le=MOST)] = 0
    restarts: Annotated[int, Meta(ge=0, le=100_000)] = 0
    user: Word = ""
    title: Annotated[str, Meta(max_length=256)] = ""
    wait_s: Annotated[float, Meta(ge=0, le=600)] = 0.0
    partition: Word = ""
    """The manager's partition in which it runs; "": not known."""


class NotifyEnd(Request[Sentences], frozen=True):
    """``clusterctl notify end``, ``nodectl-hook end``: it has ended. A run that began later goes on: one of a later
    submission, or with more ``restarts`` (as many as there can be: whichever runs)."""

    kind = "notify-end"
    role = "notifier"
    job: JobName
    cluster: Word = ""
    submitted_s: Annotated[int, Meta(ge=0, le=MOST)] = 0
    restarts: Annotated[int, Meta(ge=0, le=100_000)] = 100_000


class ListForeign(Request[list[ForeignJob]], frozen=True):
    """``clusterctl notify list``: what another manager runs, by the notices."""

    kind = "notify-list"
    role = "any"


class JoulesRow(msgspec.Struct, frozen=True):
    """The joules of a job of another manager that has ended, or of its share of nodes; None: not known
    (``slurm.job_joules``). Times are of the notices, by the cluster agent's wall clock."""

    job: str
    cluster: str
    submitted_s: int
    restarts: int
    user: str
    title: str
    tag: str
    nodes: int
    began_s: Finite
    ended_s: Finite
    energy_j: Finite | None
    is_shared: bool
    partition: str = ""
    """The manager's; "": no notice has named it."""
    heard_s: Finite = 0.0
    """Node-seconds for which the nodes' reports say whether a cap bound them, since the cluster agent's last start."""
    bound_s: dict[str, Finite] = {}
    """Of these, the node-seconds in which one did, by what bound (``NodeRow.bound_by``)."""


class ListJoules(Request[list[JoulesRow]], frozen=True):
    """``clusterctl energy``: jobs of another manager that ended after this time, the oldest first, 1000 at most."""

    kind = "job-joules"
    since_s: Finite = 0.0
    user: Word = ""


class RunningJob(msgspec.Struct, frozen=True):
    """A job of another manager that runs. ``energy_j``: so far; None: not known, as for ``JoulesRow``."""

    job: str
    manager: str
    """The cluster of its manager, "" if the notice named none."""
    user: str
    nodes: list[str]
    energy_j: Finite | None
    is_shared: bool


class ListRunning(Request[list[RunningJob]], frozen=True):
    """Jobs of another manager that run, for ``clusterctl metrics``."""

    kind = "foreign-running"


class UserJoules(msgspec.Struct):
    """What a user's jobs took that have ended since the cluster agent started, whoever runs them. ``unknown``: of the
    ``jobs``, how many have no known joules."""

    user: str
    energy_j: Finite = 0.0
    jobs: int = 0
    unknown: int = 0


class CountJoules(Request[list[UserJoules]], frozen=True):
    """The joules of each user, for ``clusterctl metrics``."""

    kind = "user-joules"


# --- history


class ListHistory(Request[list[HistoryRow]], frozen=True):
    """``clusterctl history show``: jobs that ended after this time, the oldest first, 1000 at most."""

    kind = "history"
    since_s: Finite = 0.0
    user: Annotated[str, Meta(max_length=256)] = ""


class ListPhases(Request[list[PhaseRow]], frozen=True):
    """``clusterctl history phases``: of the caller's programs, and for administrators of everybody's."""

    kind = "history-phases"
    user: Annotated[str, Meta(max_length=256)] = ""


class ForgetHistory(Request[Sentences], frozen=True):
    """``clusterctl history forget``."""

    kind = "history-forget"
    role = "admin"
    user: Annotated[str, Meta(min_length=1, max_length=256)]


# --- power


class SwitchPower(Request[Sentences], frozen=True):
    """``clusterctl power``."""

    kind = "power"
    role = "admin"
    node: NodeName
    is_on: bool
