"""The nodes and watts of a live partition whose nodes differ, for a policy that places jobs on nodes.

The engine is that of replays on unlike nodes (``csrc/resources/unlike_nodes.c``). Two things are different here. A node
has one job at a time, so a job is one unit on each of its nodes, and a unit takes the one place of its node. And idle
nodes draw from the same budget, so the engine's cap is the budget less what all nodes draw idle, and a job counts what
its nodes draw above that: each the most of any node on which it could run. A node's own cap is at most that, so the
caps never add up to more than the engine has counted. They go through the ledger, which raises one only once others
have come down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from cluster_agent.cluster import Machine, NodeGroup
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.admission import has_resources
from cluster_agent.jobs.job import KIB_PER_GB, Job, JobSpec
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.owned_watts.live_owner import Engine, Has, NodeBudget, Owner, Table
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.native.native_unlike import CUnlike
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.unlike_nodes.node_jobs import PLACES, NodeJobs, Nodes

NOTHING: Final = (0, 0, 0, 0)


class OwnedNodes(Owner):
    """What ``live_watts.OwnedWatts`` is where nodes are alike. ``machine``: its groups say what their nodes have and
    draw, and by ``hosts`` which nodes these are."""

    owns_watts = True

    def __init__(self, machine: Machine, composition: Composition) -> None:
        super().__init__()
        machine.check_watts()
        if sum(not group.hosts for group in machine.groups) > 1:
            raise WrongUseError(
                f"{machine.name}: which nodes are of which of its {len(machine.groups)} groups? Give hosts, patterns of"
                " names, for every [[nodes]] but one"
            )
        self._machine, self._composition = machine, composition
        self._groups: dict[str, NodeGroup | None] = {}
        self._names: list[str] = []
        self._at: dict[str, int] = {}
        self._idle_mw: dict[str, int] = {}
        self._unlike: CUnlike | None = None

    def has(self, name: str) -> Has:
        """What the node has, as the machine file says; nothing if it is of no group there."""
        group = self._group(name)
        return _has(group) if group is not None else NOTHING

    # --- for the engine

    def _engine(self, table: Table) -> Engine:
        self._names = list(table.names)
        self._groups = {name: self._group(name) for name in self._names}
        self._idle_mw = {name: _mw(group.idle_w) for name, group in self._groups.items() if group is not None}
        self._at = {name: place for place, name in enumerate(self._names)}
        rows = len(table.jobs)
        jobs = NodeJobs(
            table.jobs,
            name=(),
            units=np.zeros(rows, np.int64),
            need=np.zeros((rows, PLACES + 1), np.int64),
            watts=np.zeros(rows, np.float64),
            knows_watts=np.ones(rows, np.bool_),
            queue=(),
            max_wait_s=np.zeros(rows, np.int64),
        )
        nodes = Nodes(np.array([self.has(name) for name in self._names] or [NOTHING], np.int64))
        self._unlike = unlike = CUnlike(self._composition, jobs, nodes, UNCAPPED, say=table.say)
        return Engine(unlike.phases, table.jobs, unlike.processors, {"unlike": unlike})

    def add(self, row: int, job: Job) -> None:
        """The job has this row of the table. Without a request for cores it counts those of the smallest node that it
        could have."""
        above_mw = max((_above_idle_mw(group, job.spec) for group in self._fitting(job.spec)), default=0)
        self._fill(row, job.spec.nodes, self._need(job.spec), job.spec.nodes * above_mw / 1000)

    def adopted(self, row: int, job: Job, now_s: int) -> dict[str, Any]:
        """Where a job is that runs already. Another policy or machine file may have given it nodes that it would not
        get now: it counts no less than the caps of these."""
        groups = [group for name in job.nodes if (group := self._groups[name]) is not None]
        own_mw = sum(_above_idle_mw(group, job.spec) for group in groups)
        most_mw = max((_above_idle_mw(group, job.spec) for group in self._fitting(job.spec)), default=0)
        watts = max(own_mw, len(job.nodes) * most_mw) / 1000
        self._fill(row, len(job.nodes), self._need(job.spec), watts)
        return {"nodes": self.at(job.nodes)}

    def occupy(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """The row takes these nodes, and draws no more than idle ones."""
        self._fill(row, len(names), [*NOTHING, 1], 0.0)
        return {"nodes": self.at(names)}

    def fits(self, job: Job, nodes: Collection[Node]) -> bool:
        """Whether the partition has nodes for it, which another machine file may have taken away."""
        return job.spec.nodes <= sum(has_resources(job, node) for node in nodes)

    def at(self, names: Iterable[str]) -> list[int]:
        """Their places in the engine."""
        return [self._at[name] for name in names]

    def nodes_for(self, scheduler: NativeScheduler, row: int, free: Sequence[Node], width: int) -> Sequence[Node]:
        """Where the policy has placed it, else others that are free: the policy does not know what nodes run, nor of
        jobs that name theirs."""
        placed = set(scheduler.placed(row).node.tolist())
        own = [node for node in free if self._at[node.name] in placed]
        if len(own) == width:
            return own
        if len(free) >= width:
            scheduler.place(row, self.at(node.name for node in free[:width]))
        return free[:width]

    @property
    def planned_s(self) -> Mapping[int, int]:
        """When rows that wait are to start, if the policy has a planner and it decided the last pass."""
        return self._unlike.planned.later_s if self._unlike is not None and self._unlike.planned is not None else {}

    @property
    def planner_trouble(self) -> str:
        """Why the list schedule decided the last pass, and not the planner; empty: it did, or there is none."""
        outcomes = self._unlike.planned.deciding.outcomes if self._unlike and self._unlike.planned else ()
        return outcomes[-1].reason if outcomes else ""

    # --- for the keeper of the budget

    def _put_in_force(
        self, scheduler: NativeScheduler, budget: NodeBudget, before: NodeBudget | None, now_s: int
    ) -> None:
        idle_w = sum(self._idle_mw.values()) / 1000
        scheduler.set_cap(self._cap_above(idle_w, budget, now_s, UNCAPPED), now_s)

    def idle_caps_mw(self) -> dict[str, int]:
        """The caps of nodes without a job."""
        return self._idle_mw

    def busy_mw(self, job: Job, name: str) -> int:
        """The cap of a node with this job; of a node that the machine file does not have, its MOP."""
        group = self._groups.get(name)
        return 0 if group is None else _mw(group.idle_w) + _above_idle_mw(group, job.spec)

    # --- inside

    def _group(self, name: str) -> NodeGroup | None:
        """The first group that names it, else the one that names no nodes."""
        groups = self._machine.groups
        named = (group for group in groups if any(fnmatchcase(name, pattern) for pattern in group.hosts))
        return next(named, next((group for group in groups if not group.hosts), None))

    def _fitting(self, spec: JobSpec) -> list[NodeGroup]:
        return [group for group in self._machine.groups if spec.fits(_has(group))]

    def _need(self, spec: JobSpec) -> list[int]:
        cores, *others = spec.per_node
        fitting = self._fitting(spec)
        if not spec.cores and fitting:
            cores = min(group.cores for group in fitting)
        return [cores, *others, 1]

    def _fill(self, row: int, units: int, need: list[int], watts: float) -> None:
        assert self._unlike is not None
        self._unlike.add(row, units, need, watts)


def _has(group: NodeGroup) -> Has:
    return group.cores, group.gpus, group.mics, round(group.memory_gb * KIB_PER_GB)


def _mw(watts: float) -> int:
    return int(watts * 1000)


def _above_idle_mw(group: NodeGroup, spec: JobSpec) -> int:
    """What a busy node of the group draws with these accelerators, more than an idle one."""
    busy_w = (group.busy_max_w or group.busy_w)[0] + spec.gpus * group.gpu_w + spec.mics * group.mic_w
    return _mw(busy_w) - _mw(group.idle_w)
