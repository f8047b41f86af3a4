"""What the cluster agent said last, all at one moment: all that the page shows.

One process keeps it for all viewers, so fifty cost the cluster agent what one costs. Before a view sees it, what the
viewer may not see has been taken out (``access.seen_by``): a job of others has no name, no user and no command, only
its nodes and watts. A view renders what is there and needs no rule of its own.

Watts end in ``_w``, joules in ``_j``, times are Unix seconds of the cluster agent's machine; None: not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cluster_agent.budget.kept_counts import Change
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.jobs.job import ACTIVE, Job
from cluster_agent.page.start_prediction import Prediction
from cluster_agent.serve.people_protocol import BudgetView, JobRow, NodeRow, RunningJob
from cluster_agent.serve.why import Why

BudgetChange = Change
"""A transition of the budget: ``unix_s``, ``who``, ``what`` in words."""

OTHERS = "(another's)"
"""Stands for the user, title and names of jobs that the viewer may not see."""


class PowerPoint(msgspec.Struct, frozen=True, array_like=True):
    """The partition at a moment; None: not known. A gap in time is a gap of knowledge: nothing is made up for it."""

    at_s: float
    draws_w: float | None
    """Of all nodes that report, and the fixed power."""
    budget_w: float | None
    counted_w: float | None
    """What the partition could draw at most: what all nodes count, and the fixed power."""
    bound_by: str
    """What bounds most nodes: the sharer and its reason; "": no cap does."""
    bound: int
    """How many nodes a cap bounds."""


class Alarm(msgspec.Struct, frozen=True):
    """An alarm that is on. ``kind``: of ``serve.alarms.KINDS``; ``since_s``: since when this process has seen it."""

    kind: str
    words: str
    fix: str
    since_s: float


class UserEnergy(msgspec.Struct, frozen=True):
    """What a user's jobs took that ended in the last week, whoever ran them. ``unknown``: of the ``jobs``, how many
    have no known joules; ``node_h``: node hours of the others. ``per_node_h_j``: joules of a node hour of these."""

    user: str
    energy_j: float
    kwh: float
    jobs: int
    unknown: int
    node_h: float
    per_node_h_j: float | None


_Key = tuple[bool, float, int, int]
"""Whether it comes last, when, a job's number, its place."""


class JobOrder(msgspec.Struct, frozen=True):
    """Places in ``Snapshot.jobs``, which are the same for all viewers: ``runs``, the next to end first; ``waits``, the
    planned ones in their order, then the others; ``expected``, the same with predicted starts in place of planned ones.
    """

    runs: tuple[int, ...]
    waits: tuple[int, ...]
    expected: tuple[int, ...]


def ends_s(row: JobRow) -> float | None:
    """By when it has ended at the latest; None: it does not run, and nothing is planned for it."""
    begins_s = row.planned_s if row.state == "queued" else row.started_s
    return None if begins_s is None else begins_s + row.walltime_s


def order_of(jobs: Sequence[JobRow], predicted: Prediction | None) -> JobOrder:
    """Once for all viewers: to sort 5,000 rows takes some milliseconds."""
    likely_s = {} if predicted is None else predicted.likely_s
    runs, waits, expected = list[_Key](), list[_Key](), list[_Key]()
    for place, job in enumerate(jobs):
        if job.state in ACTIVE:
            runs.append((False, ends_s(job) or 0.0, job.job, place))
        elif job.state == "queued":
            start_s = job.planned_s
            waits.append((start_s is None, start_s or 0.0, job.job, place))
            start_s = likely_s.get(job.job) if start_s is None else start_s
            expected.append((start_s is None, start_s or 0.0, job.job, place))
    return JobOrder(_places(runs), _places(waits), _places(expected))


def _places(rows: list[_Key]) -> tuple[int, ...]:
    return tuple(place for _, _, _, place in sorted(rows))


class Snapshot(msgspec.Struct, frozen=True):
    """What the cluster agent said last. An empty one is what there is before its first answer."""

    taken_s: float = 0.0
    """When the newest part of it was said."""
    partition: str = ""
    """Its name; "": none is set."""
    budget: BudgetView | None = None
    """None: the cluster agent was never reached."""
    changes: tuple[Change, ...] = ()
    """Of the budget, the newest first."""
    nodes: tuple[NodeRow, ...] = ()
    bound_since_s: Mapping[str, float] = {}
    """Of nodes that a cap bounds, by name: since when this process has seen that at every look."""
    jobs: tuple[JobRow, ...] = ()
    """Ours that wait or run, the lowest number first. One that waits and is planned has ``planned_s``."""
    predicted: Prediction | None = None
    """When the jobs start that wait and are not planned, as far as that was predicted."""
    order: JobOrder | None = None
    """Of ``jobs``, if it was made for all viewers."""
    has_jobs: bool = False
    """Whether the cluster agent runs jobs."""
    running: tuple[RunningJob, ...] = ()
    """Jobs of other managers that run."""
    ended: tuple[HistoryRow, ...] = ()
    """Jobs of the last week, ours and others', the one that ended last first; 20,000 at most."""
    alarms: tuple[Alarm, ...] = ()
    power: tuple[PowerPoint, ...] = ()
    """The oldest first: every 10 s for two hours, before that every minute for a day. Not written to a disk."""
    energy: tuple[UserEnergy, ...] = ()
    """The most joules first."""
    median_per_node_h_j: float | None = None
    """Median over jobs of everybody in the last week: joules of a node hour; None: too few are known."""
    why: Mapping[str, Why] = {}
    """The node that a page is about: its ``Why``, by name."""
    job: tuple[JobRow, Job] | None = None
    """The job that a page is about, as ``clusterctl jobs ID`` shows it; None if there is none such, or it is not for
    the viewer."""
    lost_since_s: float | None = None
    """Since when the cluster agent does not answer; all else is then the last that it said."""
    lost_why: str = ""

    @property
    def in_order(self) -> JobOrder:
        """Of ``jobs``."""
        return order_of(self.jobs, self.predicted) if self.order is None else self.order


class Viewer(msgspec.Struct, frozen=True):
    """Who looks."""

    user: str | None
    """None: nobody known, who sees no names of jobs and users."""
    sees_all: bool
    """An administrator."""

    def is_own(self, user: str) -> bool:
        """Whether a job of ``user`` is shown with its name."""
        return self.sees_all or (bool(user) and user == self.user)
