"""The nodes and watts of a live partition whose nodes differ, for a policy that places jobs on nodes.

The engine is that of replays on unlike nodes (``csrc/resources/nodes.c``). Two things are different here. A node
has one job at a time, so a job is one unit on each of its nodes, and a unit takes the one place of its node. And idle
nodes draw from the same budget, so the engine's cap is the budget less what all nodes draw idle, and a job counts what
its nodes draw above that: each the most of any node on which it could run, at the lowest frequency where the policy
lowers caps. A node's own cap is at most that, so the caps never add up to more than the engine has counted; where the
policy lowers caps, what the budget leaves raises them. They go through the ledger, which raises one only once others
have come down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.cluster import Machine, NodeGroup
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.component_nodes import component_on, distributed, scarcest_first
from cluster_agent.jobs.job import KIB_PER_GB, Component, Job, JobSpec
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.owned_watts.live_counts import Counts, busy_mw, mw
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.unlike_nodes.components import Components
from cluster_agent.scheduler.unlike_nodes.node_jobs import PLACES, Nodes
from cluster_agent.scheduler.world import LiveJobs, World

Has = tuple[int, int, int, int]
"""What a node has, or a job requests of each of its nodes: cores, GPUs, MICs, KiB of memory."""

NOTHING: Final = (0, 0, 0, 0)


class NodeCounts(Counts):
    """``machine``: its groups say what their nodes have and draw; ``group``: of each node, None: of none; ``idle_mw``:
    what each node of a group counts without a job."""

    def __init__(
        self,
        live: LiveJobs,
        machine: Machine,
        composition: Composition,
        group: Mapping[str, NodeGroup | None],
        idle_mw: Mapping[str, int],
    ) -> None:
        self._groups, self._group, self._idle_mw = machine.groups, group, idle_mw
        self._at = {name: place for place, name in enumerate(group)}
        self._having = Counter(map(has, group.values()))
        self._least_mw: dict[str, int] = {}  # by group, of its nodes here
        for name, one in group.items():
            if one is not None:
                self._least_mw[one.name] = min(idle_mw[name], self._least_mw.get(one.name, idle_mw[name]))
        rows = len(live.jobs)
        jobs = replace(
            live.jobs,
            units=np.zeros(rows, np.int64),
            need=np.zeros((rows, PLACES + 1), np.int64),
            watts=np.zeros(rows, np.float64),
            knows_watts=np.ones(rows, np.bool_),
            max_wait_s=np.zeros(rows, np.int64),
            components=Components.growing(rows, PLACES + 1),
        )
        self._spec: dict[int, JobSpec] = {}  # by row
        nodes = Nodes(np.array([has(one) for one in group.values()] or [NOTHING], np.int64))
        super().__init__(World(msgspec.structs.replace(live, jobs=jobs), nodes=nodes), composition)

    def add(self, row: int, job: Job) -> None:
        """Without a request for cores it counts those of the smallest node that it could have."""
        if job.spec.components:
            self._spec[row] = job.spec
        self._fill(row, self._requests(job.spec), self._most_mw(job.spec) / 1000)

    def adopted(self, row: int, job: Job, now_s: int) -> dict[str, Any]:
        """Where the job is. Another policy or machine file may have given it nodes that it would not get now: it counts
        no less than the caps of these."""
        spec, count = job.spec, len(job.nodes)
        own_mw = sum(self._above_mw(name, one) for name, one in zip(job.nodes, _of_ranks(spec, count), strict=True))
        if count == spec.nodes:
            self._fill(row, self._requests(spec), max(own_mw, self._most_mw(spec)) / 1000)
            return {"nodes": self.at(self._as_the_engine(spec, job.nodes))}
        first = spec.requests[0]
        self._fill(row, [(count, self._need(first))], max(own_mw, count * self._most_above_mw(first)) / 1000)
        return {"nodes": self.at(job.nodes)}

    def occupy(self, row: int, names: Sequence[str], shares: Sequence[int] = ()) -> dict[str, Any]:
        """The row takes these nodes, and draws no more than idle ones."""
        self._fill(row, [(len(names), [*NOTHING, 1])], 0.0)
        return {"nodes": self.at(names)}

    def busy_mw(self, job: Job, name: str) -> int:
        """The cap of a node with this job; of a node that the machine file does not have, its MOP."""
        if self._group.get(name) is None:
            return 0
        return self._idle_mw[name] + self._above_mw(name, component_on(job, name))

    def at(self, names: Iterable[str]) -> list[int]:
        """Their places in the engine."""
        return [self._at[name] for name in names]

    def nodes_for(self, scheduler: NativeScheduler, row: int, free: Sequence[Node], width: int) -> Sequence[Node]:
        """Where the policy has placed it, else others that are free: the policy does not know what nodes run, nor of
        jobs that name theirs."""
        if (spec := self._spec.get(row)) is not None:
            return self._components_for(scheduler, row, free, spec)
        placed = set(scheduler.placed(row).node.tolist())
        own = [node for node in free if self._at[node.name] in placed]
        if len(own) == width:
            return own
        if len(free) >= width:
            scheduler.place(row, self.at(node.name for node in free[:width]))
        return free[:width]

    def _components_for(
        self, scheduler: NativeScheduler, row: int, free: Sequence[Node], spec: JobSpec
    ) -> Sequence[Node]:
        by_place = {self._at[node.name]: node for node in free}
        placed = scheduler.placed(row).node.tolist()
        if by_place.keys() >= {*placed}:
            return self._as_the_job(spec, [by_place[place] for place in placed])
        found = distributed(spec, free)
        if found:
            scheduler.place(row, self.at(self._as_the_engine(spec, [node.name for node in found])))
        return found

    def _engine_order(self, spec: JobSpec) -> list[int]:
        """The components in the order in which the engine looks for their nodes."""
        return scarcest_first(spec, self._having)

    def _as_the_engine(self, spec: JobSpec, names: Sequence[str]) -> list[str]:
        """The nodes of the job in that order of its components."""
        of = _apart(names, [one.nodes for one in spec.requests])
        return [name for at in self._engine_order(spec) for name in of[at]]

    def _as_the_job(self, spec: JobSpec, nodes: Sequence[Node]) -> list[Node]:
        """The reverse."""
        order = self._engine_order(spec)
        of = dict(zip(order, _apart(nodes, [spec.requests[at].nodes for at in order]), strict=True))
        return [node for at in sorted(of) for node in of[at]]

    def _requests(self, spec: JobSpec) -> list[tuple[int, list[int]]]:
        requests = spec.requests
        return [(requests[at].nodes, self._need(requests[at])) for at in self._engine_order(spec)]

    def _most_mw(self, spec: JobSpec) -> int:
        return sum(one.nodes * self._most_above_mw(one) for one in spec.requests)

    def _fitting(self, spec: Component) -> list[NodeGroup]:
        return [group for group in self._groups if spec.fits(has(group))]

    def _above_mw(self, name: str, spec: Component) -> int:
        """What the node draws in such a job, more than an idle one; 0 of a node of no group."""
        group = self._group[name]
        return 0 if group is None else max(busy_mw(group, spec) - self._idle_mw[name], 0)

    def _most_above_mw(self, spec: Component) -> int:
        """The most of any node on which the job could run; of a group that has no nodes here, as its file says."""
        least_mw, fitting = self._least_mw, self._fitting(spec)
        return max([0, *(busy_mw(one, spec) - least_mw.get(one.name, mw(one.idle_w)) for one in fitting)])

    def _need(self, spec: Component) -> list[int]:
        cores, *others = spec.per_node
        fitting = self._fitting(spec)
        if not spec.cores and fitting:
            cores = min(group.cores for group in fitting)
        return [cores, *others, 1]

    def _fill(self, row: int, requests: Sequence[tuple[int, list[int]]], watts: float) -> None:
        assert self.engine.unlike is not None
        self.engine.unlike.add(row, requests, watts)


Named = TypeVar("Named")


def _apart(names: Sequence[Named], counts: Sequence[int]) -> list[Sequence[Named]]:
    """So many of them, one after the other."""
    ends = accumulate(counts)
    return [names[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _of_ranks(spec: JobSpec, count: int) -> list[Component]:
    """The component of each of so many nodes."""
    requests = spec.requests
    return [requests[0]] * count if len(requests) == 1 else [requests[spec.on_rank(rank)] for rank in range(count)]


def check_hosts(machine: Machine) -> None:
    """``WrongUseError`` if the machine file does not say of which group a node is."""
    if sum(not group.hosts for group in machine.groups) > 1:
        raise WrongUseError(
            f"{machine.name}: which nodes are of which of its {len(machine.groups)} groups? Give hosts, patterns of"
            " names, for every [[nodes]] but one"
        )


def group_of(machine: Machine, name: str) -> NodeGroup | None:
    """The first group that names the node, else the one that names no nodes."""
    named = (group for group in machine.groups if any(fnmatchcase(name, pattern) for pattern in group.hosts))
    return next(named, next((group for group in machine.groups if not group.hosts), None))


def has(group: NodeGroup | None) -> Has:
    """What a node of the group has; nothing if it is of no group of the machine file."""
    if group is None:
        return NOTHING
    return group.cores, group.gpus, group.mics, round(group.memory_gb * KIB_PER_GB)
