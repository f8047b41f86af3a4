"""Who owns the watts of a live partition, and what its scheduler knows of nodes and jobs because of that.

``Owner`` is what all have in common, and the owner where a sharer divides the watts: its policy starts jobs on nodes
and knows of no budget. Policies that own watts have one of the modules next to this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any, NamedTuple

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.cluster import UW
from cluster_agent.jobs.job import Job
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Run
from cluster_agent.scheduler.energy_window import Stored
from cluster_agent.scheduler.interfaces import Meter, unmetered
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.orders.priority import with_strangers
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.queue import patient

Has = tuple[int, int, int, int]
"""What a node has, or a job requests of each of its nodes: cores, GPUs, MICs, KiB of memory."""


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """What the nodes together may draw, as the keeper of the budget says: ``steps`` are (when, watts), the first one in
    force, of the partition's clock. ``aside_w`` of that is not the policy's: reserves, and what nodes may draw beyond
    what is planned for them."""

    steps: tuple[tuple[float, float], ...]
    aside_w: float = 0.0

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


class Table(NamedTuple):
    """A new table of jobs, and what its scheduler has to know: the nodes, the users of the table by number, whether
    passes have to wait, and where alarms go."""

    jobs: Jobs
    names: Sequence[str]
    users: Sequence[int]
    is_paused: Callable[[], bool]
    say: Callable[[str], None]


class Engine(NamedTuple):
    """What a ``NativeScheduler`` is made of."""

    phases: Composition
    jobs: Jobs
    processors: int
    resources: dict[str, Any]


class Owner:
    """See above. ``phases``: of the policy, as far as they are those of processors; ``full_w``: what a busy node draws,
    if that is known; ``meter``: what all nodes have drawn."""

    owns_watts = False
    requeues = True
    """Whether a job that was killed for a cap waits again."""
    counts_every_node = False
    """Whether the engine counts watts for each of its processors, so that no more rows may have nodes than there are
    nodes."""

    def __init__(
        self, phases: Composition | None = None, full_w: float | None = None, meter: Meter = unmetered
    ) -> None:
        self.phases = phases or Composition()
        self.full_w = full_w
        self._meter = meter
        self._budget: NodeBudget | None = None
        self._announced: NodeBudget | None = None  # the one that the scheduler knows

    # --- for the engine

    def begin(self, table: Table) -> LiveScheduler:
        """A scheduler over a new table of jobs."""
        self._announced = None
        phases, jobs, processors, resources = self._engine(table)
        if phases.order:
            phases = replace(phases, order=patient(phases.order, table.say))
        if phases.priority:
            phases = replace(phases, priority=with_strangers(phases.priority))
        given = {"users": table.users, "full_w": self.full_w, "meter": self._meter, **resources}
        return LiveScheduler(table.is_paused, phases, jobs, processors, **given)

    def _engine(self, table: Table) -> Engine:
        return Engine(self.phases, table.jobs, max(len(table.names), 1), {})

    def has(self, name: str) -> Has | None:
        """What the node has; None: all nodes are taken as alike."""
        return None

    def fits(self, job: Job, nodes: Collection[Node]) -> bool:
        """Whether the partition has nodes for it, which another machine file may have taken away."""
        return job.spec.nodes <= len(nodes)

    def add(self, row: int, job: Job) -> None:
        """The job has this row of the table."""

    def adopted(self, row: int, job: Job, now_s: int) -> dict[str, Any]:
        """What the scheduler has to know more of a job that runs already."""
        return {}

    def occupy(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """The same of a row that takes these nodes, and draws no more than idle ones."""
        return {}

    def most_nodes(self, job: Job) -> int:
        """How many nodes a job may get at most."""
        return job.spec.nodes

    def width(self, row: int, job: Job) -> int:
        """How many a job that starts gets."""
        return job.spec.nodes

    def nodes_for(self, scheduler: NativeScheduler, row: int, free: Sequence[Node], width: int) -> Sequence[Node]:
        """The nodes of a job that starts; too few if too few of those that it could have are free."""
        return free[:width]

    def started(self, row: int, job: Job) -> None:
        """The job in this row has started."""

    def ended(self, job: Job) -> None:
        """It has ended; predictions may learn from it."""

    @property
    def planned_s(self) -> Mapping[int, int]:
        """When rows that wait are to start, if the policy has a planner and it decided the last pass."""
        return {}

    @property
    def planner_trouble(self) -> str:
        """Why the list schedule decided the last pass, and not the planner; empty: it did, or there is none."""
        return ""

    # --- for the keeper of the budget

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
        self._announced = budget
        self._put_in_force(scheduler, budget, before, now_s)
        return True

    @staticmethod
    def _cap_above(idle_w: float, budget: NodeBudget, now_s: int, otherwise: PowerCap) -> PowerCap:
        """The budget less what all nodes draw idle."""
        caps = budget.caps(now_s)
        if not caps:
            return otherwise
        return PowerCap((0, *(cap.from_s for cap in caps[1:])), tuple(cap.watts - idle_w for cap in caps))

    def _put_in_force(
        self, scheduler: NativeScheduler, budget: NodeBudget, before: NodeBudget | None, now_s: int
    ) -> None:
        raise NotImplementedError

    @property
    def idle_mw(self) -> int:
        """The cap of a node without a job."""
        return 0

    def idle_caps_mw(self) -> dict[str, int]:
        """Of the nodes without a job, those whose caps are not ``idle_mw``."""
        return {}

    def busy_mw(self, job: Job, name: str) -> int:
        """The cap of a node with this job."""
        return 0

    def caps_mw(self, runs: Iterable[Run]) -> dict[str, int]:
        """The caps of nodes with a job. One that is being killed has that of an idle node."""
        idle_mw = self.idle_caps_mw()
        return {
            name: idle_mw.get(name, self.idle_mw) if one.is_killed else self.busy_mw(one.job, name)
            for one in runs
            for name, part in one.parts.items()
            if not part.is_over
        }


class LiveScheduler(NativeScheduler):
    """The engine of a live partition; ``is_paused`` says whether passes have to wait."""

    def __init__(self, is_paused: Callable[[], bool], *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.is_pass_due = False
        """Whether a pass had to wait."""
        self._is_paused = is_paused

    def submit(self, now_s: int, job: int) -> bool:
        """It has waited since it joined the queue, which may be before a restart."""
        return super().submit(min(int(self._jobs.jobs.submit_s[job]), now_s), job)

    def decide(self, now_s: int) -> list[int]:
        """One pass, or none for now."""
        self.is_pass_due = self._is_paused()
        return [] if self.is_pass_due else super().decide(now_s)
