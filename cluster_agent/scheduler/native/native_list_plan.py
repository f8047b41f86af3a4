"""Schedules of a situation's orders in C (``csrc/resources/list_plan.h`` and ``serial_plan.h``)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.scheduler.job_columns import NEVER_S, Float64s, Int64s
from cluster_agent.scheduler.native.native_tables import c_caps, checked, code, copied, owned, pointer
from cluster_agent.scheduler.plans.plan_phase import Plan, Situation, Start
from cluster_agent.scheduler.power_cap import drawn_uw
from cluster_agent.scheduler.rules import promised_s
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.scheduler.unlike_nodes.node_jobs import with_places

if TYPE_CHECKING:
    from cluster_agent.scheduler.policy_phases import Queue


class CListPlan:
    """The schedules of orders of a situation's queue. ``weight``: per position, what a second of the job's wait
    costs. ``late``: with what each costs more that starts after the wait that its queue promises. ``release_s``: no job
    starts before it; the column is read at each schedule, and may change between them. ``until_s``: no job starts then
    or later. ``is_strict``: in a list, no job overtakes another that is released. ``end_weight``: what each second
    costs until the last job ends."""

    DECODER: ClassVar = "list"

    def __init__(
        self,
        situation: Situation,
        weight: Float64s,
        late: Float64s | None = None,
        release_s: Int64s | None = None,
        until_s: int | None = None,
        is_strict: bool = False,
        end_weight: float = 0.0,
    ) -> None:
        queue, running = situation.queue, situation.running
        self._situation = situation
        counts = [len(placed.node) for placed in running.placed]
        table = np.empty((sum(counts), 2), np.int32)
        if running.placed:
            table[:, 0] = np.concatenate([placed.node for placed in running.placed])
            table[:, 1] = np.concatenate([placed.count for placed in running.placed])
        columns = {**_requests(situation), "admitted_uw": ("int64_t", _uw(queue.watts))}
        others = {
            "free": ("int64_t", with_places(situation.free, 1)),
            "span_s": ("int64_t", queue.estimate_s),
            "weight": ("double", weight),
            **_of_late(queue, late),
            **({} if release_s is None else {"release_s": ("int64_t", release_s)}),
            "end_s": ("int64_t", running.end_s),
            "running_uw": ("int64_t", _uw(running.watts)),
            "running_need": ("int64_t", with_places(running.need, 0)),
            "placed_first": ("int64_t", np.cumsum([0, *counts])),
        }
        self._kept = {
            name: pointer(kind, np.ascontiguousarray(column)) for name, (kind, column) in (columns | others).items()
        }
        self._kept["placed"] = ffi.from_buffer("placed_t[]", table)
        model = {name: self._kept[name] for name in columns}
        model |= {"n_nodes": len(situation.free), "placing": code("PLACE", situation.placing)}
        if situation.components is not None:
            model["most_components"] = situation.components.most
        self._c_cap = c_caps(situation.cap)
        model["caps"] = self._c_cap[0][0]
        fields = {name: self._kept[name] for name in (*others, "placed")}
        fields |= {"model": model, "now_s": situation.now_s}
        fields |= {"n_waiting": len(queue.job), "n_running": len(running.job)}
        fields |= {"until_s": until_s or 0, "is_strict": is_strict, "end_weight": end_weight}
        new, free, self._start_s, self._placed_on = (
            getattr(lib, f"{self.DECODER}_plan_{name}") for name in ("new", "free", "start_s", "placed")
        )
        self._plan = owned(new(ffi.new("list_situation_t *", fields)), free)

    def cost(self, order: list[int], bound: float = math.inf) -> float:
        """The weighted seconds from now to the starts, if the jobs at these positions are tried in this order;
        infinite if that is not below ``bound``."""
        return float(lib.list_plan_cost(self._plan, ffi.new("int32_t[]", order), bound))

    def plan(self, order: list[int]) -> Plan:
        """The schedule as a plan."""
        self.cost(order)
        job, n = self._situation.queue.job.tolist(), len(order)
        start_s = copied(self._start_s(self._plan), n, np.int64).tolist()
        return [Start(job[one], start_s[one], self.placed(one)) for one in order if start_s[one] < NEVER_S]

    def start_s(self, order: list[int]) -> Int64s:
        """When the job at each position would start."""
        self.cost(order)
        return copied(self._start_s(self._plan), len(order), np.int64)

    def placed(self, position: int) -> Placed:
        """Where the job at this position is in the last schedule."""
        count = ffi.new("int32_t *")
        found = self._placed_on(self._plan, position, count)
        table = np.frombuffer(ffi.buffer(found, 8 * count[0]), np.int32).reshape(-1, 2).astype(np.int64)
        return Placed(table[:, 0], table[:, 1])


class CSerialPlan(CListPlan):
    """The schedules in which each job has a reservation. A schedule may be of the front of an order alone."""

    DECODER = "serial"

    def cost(self, order: list[int], bound: float = math.inf) -> float:
        """As above, of these positions, if each gets its earliest start in this order."""
        found = float(lib.serial_plan_cost(self._plan, ffi.new("int32_t[]", order), len(order), bound))
        checked(-1 if found < 0 else 0)
        return found


def _requests(situation: Situation) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """What the waiting jobs take of nodes, as columns of ``node_model_t``."""
    components = situation.components
    if components is None:
        units = situation.queue.units.astype(np.int64)
        return {"units": ("int64_t", units), "need": ("int64_t", with_places(situation.need, 0))}
    return {
        "units": ("int64_t", components.units),
        "need": ("int64_t", with_places(components.need, 0)),
        "component": ("int32_t", components.first),
        "n_components": ("int32_t", components.count),
    }


def _of_late(queue: Queue, late: Float64s | None) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    if late is None:
        return {}
    due_s = queue.submit_s + promised_s(queue).astype(np.int64)
    return {"due_s": ("int64_t", due_s), "late": ("double", late)}


def _uw(watts: Float64s) -> Int64s:
    return np.array([drawn_uw(one) for one in watts.tolist()], np.int64)
