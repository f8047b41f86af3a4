"""The watts of a live partition whose policy chooses for each job one of several configurations: nodes, cores, a cap.

The engine is that of replays (``csrc/resources/nodes.c``). As in ``live_nodes``, idle nodes draw from the same
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
from cluster_agent.jobs.owned_watts.live_counts import Counts, counted, mw
from cluster_agent.scheduler.configurations.choices import length_s
from cluster_agent.scheduler.configurations.table import (
    Configuration,
    Rows,
    ScaledRows,
    above_idle,
    by_time,
    full_row,
)
from cluster_agent.scheduler.native.native_moldable import CMoldable
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import constant
from cluster_agent.scheduler.world import LiveJobs, Ways, World

MOST_APPLICATIONS: Final = 10_000
"""Ours: with as many nodes there are still fewer tables than rows of jobs, whose first name each table once."""

IDLE_ROW: Final = Configuration(1, 1, 0.0, 1.0, 0.0)
"""Of nodes that are away."""


class Place(NamedTuple):
    """A job's table, its kind (of one table and as many requested nodes), and its time over the table's."""

    table: int
    kind: int
    scale: float


class ConfigurationCounts(Counts):
    """``machine``: its first group of nodes.

    Tables in this order: of each application; of 1, 2, ... nodes, one row for each level; of a node that is measured;
    of nodes that are away."""

    def __init__(
        self, live: LiveJobs, machine: Machine, composition: Composition, given: Mapping[str, Rows], idle_mw: int
    ) -> None:
        nodes, node = live.processors, machine.node
        self._nodes, self._idle_mw = nodes, idle_mw
        self._levels_mw = [max(mw(watts), idle_mw) for watts in node.busy_max_w or node.busy_w]
        planned = counted(node, nodes, idle_mw)
        self._number = {name: number for number, name in enumerate(given)}
        self._applications: list[Rows] = [tuple(above_idle(row, planned) for row in rows) for rows in given.values()]
        rigid = [self._rigid(width, machine) for width in range(1, nodes + 1)]
        self._tables = [by_time(rows) for rows in (*self._applications, *rigid, rigid[0][:1], (IDLE_ROW,))]
        last, jobs = len(self._tables) - 1, len(live.jobs)
        rows = ScaledRows(self._tables, [min(row, last) for row in range(jobs)], [1.0] * jobs)
        ways = Ways(rows, kinds=len(given) * (nodes + 1) + nodes + 2)
        # the choices take shares of what there is, so it is not without bound
        uncapped = constant(nodes * (self._levels_mw[0] - idle_mw) / 1000)
        super().__init__(World(live, caps=uncapped, ways=ways), composition)

    def add(self, row: int, job: Job) -> None:
        """The job may run in the rows of its table."""
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

    def occupy(self, row: int, names: Sequence[str], shares: Sequence[int] = ()) -> dict[str, Any]:
        """The row takes these nodes, and draws no more than idle ones."""
        self._given.runs(row, len(self._tables) - 1, 0)
        self._given.width[row] = len(names)
        return {}

    def started(self, row: int, job: Job) -> None:
        """Its configuration is known."""
        job.configured = self._configured(self._given.chosen_of(row), self._place(job).scale)

    def busy_mw(self, job: Job, name: str) -> int:
        """The cap of a node with this job."""
        return job.configured.node_mw if job.configured is not None else self._levels_mw[0]

    @property
    def _given(self) -> CMoldable:
        assert self.engine.moldable is not None
        return self.engine.moldable

    def _rigid(self, width: int, machine: Machine) -> Rows:
        """So many nodes, all cores, at each level."""
        return tuple(
            Configuration(width, machine.node.cores, level_mw / 1000, time_s, width * (level_mw - self._idle_mw) / 1000)
            for level_mw, time_s in zip(self._levels_mw, machine.slowdowns(), strict=True)
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


def check_configurations(machine: Machine, configurations: Mapping[str, Rows]) -> None:
    """``WrongUseError`` for tables that do not fit the machine."""
    if len(configurations) > MOST_APPLICATIONS:
        raise WrongUseError(f"{len(configurations)} applications have configurations: give at most {MOST_APPLICATIONS}")
    most = max((row.cores for rows in configurations.values() for row in rows), default=0)
    if most > machine.node.cores:
        raise WrongUseError(f"{machine.name}: a configuration has {most} cores, a node {machine.node.cores}")
