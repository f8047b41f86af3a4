"""The watts of a live partition whose policy chooses for each job one of several configurations: nodes, cores, a cap.

The engine is that of replays (``csrc/resources/moldable.c``). As in ``live_nodes``, idle nodes draw from the same
budget: the bound is the budget less what all nodes draw idle, and a row counts what its nodes draw above that. The
table has watts of packages; the machine file says what a busy node draws besides (``rest_w``), so a row is a cap for
each of its nodes, which goes through the ledger.

A job's application is its name. The table's times are in proportion: those of the requested nodes, with all cores at
the highest cap, are the job's walltime. A job of another name, or for fewer nodes than the table has, runs on the nodes
that it requests, at one of the machine file's levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from cluster_agent.cluster import Machine
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.job import Configured, Job
from cluster_agent.jobs.owned_watts.live_owner import Engine, NodeBudget, Owner, Table
from cluster_agent.scheduler.configurations.choices import length_s
from cluster_agent.scheduler.configurations.table import (
    Configuration,
    MoldableJobs,
    Rows,
    ScaledRows,
    by_time,
    full_row,
)
from cluster_agent.scheduler.native.native_moldable import CMoldable
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import constant

MOST_APPLICATIONS: Final = 10_000
"""Ours: with as many nodes there are still fewer tables than rows of jobs, whose first name each table once."""

IDLE_ROW: Final = Configuration(1, 1, 0.0, 1.0, 0.0)
"""Of nodes that are away."""


class Place(NamedTuple):
    """A job's table, its kind (of one table and as many requested nodes), and its time over the table's."""

    table: int
    kind: int
    scale: float


class OwnedConfigurations(Owner):
    """What ``live_watts.OwnedWatts`` is for jobs that run as they are requested. ``machine``: its first group of nodes.

    Tables in this order: of each application; of 1, 2, ... nodes, one row for each level; of a node that is measured;
    of nodes that are away."""

    owns_watts = True

    def __init__(self, machine: Machine, composition: Composition, configurations: Mapping[str, Rows]) -> None:
        super().__init__()
        machine.check_watts()
        if len(configurations) > MOST_APPLICATIONS:
            raise WrongUseError(
                f"{len(configurations)} applications have configurations: give at most {MOST_APPLICATIONS}"
            )
        self._node, self._composition = machine.node, composition
        self._idle_mw = int(machine.node.idle_w * 1000)
        self._levels_mw = [int(watts * 1000) for watts in machine.node.busy_max_w or machine.node.busy_w]
        self._slowdowns = machine.slowdowns()
        self._number = {name: number for number, name in enumerate(configurations)}
        most = max((row.cores for rows in configurations.values() for row in rows), default=0)
        if most > machine.node.cores:
            raise WrongUseError(f"{machine.name}: a configuration has {most} cores, a node {machine.node.cores}")
        self._applications = [tuple(map(self._counted, rows)) for rows in configurations.values()]
        self._tables: list[Rows] = []
        self._nodes = 0
        self._ways: CMoldable | None = None

    # --- for the engine

    def _engine(self, table: Table) -> Engine:
        jobs = table.jobs
        nodes = self._nodes = max(len(table.names), 1)
        rigid = [self._rigid(width) for width in range(1, nodes + 1)]
        self._tables = [by_time(rows) for rows in (*self._applications, *rigid, rigid[0][:1], (IDLE_ROW,))]
        last = len(self._tables) - 1
        rows = ScaledRows(self._tables, [min(row, last) for row in range(len(jobs))], [1.0] * len(jobs))
        kinds = len(self._applications) * (nodes + 1) + nodes + 2
        all_w = nodes * (self._levels_mw[0] - self._idle_mw) / 1000
        self._ways = ways = CMoldable(self._composition, MoldableJobs(jobs, rows), nodes, constant(all_w), kinds=kinds)
        return Engine(self.phases, ways.jobs(jobs), nodes, {"moldable": ways})

    def add(self, row: int, job: Job) -> None:
        """The job has this row of the table."""
        self._given.add(row, *self._place(job))

    def adopted(self, row: int, job: Job, now_s: int) -> dict[str, Any]:
        """The configuration of a job that runs already. If there is no such row any more it counts as many nodes at the
        highest level."""
        found, table = job.configured, self._place(job).table
        place = next((at for at, one in enumerate(self._tables[table]) if self._is_in(found, one)), None)
        if found is None or place is None:
            width = len(job.nodes)
            table, place = self._of_width(width), 0
            found = job.configured = self._configured(self._tables[table][0], job.spec.walltime_s)
        self._given.runs(row, table, place)
        self._given.width[row] = len(job.nodes)
        assert job.started_s is not None
        return {"estimate_s": max(found.length_s, now_s - int(job.started_s))}  # one that is late ends at any moment

    def occupy(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """The row takes these nodes, and draws no more than idle ones."""
        self._given.runs(row, len(self._tables) - 1, 0)
        self._given.width[row] = len(names)
        return {}

    def width(self, row: int, job: Job) -> int:
        """How many nodes a job that starts gets."""
        return int(self._given.width[row])

    def most_nodes(self, job: Job) -> int:
        """How many it may get at most."""
        number = self._number.get(job.title)
        rows = self._applications[number] if number is not None else ()
        return max((row.nodes for row in rows), default=job.spec.nodes)

    def started(self, row: int, job: Job) -> None:
        """Its configuration is known."""
        job.configured = self._configured(self._given.chosen_of(row), self._place(job).scale)

    # --- for the keeper of the budget

    def _put_in_force(
        self, scheduler: NativeScheduler, budget: NodeBudget, before: NodeBudget | None, now_s: int
    ) -> None:
        idle_w = self._nodes * self._idle_mw / 1000
        scheduler.set_cap(self._cap_above(idle_w, budget, now_s, self._given.cap), now_s)

    @property
    def idle_mw(self) -> int:
        """The cap of a node without a job."""
        return self._idle_mw

    def busy_mw(self, job: Job, name: str) -> int:
        """The cap of a node with this job."""
        return job.configured.node_mw if job.configured is not None else self._levels_mw[0]

    # --- inside

    @property
    def _given(self) -> CMoldable:
        assert self._ways is not None
        return self._ways

    def _counted(self, row: Configuration) -> Configuration:
        """With the watts that its nodes draw above idle, in whole milliwatts of a node."""
        node_mw = int(1000 * (row.watts / row.nodes + self._node.rest_w))
        return replace(row, watts=row.nodes * max(node_mw - self._idle_mw, 0) / 1000)

    def _rigid(self, width: int) -> Rows:
        """So many nodes, all cores, at each level."""
        return tuple(
            Configuration(width, self._node.cores, level_mw / 1000, times, width * (level_mw - self._idle_mw) / 1000)
            for level_mw, times in zip(self._levels_mw, self._slowdowns, strict=True)
        )

    def _of_width(self, nodes: int) -> int:
        """The table of jobs that run on the nodes that they request."""
        return len(self._applications) + nodes - 1

    def _place(self, job: Job) -> Place:
        spec, applications = job.spec, len(self._applications)
        nodes = min(spec.nodes, self._nodes)  # of a job that runs, and of a partition that has lost nodes since
        if job.full_power:
            return Place(len(self._tables) - 2, applications * (self._nodes + 1) + self._nodes + 1, spec.walltime_s)
        number = self._number.get(job.title)
        full = full_row(self._applications[number], nodes) if number is not None else None
        if number is None or full is None:
            kind = applications * (self._nodes + 1) + nodes
            return Place(self._of_width(nodes), kind, spec.walltime_s)
        return Place(number, number * (self._nodes + 1) + nodes, spec.walltime_s / full.time_s)

    def _configured(self, row: Configuration, scale: float) -> Configured:
        node_mw = self._idle_mw + round(1000 * row.watts / row.nodes)
        length = length_s(replace(row, time_s=row.time_s * scale))
        return Configured(row.nodes, row.cores, row.cap_w, length, node_mw)

    def _is_in(self, found: Configured | None, row: Configuration) -> bool:
        """Whether a job was started in this row, and the row is still the same."""
        if found is None:
            return False
        now = self._configured(row, 1.0)
        return (found.nodes, found.cores, found.cap_w, found.node_mw) == (now.nodes, now.cores, now.cap_w, now.node_mw)
