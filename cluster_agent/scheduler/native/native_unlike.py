"""Unlike nodes, and watts under a cap that changes, as C takes them (``csrc/resources/node_model.h``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.scheduler.idle_off import switch_s
from cluster_agent.scheduler.job_columns import Float64s, Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.native_tables import c_caps, checked, code, pointer
from cluster_agent.scheduler.policy_phases import Composition, Placing, Queue
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap, drawn_uw, whole_uw
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.queue import served
from cluster_agent.scheduler.rules import est
from cluster_agent.scheduler.unlike_nodes.components import Components
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed, PowerSource, allowed_w
from cluster_agent.scheduler.unlike_nodes.node_jobs import CORES, GPUS, MEMORY, MICS, Nodes, with_places

if TYPE_CHECKING:
    from cluster_agent.scheduler.native.planned_starts import PlannedStarts
    from cluster_agent.scheduler.plans.planning import Outcome
    from cluster_agent.scheduler.unlike_nodes.shared_nodes import Shared


class CUnlike:
    """``node_model_t``, with the columns that it points to, and the watts of jobs, which may be predicted.

    ``phases``: the policy in the terms of processors. A job that runs longer than requested, on a machine that allows
    it, is expected to take twice as long.
    """

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        nodes: Nodes,
        cap: PowerCap,
        power: PowerSource | None = None,
        recorded: Sequence[Outcome] | None = None,
        table: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda column: column,
        say: Callable[[str], None] | None = None,
        on: Mapping[int, Placed] | None = None,
        shared: Shared | None = None,
    ) -> None:
        """``recorded``: the outcomes that a plan had, to be repeated without its planner. ``table``: turns another
        column of the jobs into one that is filled in as they come; ``jobs`` has been (``Jobs.each``). ``say``: of
        a live partition, whose table of jobs grows and whose service logs who plans. ``on``: the nodes of the jobs
        that a warm start has started; not with a plan. ``shared``: two jobs may be on
        one node. A policy that knows no watts keeps no cap."""
        cap = cap if composition.power is not None else UNCAPPED
        self._rule = composition.order or est
        order = self._rule if composition.plan is None else self._planned
        self.phases = Composition(
            correct="doubling",
            order=order,
            order_at=composition.order_at if composition.plan is None else "passes",
            backfill=composition.backfill,
        )
        self.jobs = jobs
        self.processors = int(nodes.has[:, CORES].sum())
        self.cap = cap
        self.admitted_w = table(jobs.watts.copy())
        self._admitted_uw = table(np.array([drawn_uw(watts) for watts in jobs.watts.tolist()], np.int64))
        self._counted_uw = self._admitted_uw.copy()  # of the running jobs: as admitted, or as metered since
        self._admitting = composition.power or Power()
        self._power = power
        self._total = table(jobs.total())
        self._unmetered: list[int] = []
        self._known: list[int] = []  # that waited after the last pass whose events ``follow`` has seen
        self._ended = self._submitted = 0
        self.c_cap = c_caps(cap)
        columns = {
            "has": with_places(nodes.has, 1),
            **_requests(jobs, table),
            "admitted_uw": self._admitted_uw,
            "counted_uw": self._counted_uw,
        }
        self._columns = {
            name: pointer("int64_t", np.ascontiguousarray(column)) for name, column in columns.items()
        } | _idle_off(composition, nodes)
        self.was_moved = np.zeros(len(jobs), np.uint8)
        """Which jobs waited, or were placed on other nodes, since they may be on some groups of nodes alone."""
        self._columns |= _groups(jobs, nodes, table, self.was_moved)
        placing = code("PLACE", composition.placing or "first")
        self.planned: PlannedStarts | None = None
        if composition.plan is not None:
            # only here: a short replay is as long as its imports
            from cluster_agent.scheduler.native.planned_starts import planned_starts

            self.planned = planned_starts(composition, jobs, nodes, cap, self._counted_uw, recorded, say, shared)
        if self.planned is not None:
            self._columns |= self.planned.columns
        elif on is not None:
            self._columns |= _chosen(on, len(jobs))
        self.are_shared = shared is not None and shared.speed is not None
        """Whether jobs change the speed of others on their nodes."""
        if shared is not None:
            self._columns |= shared.columns()
        given = {"n_nodes": len(nodes), "placing": placing, "caps": self.c_cap[0][0]}
        self._columns |= _lists(jobs.components)
        self.c = ffi.new("node_model_t *", given | self._columns)

    @property
    def switches(self) -> dict[str, int]:
        """How many jobs waited, or are on other nodes, since their clusters are modelled; empty: none has one."""
        return {"clusters": int(self.was_moved.sum())} if "within" in self._columns else {}

    def known(self, job: Int32s) -> dict[str, Float64s]:
        """The columns of the queue that nodes have."""
        cores_and_others, promise_s = self._total[job].astype(np.float64), self.jobs.max_wait_s[job]
        return {
            "units": self.jobs.units[job].astype(np.float64),
            "gpus": cores_and_others[:, GPUS],
            "mics": cores_and_others[:, MICS],
            "memory_kib": cores_and_others[:, MEMORY],
            "watts": self.admitted_w[job],
            "promise_s": np.where(promise_s > 0, promise_s, np.nan),
        }

    def _planned(self, queue: Queue, now_s: int) -> Int64s:
        assert self.planned is not None
        self.planned.forget(queue.job)
        order = served(self._rule, queue, now_s)
        return order[self.planned.tried(queue, order, now_s)]

    def add(self, job: int, requests: Sequence[tuple[int, Sequence[int]]], watts: float) -> None:
        """Fill in a row of a table that grows: (units, need of one) of each component."""
        assert self.jobs.components is not None
        self.jobs.components.fill(job, requests)
        units, total = sum(one for one, _ in requests), sum(one * np.array(need) for one, need in requests)
        self.jobs.units[job], self.jobs.need[job] = units, -(-total // max(units, 1))
        self.admitted_w[job], self._admitted_uw[job] = watts, drawn_uw(watts)
        self._total[job] = total

    # --- watts that are predicted

    def submitted(self, job: int) -> None:
        """Predict the job's watts."""
        if self._power is not None:
            predicted_w = self._power.predict(job) * self._admitting.margin
            # at most what the cap allows, or the job would wait for ever; its true power is known to be possible
            most_w = allowed_w(self.jobs, job, self.cap)
            self.admitted_w[job] = min(predicted_w, most_w)
            self._admitted_uw[job] = min(drawn_uw(predicted_w), whole_uw(most_w))

    def ended(self, job: int, waiting: Sequence[int]) -> None:
        """Learn the job's watts, and predict again those of waiting jobs of the same user and request."""
        jobs = self.jobs
        if self._power is None or not jobs.knows_watts[job]:
            return
        self._power.learn(job, float(jobs.watts[job]))
        found = np.array(waiting, np.int64)
        is_like = (jobs.user[found] == jobs.user[job]) & (jobs.units[found] == jobs.units[job])
        is_like &= (jobs.need[found] == jobs.need[job]).all(axis=1)
        for one in found[is_like].tolist():
            self.submitted(one)

    def started(self, jobs: Sequence[int]) -> None:
        """Their watts can be metered from the next pass on."""
        if self._admitting.is_metered:
            self._unmetered += jobs

    def meter(self) -> None:
        """Before a pass: the watts of jobs that were started in the last one."""
        for job in self._unmetered:
            watts = self._power.metered(job) if self._power is not None else None
            self._counted_uw[job] = self._counted_uw[job] if watts is None else drawn_uw(watts)
        self._unmetered.clear()

    def follow(self, ended: Int32s, submitted: int, waiting: Int32s) -> None:
        """Follow all that has happened up to a pass: the jobs that have ended, in this order, how many are submitted,
        and who waits."""
        if self._power is None:
            return
        waits = set(waiting.tolist())
        self.started([job for job in self._known if job not in waits])
        still = [job for job in self._known if job in waits]
        for job in ended[self._ended :].tolist():
            self.ended(job, still)
        for job in range(self._submitted, submitted):
            self.submitted(job)
        self.meter()
        self._ended, self._submitted, self._known = len(ended), submitted, sorted(waits)


def _requests(jobs: Jobs, table: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """What components take of nodes; those of a job that has equal units are one."""
    of = jobs if jobs.components is None else jobs.components
    return {"units": of.units, "need": table(with_places(of.need, 0))}


def _groups(
    jobs: Jobs,
    nodes: Nodes,
    table: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    was_moved: npt.NDArray[np.uint8],
) -> dict[str, Any]:
    """The groups of nodes, and those that each component may be on, if they are not all."""
    within = (jobs.components or jobs).within
    if not within.any():
        return {}
    groups = {"group": nodes.group_bit, "within": table(np.ascontiguousarray(within))}
    found = {name: pointer("uint64_t", column) for name, column in groups.items()}
    return {**found, "was_moved": pointer("uint8_t", was_moved)}


def _lists(components: Components | None) -> dict[str, Any]:
    """Which components are a job's."""
    if components is None:
        return {}
    columns = {"component": components.first, "n_components": components.count}
    lists = {name: pointer("int32_t", np.ascontiguousarray(column, np.int32)) for name, column in columns.items()}
    return {**lists, "most_components": components.most}


def alone(jobs: Jobs, nodes: Nodes, placing: Placing) -> bool:
    """Whether the engine finds nodes for the first of these jobs if nobody else runs."""
    unlike = CUnlike(Composition(placing=placing), jobs, nodes, UNCAPPED)
    fits: int = lib.scheduler_has_nodes_for(unlike.c, 0)
    checked(fits)
    return fits > 0


def _chosen(on: Mapping[int, Placed], jobs: int) -> dict[str, Any]:
    """The columns of ``node_model_t`` for nodes that are chosen."""
    count, first = np.zeros(jobs, np.int32), np.zeros(jobs, np.int64)
    chosen: list[tuple[int, int]] = []
    for job, placed in on.items():
        count[job], first[job] = len(placed.node), len(chosen)
        chosen += zip(placed.node.tolist(), placed.count.tolist(), strict=True)
    return {
        "is_deferred": pointer("uint8_t", np.zeros(jobs, np.uint8)),
        "planned_count": pointer("int32_t", count),
        "planned_first": pointer("int64_t", first),
        "planned": ffi.new("placed_t[]", chosen),
    }


def _idle_off(composition: Composition, nodes: Nodes) -> dict[str, Any]:
    """The columns for nodes that go off; nothing costs anything where the machine does not say."""
    if composition.idle_off_s is None:
        return {}
    spans_s = np.array([switch_s(one) for one in nodes.group] or np.zeros((len(nodes), 2)), np.int64)
    boot_uw = [drawn_uw(one.boot_j / max(switch_s(one)[1], 1)) for one in nodes.group] or np.zeros(len(nodes))
    columns = {"switch_off_s": spans_s[:, 0], "boot_s": spans_s[:, 1], "boot_uw": np.array(boot_uw, np.int64)}
    pointers = {name: pointer("int64_t", np.ascontiguousarray(column)) for name, column in columns.items()}
    return {"idle_off_s": composition.idle_off_s} | pointers
