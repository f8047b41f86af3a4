"""What the engine of a live partition counts of jobs and nodes: one table of jobs, which grows, and its engine.

``Counts`` is that of a policy that knows no watts. For those that own watts there is one module for each kind of a
``World``: ``live_levels`` for nodes that are alike, ``live_nodes`` for those that differ, ``live_configurations``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from cluster_agent.cluster import Machine, NodeGroup
from cluster_agent.jobs.job import Component, Job, JobSpec
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Run
from cluster_agent.scheduler.native.native_replay import Engine
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.live_limits import NONE, Claim, LiveLimits, LiveSwitches
from cluster_agent.scheduler.world import World


class Counts:
    """A table begins without jobs; each of these functions fills in a row of it, or reads one."""

    limits: LiveLimits | None = None
    """What may run at once, and where, and what is reserved; only where the policy owns no watts."""

    def __init__(
        self,
        world: World,
        composition: Composition,
        switches: LiveSwitches = NONE,
        nodes: Collection[str] = (),
    ) -> None:
        if switches.names or switches.clash_with_reservations(composition) is None:
            self.limits = LiveLimits(switches, nodes, len(world.jobs), world.jobs.n_users)
            world = msgspec.structs.replace(world, limits=self.limits.limits)
        self.uncapped = world.caps
        self.engine = Engine(world, composition)

    @property
    def trouble(self) -> str:
        """Why a model of the site does not predict; empty: there is none, or it does."""
        return ""

    def add(self, row: int, job: Job) -> None:
        """The job has this row."""
        if self.limits is not None:
            self.limits.add(row, claim_of(job), job.nodes)

    def adopted(self, row: int, job: Job, now_s: int) -> dict[str, Any]:
        """What the scheduler has to know more of a job that runs already."""
        return {}

    def request_s(self, job: Job) -> int:
        """For how long the plan counts it at most."""
        return job.spec.walltime_s

    def occupy(self, row: int, names: Sequence[str], shares: Sequence[int] = ()) -> dict[str, Any]:
        """The same of a row that takes these nodes, or so many shares of each, and draws no more than idle ones."""
        if self.limits is not None:
            self.limits.occupy(row, names)
        return {}

    def nodes_for(self, scheduler: NativeScheduler, row: int, free: Sequence[Node], width: int) -> Sequence[Node]:
        """The nodes of a job that starts, component after component; too few if too few of those that it could have are
        free."""
        return free[:width]

    def counts_on(self, scheduler: NativeScheduler, row: int) -> Mapping[str, int]:
        """By node how many of its shares a job that starts gets; of one that is not there: all."""
        return {}

    def met(self, one: Run, others: Sequence[Run]) -> None:
        """The job has started on nodes of which these jobs have other halves."""

    def started(self, row: int, job: Job) -> None:
        """The job in this row has started."""

    def ended(self, job: Job) -> None:
        """It has ended; predictions may learn from it."""

    def announced(self, scheduler: NativeScheduler) -> None:
        """The scheduler knows other caps than before."""

    def busy_mw(self, job: Job, name: str) -> int:
        """The cap of a node with this job."""
        return 0


def claim_of(job: Job) -> Claim:
    """What counts of it for limits."""
    spec = job.spec
    return Claim(job.user, len(job.nodes) or spec.nodes, job.group, spec.queue, spec.reservation)


def mw(watts: float) -> int:
    """Whole milliwatts, rounded down."""
    return int(watts * 1000)


def busiest_w(group: NodeGroup) -> float:
    """What a busy node draws at most."""
    return (group.busy_max_w or group.busy_w)[0]


def at_lowest(machine: Machine) -> Machine:
    """The machine with the lowest frequency of each of its groups alone."""
    return msgspec.structs.replace(machine, groups=tuple(map(_at_lowest, machine.groups)))


def _at_lowest(group: NodeGroup) -> NodeGroup:
    levels = {name: getattr(group, name)[-1:] for name in ("frequency_mhz", "busy_w", "busy_max_w", "slowdown")}
    return msgspec.structs.replace(group, **levels)


def busy_mw(group: NodeGroup, spec: Component | JobSpec) -> int:
    """What a busy node of the group draws at most, with the accelerators that a job requests."""
    return mw(busiest_w(group) + spec.gpus * group.gpu_w + spec.mics * group.mic_w)


def counted(group: NodeGroup, count: int, idle_mw: int, **more: Any) -> NodeGroup:
    """So many of these nodes as a plan counts them: idle ones at ``idle_mw``, and none at less; ``more``: other fields
    that it counts otherwise."""
    idle_w = idle_mw / 1000
    busy_w, busy_max_w = (tuple(max(watts, idle_w) for watts in each) for each in (group.busy_w, group.busy_max_w))
    more |= {"off_w": min(group.off_w, idle_w), "busy_w": busy_w, "busy_max_w": busy_max_w, "hosts": ()}
    return msgspec.structs.replace(group, count=count, idle_w=idle_w, **more)
