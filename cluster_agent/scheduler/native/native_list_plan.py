"""List schedules of a situation in C (``csrc/resources/list_plan.h``)."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from cluster_agent._native import ffi, lib
from cluster_agent.scheduler.job_columns import Float64s, Int64s
from cluster_agent.scheduler.native.native_tables import c_caps, code, copied, owned, pointer
from cluster_agent.scheduler.plans.plan_phase import Plan, Situation, Start
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.scheduler.unlike_nodes.node_jobs import with_places

NEVER_S: Final = 2**63 - 1


class CListPlan:
    """The schedules of orders of a situation's queue. ``weight``: per position, what a second of the job's wait
    costs."""

    def __init__(self, situation: Situation, weight: Float64s) -> None:
        queue, running = situation.queue, situation.running
        self._situation = situation
        counts = [len(placed.node) for placed in running.placed]
        table = np.empty((sum(counts), 2), np.int32)
        if running.placed:
            table[:, 0] = np.concatenate([placed.node for placed in running.placed])
            table[:, 1] = np.concatenate([placed.count for placed in running.placed])
        columns = {
            "units": ("int64_t", queue.units.astype(np.int64)),
            "need": ("int64_t", with_places(situation.need, 0)),
            "admitted_w": ("double", queue.watts),
        }
        others = {
            "free": ("int64_t", with_places(situation.free, 1)),
            "span_s": ("int64_t", queue.estimate_s),
            "weight": ("double", weight),
            "end_s": ("int64_t", running.end_s),
            "running_w": ("double", running.watts),
            "running_need": ("int64_t", with_places(running.need, 0)),
            "placed_first": ("int64_t", np.cumsum([0, *counts])),
        }
        self._kept = {
            name: pointer(kind, np.ascontiguousarray(column)) for name, (kind, column) in (columns | others).items()
        }
        self._kept["placed"] = ffi.from_buffer("placed_t[]", table)
        model = {name: self._kept[name] for name in columns}
        model |= {"n_nodes": len(situation.free), "placing": code("PLACE", situation.placing)}
        self._c_cap = c_caps(situation.cap)
        model["caps"] = self._c_cap[0][0]
        fields = {name: self._kept[name] for name in (*others, "placed")}
        fields |= {"model": model, "now_s": situation.now_s}
        fields |= {"n_waiting": len(queue.job), "n_running": len(running.job)}
        self._plan = owned(lib.list_plan_new(ffi.new("list_situation_t *", fields)), lib.list_plan_free)

    def cost(self, order: list[int], bound: float = math.inf) -> float:
        """The weighted seconds from now to the starts, if the jobs at these positions are tried in this order;
        infinite if that is not below ``bound``."""
        return float(lib.list_plan_cost(self._plan, ffi.new("int32_t[]", order), bound))

    def plan(self, order: list[int]) -> Plan:
        """The schedule as a plan."""
        self.cost(order)
        job, n = self._situation.queue.job.tolist(), len(order)
        start_s = copied(lib.list_plan_start_s(self._plan), n, np.int64).tolist()
        return [Start(job[one], start_s[one], self._placed(one)) for one in order if start_s[one] < NEVER_S]

    def start_s(self, order: list[int]) -> Int64s:
        """When the job at each position would start."""
        self.cost(order)
        return copied(lib.list_plan_start_s(self._plan), len(order), np.int64)

    def _placed(self, position: int) -> Placed:
        count = ffi.new("int32_t *")
        found = lib.list_plan_placed(self._plan, position, count)
        table = np.frombuffer(ffi.buffer(found, 8 * count[0]), np.int32).reshape(-1, 2).astype(np.int64)
        return Placed(table[:, 0], table[:, 1])
