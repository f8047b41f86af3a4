"""What a planner sees, what it may spend, and its plan.

plan   which waiting job starts when, and on which nodes; called at each pass with all that is known

A planner is ``planner(situation, budget) -> plan``. It plans as far ahead as it likes; only the starts that are due now
are tried, in the order of the plan, and admission and placement stay the engine's: what does not fit waits for the next
plan. A planner changes nothing of its input and keeps nothing between calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from cluster_agent.scheduler.job_columns import Float64s, Int64s
from cluster_agent.scheduler.power_cap import PowerCap

if TYPE_CHECKING:
    from cluster_agent.scheduler.policy_phases import Placing, Queue
    from cluster_agent.scheduler.unlike_nodes.components import Components
    from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
    from cluster_agent.scheduler.unlike_nodes.shared_nodes import Shared

STOP_SHARE: Final = 0.8
"""Ours: after this share of its time a planner is to stop, so that its answer is not late."""


class RunningOnNodes(msgspec.Struct, frozen=True):
    """The running jobs as columns, in the order of their starts. A job of several components has a row for each, the
    first with its watts."""

    job: Int64s
    end_s: Int64s  # expected, later than now
    watts: Float64s  # as counted: as admitted, or as metered since
    need: Int64s  # need[position, resource], of one unit
    placed: tuple[Placed, ...]


class Situation(msgspec.Struct, frozen=True):
    """All that is known at a pass. ``queue`` is in the order of the policy's *order*.
    Live, ``need`` and ``free`` have the column ``node_jobs.PLACES`` as well, and nodes that are away have a job."""

    now_s: int
    queue: Queue
    need: Int64s  # of the queue: need[position, resource], of one unit
    running: RunningOnNodes
    free: Int64s  # free[node, resource]
    cap: PowerCap
    placing: Placing
    """How the engine chooses nodes for a start without any."""
    components: Components | None = None
    """Of the queue, by position, where a job has units that differ; a start names their nodes in this order."""
    shared: Shared | None = None
    """Of all jobs, by their numbers, where nodes have two shares."""


class PlanBudget(msgspec.Struct, frozen=True):
    """How much one plan may take: so many iterations, whatever these are to the planner, and seconds (None: no limit).
    A plan limited by iterations alone is the same on every machine."""

    iterations: int = 0
    time_s: float | None = None
    stop_s: float = math.inf
    """When to stop, by ``time.perf_counter``."""

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise ValueError(f"iterations={self.iterations}: give 0 or more")
        if self.time_s is not None and not self.time_s > 0:
            raise ValueError(f"time_s={self.time_s:g}: give seconds above 0")

    def begun(self) -> PlanBudget:
        """The same, with time running from now on."""
        return self if self.time_s is None else replace(self, stop_s=time.perf_counter() + STOP_SHARE * self.time_s)

    def allows(self, done: int) -> bool:
        """Whether there may be another iteration after so many."""
        return done < self.iterations and (self.stop_s == math.inf or time.perf_counter() < self.stop_s)


NO_BUDGET: Final = PlanBudget()


class Start(NamedTuple):
    """A waiting job starts at ``at_s``, now or later; ``placed`` None: on nodes of the engine's choice."""

    job: int
    at_s: int
    placed: Placed | None = None


Plan: TypeAlias = Sequence[Start]
"""In the order in which those are tried that are due together. A job without a start waits for another plan."""

Planner: TypeAlias = Callable[[Situation, PlanBudget], Plan]
