"""The phase *plan* on unlike nodes: what a planner sees of the native scheduler, and how its starts get there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from cluster_agent._native import ffi, lib
from cluster_agent.cluster import UW
from cluster_agent.scheduler.job_columns import NEVER_S, Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.native_tables import placed, pointer
from cluster_agent.scheduler.plans.live_planning import LivePlanning
from cluster_agent.scheduler.plans.plan_phase import NO_BUDGET, RunningOnNodes, Situation
from cluster_agent.scheduler.plans.planning import Deciding, Outcome, Planning, Repeating
from cluster_agent.scheduler.policy_phases import Composition, Queue
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.scheduler.unlike_nodes.node_jobs import PLACES, Nodes, with_places
from cluster_agent.scheduler.unlike_nodes.shared_nodes import Shared


class PlannedStarts:
    """Before each pass: the order of the queue, which jobs are deferred, and the nodes chosen for the others. The table
    of jobs may be one that grows: of a row nothing is read before its job waits."""

    def __init__(
        self,
        deciding: Deciding,
        composition: Composition,
        jobs: Jobs,
        nodes: Nodes,
        cap: PowerCap,
        counted_uw: Int64s,
        shared: Shared | None = None,
    ) -> None:
        self.deciding = deciding
        self.wake_s = NEVER_S
        """When there has to be another pass, if no event comes before."""
        self.cap = cap
        """Live, another one may come."""
        self.later_s: Mapping[int, int] = {}
        """The starts of the last plan that are not due yet, by job."""
        self._composition, self._jobs = composition, jobs
        self._has = with_places(nodes.has, 1) if jobs.need.shape[1] > PLACES else nodes.has
        self._counted_uw, self._shared = counted_uw, shared
        self._scheduler: Any = None
        self._placed: dict[int, Placed] = {}  # of running jobs
        self._tried: list[Int64s] = []  # in each pass whose outcome is kept
        self._is_deferred = np.zeros(len(jobs), np.uint8)
        self._count = np.zeros(len(jobs), np.int32)
        self._first = np.zeros(len(jobs), np.int64)
        self._chosen = ffi.NULL  # of one pass
        self.columns = {
            "is_deferred": pointer("uint8_t", self._is_deferred),
            "planned_count": pointer("int32_t", self._count),
            "planned_first": pointer("int64_t", self._first),
        }
        """Those of ``node_model_t`` that it fills in."""

    def join(self, scheduler: Any) -> None:
        """The native scheduler whose running jobs are planned with."""
        self._scheduler = scheduler

    def forget(self, waiting: Int32s) -> None:
        """Nobody is deferred. If no plan follows, since the policy's rule raises, the queue is tried as it is."""
        self._is_deferred[waiting] = self._count[waiting] = 0
        self.wake_s, self.later_s = NEVER_S, {}

    def tried(self, queue: Queue, order: Int64s, now_s: int) -> Int64s:
        """Plan; returns positions in ``order``, which is that of the rule."""
        if not len(order):
            return order
        in_order = queue.at(order)
        found = self.deciding.decide(self._situation(in_order, now_s))
        self._tried.append(found.job[: found.due])
        del self._tried[: -len(self.deciding.outcomes)]
        self._is_deferred[found.job] = np.arange(len(found.job)) >= found.due
        self._choose(found.placed)
        self.wake_s, self.later_s = found.wake_s, found.later_s
        at = np.empty(len(self._jobs), np.int64)
        at[in_order.job] = np.arange(len(in_order.job))
        positions: Int64s = at[found.job]
        return positions

    def outcomes(self, start_s: Int64s) -> list[Outcome]:
        """What came of each pass, once it is known when each job started."""
        return [
            msgspec.structs.replace(
                outcome,
                started=tuple(
                    (job, placed(self._scheduler, job)) for job in tried.tolist() if start_s[job] == outcome.now_s
                ),
            )
            for outcome, tried in zip(self.deciding.outcomes, self._tried, strict=True)
        ]

    def _choose(self, placed_on: Mapping[int, Placed]) -> None:
        tables = [np.column_stack((chosen.node, chosen.count)).astype(np.int32) for chosen in placed_on.values()]
        self._chosen = pointer("placed_t", np.concatenate([np.empty((0, 2), np.int32), *tables]))
        lib.scheduler_set_chosen(self._scheduler, self._chosen)
        first = 0
        for job, table in zip(placed_on, tables, strict=True):
            self._first[job], self._count[job] = first, len(table)
            first += len(table)

    def _rows(self, job: int) -> Iterator[_Row]:
        for at, (need, own) in enumerate(self._jobs.apart(job, self._placed[job])):
            yield _Row(job, need, own, is_first=at == 0)

    def _situation(self, queue: Queue, now_s: int) -> Situation:
        count = ffi.new("int32_t *")
        found = lib.scheduler_in_order(self._scheduler, count)
        running = list(found[0 : count[0]])
        self._placed = {job: self._placed.get(job) or placed(self._scheduler, job) for job in running}
        rows, free = [row for job in running for row in self._rows(job)], self._has.copy()
        for one in rows:
            free[one.placed.node] -= one.placed.count[:, None] * one.need
        job = np.array([one.job for one in rows], np.int64)
        end_s = [max(int(lib.scheduler_expected_end(self._scheduler, one.job)), now_s + 1) for one in rows]
        components = self._jobs.components
        return Situation(
            now_s=now_s,
            queue=queue,
            need=self._jobs.need[queue.job],
            components=None if components is None else components.only(queue.job.astype(np.int64)),
            running=RunningOnNodes(
                job=job,
                end_s=np.array(end_s, np.int64),
                watts=np.array([one.is_first for one in rows], np.bool_) * self._counted_uw[job] / UW,
                need=np.array([one.need for one in rows], np.int64).reshape(len(rows), free.shape[1]),
                placed=tuple(one.placed for one in rows),
            ),
            free=free,
            cap=self.cap,
            placing=self._composition.placing or "first",
            shared=self._shared,
        )


class _Row(NamedTuple):
    """A component of a running job."""

    job: int
    need: Int64s
    placed: Placed
    is_first: bool


def planned_starts(
    composition: Composition,
    jobs: Jobs,
    nodes: Nodes,
    cap: PowerCap,
    counted_uw: Int64s,
    recorded: Sequence[Outcome] | None,
    say: Callable[[str], None] | None,
    shared: Shared | None = None,
) -> PlannedStarts | None:
    """None: the policy has no planner. ``say``: live, see ``LivePlanning``."""
    if composition.plan is None:
        return None
    deciding: Deciding
    if recorded is not None:
        deciding = Repeating(recorded)
    elif say is not None:
        deciding = LivePlanning(composition.plan, composition.plan_budget or NO_BUDGET, say)
    else:
        deciding = Planning(composition.plan, composition.plan_budget or NO_BUDGET)
    return PlannedStarts(deciding, composition, jobs, nodes, cap, counted_uw, shared)
