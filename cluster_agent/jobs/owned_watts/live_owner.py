"""Who owns the watts of a live partition, and what its scheduler knows of nodes and jobs because of that.

One ``Owner`` for all policies. It makes a ``World`` of the partition's nodes and jobs, for the engine of replays, and
keeps the budget and the caps of idle nodes. What is different between nodes that are alike, that differ, and jobs with
configurations are a few of its functions, and how rows of jobs are filled in (``live_counts``). Where a sharer divides
the watts, the policy starts jobs on nodes and knows of no budget.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.cluster import UW, Machine, NodeGroup, Topology
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.jobs.admission import has_resources
from cluster_agent.jobs.component_nodes import component_on, distributed
from cluster_agent.jobs.job import PREEMPTED, Job
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Run
from cluster_agent.jobs.owned_watts.live_configurations import ConfigurationCounts, check_configurations
from cluster_agent.jobs.owned_watts.live_counts import Counts, at_lowest, busiest_w, busy_mw, counted, mw
from cluster_agent.jobs.owned_watts.live_halves import HalfCounts, LivePairs
from cluster_agent.jobs.owned_watts.live_levels import LevelCounts
from cluster_agent.jobs.owned_watts.live_nodes import Has, NodeCounts, check_hosts, group_of, has
from cluster_agent.scheduler.configurations.table import Rows
from cluster_agent.scheduler.energy_window import Stored
from cluster_agent.scheduler.interfaces import Meter, unmetered
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.orders.priority import with_strangers
from cluster_agent.scheduler.policy_phases import Composition, shares_nodes
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.queue import patient
from cluster_agent.scheduler.switches.limits import clash_of
from cluster_agent.scheduler.switches.live_limits import NONE, LiveSwitches
from cluster_agent.scheduler.switches.reservations import Reserved
from cluster_agent.scheduler.world import Kind, LiveJobs, World

if TYPE_CHECKING:
    from cluster_agent.scheduler.native.planned_starts import PlannedStarts


class NodeBudget(msgspec.Struct, frozen=True):
    """What the nodes together may draw, as the keeper of the budget says: ``steps`` are (when, watts), the first one in
    force, of the partition's clock. ``aside_w`` of that is not the policy's: reserves, and what nodes may draw beyond
    what is planned for them."""

    steps: tuple[tuple[float, float], ...]
    aside_w: float = 0.0

    def is_as(self, other: NodeBudget, now_s: int) -> bool:
        """Whether both are the same from now on, whatever they set aside: the steps of one may be over."""
        return replace(self, aside_w=0.0).caps(now_s) == replace(other, aside_w=0.0).caps(now_s)

    def caps(self, now_s: int) -> list[Cap]:
        """For the engine, in whole seconds: a lower cap begins early, a higher one late."""
        begins_s = [now_s]
        for (_, before_w), (at_s, watts) in zip(self.steps, self.steps[1:], strict=False):
            begins_s.append(max(floor(at_s) if watts < before_w else ceil(at_s), begins_s[-1]))
        ends_s = [*begins_s[1:], FOREVER_S]
        return [
            Cap(from_s, to_s, max(watts - self.aside_w, 0.0))
            for from_s, to_s, (_, watts) in zip(begins_s, ends_s, self.steps, strict=True)
            if from_s < to_s and watts < float("inf")
        ]


def _full_w(machine: Machine) -> float | None:
    return machine.node.busy_w[0] if machine.has_watts else None


class Owner:
    """Of a partition whose nodes the machine file describes, if there is one. ``meter``: what all nodes have drawn."""

    def __init__(
        self,
        composition: Composition | None = None,
        machine: Machine | None = None,
        configurations: Mapping[str, Rows] | None = None,
        meter: Meter = unmetered,
        switches: LiveSwitches = NONE,
        pairs: LivePairs | None = None,
    ) -> None:
        """``switches``: where the policy owns no watts; ``pairs``: where two jobs share a node. ``WrongUseError`` for a
        machine that does not fit."""
        self.switches = switches
        composition = composition or Composition()
        self._highest = machine if composition.power is not None and composition.power.lowers_caps else None
        self._composition, self._machine, self._meter = composition, machine, meter
        if self._highest is not None and self._highest.has_watts:
            self._machine = at_lowest(self._highest)
        self._kind = _kind_of(composition, machine)
        self.owns_watts = self._kind is not None
        self.counts_every_node = self._kind == "processors"
        """Whether the engine counts watts for each of its processors, so that no more rows may have nodes than there
        are nodes."""
        self.places_jobs = self._kind == "nodes"
        """Whether the policy distinguishes nodes, and places jobs on them."""
        self.pairs = pairs if shares_nodes(composition.plan) else None
        """How fast jobs are next to others, where two may have one node; None: each has its nodes alone."""
        self.requeues = not self.counts_every_node or composition.power is None or composition.power.requeue
        """Whether a job that was killed for a cap waits again."""
        self.has_best_effort = self._goes_with_best_effort()
        """Whether jobs may run on what others cannot use, until these can."""
        self.configurations = configurations or {} if self._kind == "configurations" else {}
        """By application, where the policy chooses one for each job."""
        is_alike = self._kind in ("processors", None) and self.pairs is None
        self.phases = composition if is_alike else Composition()
        """Of the policy, as far as it learns from jobs that have ended, and from users."""
        self.full_w = _full_w(machine) if is_alike and machine is not None else None
        """What a busy node draws, where priorities count it."""
        self._groups: dict[str, NodeGroup | None] = {}  # of each node of the partition
        self._mop_mw: Mapping[str, int] = {}
        self._budget: NodeBudget | None = None
        self._announced: NodeBudget | None = None  # the one that the scheduler knows
        self.idle_mw = 0
        """The cap of a node without a job."""
        self.idle_caps_mw: Mapping[str, int] = {}
        """Of the nodes without a job, those whose caps are not ``idle_mw``."""
        self._check()

    def _goes_with_best_effort(self) -> bool:
        knows_nodes = self.owns_watts or self.pairs is not None or self.switches.has_partitions
        return not knows_nodes and clash_of(self._composition, ("best_effort",)) is None

    def _check(self) -> None:
        if self._kind is None:
            return
        self._owned.check_watts()
        self._count_idle()
        if self.places_jobs:
            check_hosts(self._owned)
        elif self.counts_every_node:
            Watts.of(self._levels_as_planned(1), self._composition.power)
            guard = self._composition.power.guard if self._composition.power else None
            if guard is not None and guard.node is not None:
                raise WrongUseError("table= counts the cores of a job, and a live partition whole nodes: leave it out")
        else:
            check_configurations(self._owned, self.configurations)

    def check_reserves(self, name: str) -> None:
        """``WrongUseError`` if the policy, or queues, cannot keep a reservation of this name."""
        owns = "a policy that owns watts does not go with reservations" if self.owns_watts else None
        if (trouble := owns or self.switches.clash_with_reservations(self._composition)) is not None:
            raise WrongUseError(f"reservation {name} cannot be kept: {trouble}; choose another policy ([jobs] policy)")

    def check_alone(self, jobs: Iterable[Job]) -> None:
        """``ClusterError`` if jobs share nodes, as an earlier policy has placed them, and this one has none share."""
        on: dict[str, int] = {}
        for job in jobs if self.pairs is None else ():
            for name in job.nodes if job.reason != PREEMPTED else ():
                if name in on:
                    raise ClusterError(
                        f"jobs {on[name]} and {job.id} share {name}, and the policy gives each job its nodes alone:"
                        " start with shared until they have ended"
                    )
                on[name] = job.id

    def reserve(self, reserved: Mapping[str, Reserved]) -> None:
        """Schedulers that begin keep these reservations."""
        self.switches = self.switches._replace(reservations=reserved)

    def reserve_now(self, reserved: Mapping[str, Reserved], scheduler: NativeScheduler, now_s: int) -> None:
        """This scheduler keeps them, too, from now on."""
        self.reserve(reserved)
        if self.counts.limits is not None:
            self.counts.limits.reserve(reserved, now_s)
            scheduler.reserve(self.counts.limits.reserved)

    @property
    def _owned(self) -> Machine:
        assert self._machine is not None, "check_live has said so"
        return self._machine

    def as_planned(self, nodes: int) -> Machine | None:
        """The machine as the policy counts it, for a replay; None: it knows none. Whole nodes, as many as there are,
        and no chassis; no node draws less than an idle one."""
        if self._kind is None:
            return None
        if self.counts_every_node:
            return self._levels_as_planned(nodes)
        node = self._owned.node
        groups = self._groups_as_planned() if self.places_jobs else [counted(node, max(nodes, 1), self.idle_mw)]
        return Machine(self._owned.name, tuple(groups), Topology(), {})

    def _levels_as_planned(self, nodes: int) -> Machine:
        """A node is a processor, and walltimes are wall-clock time at any level."""
        machine, node = self._owned, self._owned.node
        levels = (1.0,) * len(node.frequency_mhz)
        group = counted(node, max(nodes, 1), self.idle_mw, cores=1, slowdown=levels)
        return Machine(machine.name, (group,), Topology(), dict.fromkeys(machine.degradation, 1.0))

    def _groups_as_planned(self) -> Iterable[NodeGroup]:
        """Those that have nodes here, an idle node as half of its group count it at most."""
        for group in self._owned.groups:
            idle_mw = [each_mw for name, each_mw in self.idle_caps_mw.items() if self._groups[name] is group]
            if idle_mw:
                yield counted(group, len(idle_mw), _median(idle_mw))

    # --- for the engine

    def begin(
        self, live: LiveJobs, names: Sequence[str], is_paused: Callable[[], bool], preempt: Callable[[int], None]
    ) -> LiveScheduler:
        """A scheduler over a new table of jobs, on these nodes. ``is_paused``: whether passes have to wait;
        ``preempt``: ends a best-effort job for others."""
        self._announced = None
        self._groups = {name: self._group_of(name) for name in names}
        self._count_idle()
        self.counts = self._new_counts(live)
        engine = self.counts.engine
        phases = engine.composition
        if phases.order:
            phases = replace(phases, order=patient(phases.order, live.say))
        if phases.priority:
            phases = replace(phases, priority=with_strangers(phases.priority))
        given = {"meter": self._meter, "full_w": self.full_w, **engine.given}
        return LiveScheduler(is_paused, preempt, phases, engine.jobs, engine.processors, **given)

    def _new_counts(self, live: LiveJobs) -> Counts:
        composition = self._composition
        if self.pairs is not None:
            return HalfCounts(live, composition, self.pairs, list(self._groups))
        if self._kind is None:
            return Counts(World(live), composition, self.switches, self._groups)
        if self.counts_every_node:
            return LevelCounts(live, self._levels_as_planned(live.processors), composition)
        if self.places_jobs:
            return NodeCounts(live, self._owned, composition, self._groups, self.idle_caps_mw)
        return ConfigurationCounts(live, self._owned, composition, self.configurations, self.idle_mw)

    @property
    def predicts(self) -> bool:
        """Whether jobs are admitted with watts that were predicted."""
        power = self._composition.power
        return self.counts_every_node and power is not None and power.admitted not in (None, "given")

    @property
    def can_have_failures(self) -> bool:
        """Whether a replay of this policy can have nodes that fail."""
        return not self.owns_watts and clash_of(self._composition, ("failures",)) is None

    @property
    def switched(self) -> Mapping[str, int]:
        """How many jobs of this table each switch has changed, as a replay counts them."""
        return self.counts.engine.switches

    def has(self, name: str) -> Has | None:
        """What the node has; None: all nodes are taken as alike."""
        return has(self._group_of(name)) if self.places_jobs else None

    def _group_of(self, name: str) -> NodeGroup | None:
        """Of the machine file; where nodes are taken as alike, its first one."""
        return None if self._machine is None else self._group_in(self._machine, name)

    def _group_in(self, machine: Machine, name: str) -> NodeGroup | None:
        return group_of(machine, name) if self.places_jobs else machine.node

    def fits(self, job: Job, nodes: Collection[Node]) -> bool:
        """Whether the partition has nodes for it, which another machine file may have taken away."""
        able = [
            node for node in nodes if node.serves(job.spec.queue) and (not self.places_jobs or has_resources(job, node))
        ]
        return len(distributed(job.spec, able)) >= job.spec.nodes

    def most_nodes(self, job: Job) -> int:
        """How many nodes a job may get at most: a share of each of twice as many, where it may share."""
        if self.pairs is not None:
            return job.spec.shares
        return max((row.nodes for row in self.configurations.get(job.title, ())), default=job.spec.nodes)

    def width(self, row: int) -> int:
        """How many a job that starts gets."""
        return int(self.counts.engine.jobs.width[row])

    @property
    def planned_s(self) -> Mapping[int, int]:
        """When rows that wait are to start, if the policy has a planner and it decided the last pass."""
        return self._planned.later_s if self._planned is not None else {}

    @property
    def planner_trouble(self) -> str:
        """Why the list schedule decided the last pass, and not the planner; empty: it did, or there is none."""
        outcomes = self._planned.deciding.outcomes if self._planned is not None else ()
        return outcomes[-1].reason if outcomes else ""

    @property
    def _planned(self) -> PlannedStarts | None:
        unlike = self.counts.engine.unlike
        return unlike.planned if unlike is not None else None

    # --- for the keeper of the budget

    def set_mops(self, mop_mw: Mapping[str, int]) -> bool:
        """The minimal operating power of nodes, as far as they have declared theirs: no cap makes a node draw less, so
        one without a job counts at least that. Whether the plan counts nodes otherwise than before; then its scheduler
        has to begin again. The caps are ahead of the plan until then, and nothing is started meanwhile."""
        if not self.owns_watts or mop_mw == self._mop_mw:
            return False
        self._mop_mw = dict(mop_mw)
        return self._count_idle()

    def _count_idle(self) -> bool:
        """Count again what nodes without a job draw; whether that is anything new. Where nodes are taken as alike, they
        count the MOP that no more than half of them exceed: what other nodes may draw beyond that is set aside, so no
        node alone changes what the plan counts for all."""
        if self._kind is None:
            return False
        before = self.idle_mw, self.idle_caps_mw
        if self.places_jobs:
            self.idle_caps_mw = {
                name: self._counted_idle_mw(group, self._mop_mw.get(name, 0))
                for name, group in self._groups.items()
                if group is not None
            }
        else:
            self.idle_mw = self._counted_idle_mw(self._owned.node, _median(self._mop_mw.values()))
        return before != (self.idle_mw, self.idle_caps_mw)

    def _counted_idle_mw(self, group: NodeGroup, mop_mw: int) -> int:
        """A node's ``idle_w`` in the machine file, or its MOP, if that is more, and at most what a busy node draws."""
        most_w, power = busiest_w(group), self._composition.power
        most_mw = mw(most_w)
        if self.counts_every_node and power is not None:  # and there a busy node draws more than an idle one
            most_mw = max(mw(min(most_w, power.node_w or inf)) - 1, 0)
        return max(min(mop_mw, most_mw), mw(group.idle_w))

    def set_budget(self, budget: NodeBudget) -> bool:
        """Whether this is another budget than before. It is in force with the next ``announce``."""
        is_new, self._budget = self.owns_watts and budget != self._budget, budget
        return is_new

    def kept(self, stored: Stored) -> Stored:
        """What goes on the disk: nodes may draw all that is set aside, too, while no agent hears of it."""
        aside_w = self._budget.aside_w if self._budget is not None else 0.0
        return replace(stored, drawn_uw=stored.drawn_uw + ceil(aside_w * UW))

    def announce(self, scheduler: NativeScheduler, now_s: int) -> bool:
        """Put a new budget in force. Whether a pass is due."""
        budget, before = self._budget, self._announced
        if not self.owns_watts or budget is None or budget == before:
            return False
        self._announced, caps = budget, budget.caps(now_s)
        if before is not None and caps == before.caps(now_s):
            return False  # a step that was announced has come: the scheduler knows it
        if self.counts_every_node:
            # the policy reacts to a budget that changed, not to what is set aside: a silent node kills no job
            scheduler.announce(caps, now_s, is_reacting=before is not None and not budget.is_as(before, now_s))
            self.counts.announced(scheduler)
            return True
        # the budget less what all nodes draw idle, for an engine that counts what jobs draw above that
        idle_w = sum(self.idle_caps_mw.get(name, self.idle_mw) for name in self._groups) / 1000
        steps = (0, *(one.from_s for one in caps[1:])), tuple(one.watts - idle_w for one in caps)
        scheduler.set_cap(PowerCap(*steps) if caps else self.counts.uncapped, now_s)
        return True

    def caps_mw(self, runs: Iterable[Run]) -> dict[str, int]:
        """The caps of nodes with a job. One that is being killed has that of an idle node."""
        return {
            name: self.idle_caps_mw.get(name, self.idle_mw) if one.is_killed else self.counts.busy_mw(one.job, name)
            for one in runs
            for name, part in one.parts.items()
            if not part.is_over
        }

    def wanted_mw(self, runs: Iterable[Run]) -> dict[str, int]:
        """The caps that these nodes have if the budget is enough: where the policy lowers caps, the highest."""
        runs, highest = list(runs), self._highest
        wanted_mw = self.caps_mw(runs)
        if highest is None:
            return wanted_mw
        for one in (run for run in runs if not run.is_killed):
            for name in one.parts.keys() & wanted_mw.keys():
                if (group := self._group_in(highest, name)) is not None:
                    wanted_mw[name] = max(wanted_mw[name], busy_mw(group, component_on(one.job, name)))
        return wanted_mw


def _kind_of(composition: Composition, machine: Machine | None) -> Kind | None:
    """Of the resources whose watts the policy owns; None: it owns none."""
    if composition.choose is not None:
        return "configurations"
    if composition.placing is not None:
        return "nodes"
    return "processors" if machine is not None and composition.power is not None else None


def _median(values: Iterable[int]) -> int:
    """That no more than half of them exceed; 0: there are none."""
    found = sorted(values)
    return found[(len(found) - 1) // 2] if found else 0


class LiveScheduler(NativeScheduler):
    """The engine of a live partition; ``is_paused`` says whether passes have to wait, ``preempt`` ends a job."""

    def __init__(self, is_paused: Callable[[], bool], preempt: Callable[[int], None], *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.is_pass_due = False
        """Whether a pass had to wait."""
        self.passes = 0
        self._is_paused, self._preempt = is_paused, preempt

    def submit(self, now_s: int, job: int) -> bool:
        """It has waited since it joined the queue, which may be before a restart."""
        return super().submit(min(int(self._jobs.jobs.submit_s[job]), now_s), job)

    def decide(self, now_s: int) -> list[int]:
        """One pass, or none for now."""
        self.is_pass_due = self._is_paused()
        self.passes += not self.is_pass_due
        if self.is_pass_due:
            return []
        started = super().decide(now_s)
        for job in self.preempted:
            self._preempt(job)
        return started
