"""Everything that people may request of the cluster agent, and what it answers.

One class per request: its fields are the body on the wire, ``kind`` its name there, ``role`` who may send it, and the
type in brackets its answer. ``clusterctl`` sends them (``fabric.ask``), the agent handles them (``server``,
``job_requests``). The names of kinds and fields are those of the wire and of ``--json``: scripts and older commands
depend on them.

Watts end in ``_w``, seconds in ``_s``, times are Unix seconds; missing values are None.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from cluster_agent.budget.budget_line import MOST_W
from cluster_agent.budget.kept_counts import Change
from cluster_agent.fabric.people import Finite, Request
from cluster_agent.jobs.job import STATES, Job, JobSpec, State
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
    """Idle, allocated, draining or down; empty: the cluster agent runs no jobs."""
    job: str = ""
    jobs_why: str = ""
    tag_source: str = ""
    energy_j: Finite | None = None
    """Drawn since the cluster agent started, as far as the node's reports say; None: it has reported no power."""


class ListNodes(Request[list[NodeRow]], frozen=True):
    """``clusterctl nodes``."""

    kind = "nodes"


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


class SetSchedule(Request[Sentences], frozen=True):
    """``clusterctl budget schedule``: steps of (Unix seconds, milliwatts), and the file they came from."""

    kind = "budget-schedule"
    role = "admin"
    steps: Annotated[list[tuple[Finite, Milliwatts]], Meta(min_length=1, max_length=2000)]
    source: Annotated[str, Meta(max_length=4096)]


# --- jobs


class JobRow(msgspec.Struct, frozen=True):
    """One line of ``clusterctl jobs``, and one row of its export.

    ``measured``: the share of ``energy_j`` that rests on measured power; ``covered``: the share of the node-seconds
    that any report covers. ``cap_w``: the mean cap while there was one, ``capped`` the share of time that was;
    ``bound_by``: what bound longest, for ``bound`` of the time. ``slowdown``: extra time as a share, by
    ``slowdown_from``. ``waits_for``: why it is queued still. ``nodes``: how many it has or had, and before
    its start as ``requested``: a policy may give it another number. ``took_s``: for how long it runs, or ran, by a
    clock that nobody sets; the other times are of the agent's wall clock.
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


class ShowJob(Request[tuple[JobRow, Job]], frozen=True):
    """``clusterctl jobs ID``."""

    kind = "job"
    job: JobNumber


class CountJobs(Request[dict[str, int]], frozen=True):
    """How many jobs of the store are in each state, for ``clusterctl metrics``."""

    kind = "job-tally"


class ExportState(Request[MachineState], frozen=True):
    """``clusterctl state export``."""

    kind = "state-export"


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


JobName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=96)]


class NotifyStart(Request[Sentences], frozen=True):
    """``clusterctl notify start``: a job of another manager runs on these nodes."""

    kind = "notify-start"
    role = "admin"
    job: JobName
    nodes: Annotated[list[NodeName], Meta(max_length=100_000)]
    tag: Annotated[str, Meta(max_length=96)] = ""


class NotifyEnd(Request[Sentences], frozen=True):
    """``clusterctl notify end``: it has ended."""

    kind = "notify-end"
    role = "admin"
    job: JobName


class SwitchPower(Request[Sentences], frozen=True):
    """``clusterctl power``."""

    kind = "power"
    role = "admin"
    node: NodeName
    is_on: bool
