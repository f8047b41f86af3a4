"""Profiles of the nodes to keep on, made a day ahead from what a log's past had at the same hour of the week.

``spares``      ours: in each hour so many nodes are kept without a job as were taken within the time of a boot, in the
                ``quantile`` of such times in the same hour of the week, over the last weeks
``extracted``   as in Bridi's thesis (Bologna 2018, ch. 7): a profit plan of the jobs that are expected, and of it the
                share of nodes that stay on (``node_profile.extraction``). He has no forecaster, and takes the last 24
                hours. Here the jobs of each hour come again as in that past week whose jobs of this hour had the
                ``quantile`` of core-seconds

Both know only what had happened by midnight. ``kept_profile`` says what counts when there is no profile in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.cluster import Machine
from cluster_agent.prices.node_profile import FULL, HOURS, extraction, used_by_hour, whole_nodes
from cluster_agent.prices.profit_days import DAY_S, Carried, planned, work_of
from cluster_agent.prices.profit_model import HOUR_S, Site
from cluster_agent.scheduler.job_columns import Int64s, Jobs

WEEK_S: Final = 7 * DAY_S

SAMPLE_S: Final = 30
"""Ours: how often the nodes in use are looked at."""


class Past(msgspec.Struct, frozen=True):
    """Jobs of a log, when they started, and what the forecast looks at: so many ``weeks``, and a ``quantile``."""

    jobs: Jobs
    start_s: Int64s
    machine: Machine
    weeks: int = 8
    quantile: float = 0.9

    @property
    def nodes(self) -> Int64s:
        """Whole nodes of each job."""
        nodes: Int64s = -(-self.jobs.width.astype(np.int64) // self.machine.node.cores)
        return nodes

    def hours_before(self, hour_s: int) -> list[int]:
        """The same hour of the week in the last weeks, as far as the log has begun; else that of the day before, as in
        the thesis."""
        first_s = int(self.jobs.submit_s[0]) if len(self.jobs) else hour_s
        same = [hour_s - WEEK_S * week for week in range(1, self.weeks + 1)]
        return [at_s for at_s in same if at_s >= first_s - first_s % HOUR_S] or [hour_s - DAY_S]


# --- nodes without a job


def spares(past: Past, from_s: int, days: int) -> list[tuple[int, int]]:
    """(Second, nodes without a job) from midnight ``from_s`` on, by the hour; none before the log has begun."""
    risen, zero_s = _risen(past, from_s + days * DAY_S)
    per_hour = HOUR_S // SAMPLE_S
    found: list[tuple[int, int]] = []
    for hour_s in range(from_s, from_s + days * DAY_S, HOUR_S):
        midnight_s = hour_s - (hour_s - from_s) % DAY_S
        same = [same_s for same_s in past.hours_before(hour_s) if zero_s <= same_s <= midnight_s - HOUR_S]
        at = [(same_s - zero_s) // SAMPLE_S for same_s in same]
        seen = [risen[first : first + per_hour] for first in at]
        nodes = math.ceil(np.quantile(np.concatenate(seen), past.quantile)) if seen else 0
        if not found or found[-1][1] != nodes:
            found.append((hour_s, nodes))
    return found


def _risen(past: Past, to_s: int) -> tuple[Int64s, int]:
    """Each ``SAMPLE_S`` from a full hour on: how many more nodes are in use at some time of a boot than at its begin;
    and that hour."""
    start_s, nodes = past.start_s, past.nodes
    zero_s = int(past.jobs.submit_s[0]) // HOUR_S * HOUR_S if len(past.jobs) else to_s
    times = np.concatenate([start_s, start_s + past.jobs.run_s])
    order = np.argsort(times, kind="stable")
    used = np.concatenate([[0], np.cumsum(np.concatenate([nodes, -nodes])[order])])
    within = math.ceil(past.machine.node.boot_s / SAMPLE_S) + 1
    samples_s = zero_s + SAMPLE_S * np.arange(max(to_s - zero_s, 0) // SAMPLE_S + within)
    used = used[np.searchsorted(times[order], samples_s, "right")]
    most = np.lib.stride_tricks.sliding_window_view(used, within).max(axis=1)
    risen: Int64s = most - used[: len(most)]
    return risen, zero_s


# --- nodes in all


def expected(past: Past, midnight_s: int) -> tuple[Int64s, Int64s] | None:
    """Which jobs of the past come again on the day, and how many seconds after its midnight; of each hour those of one
    past week, or of the day before; None: there are none."""
    submit_s, run_s = past.jobs.submit_s, past.jobs.run_s
    core_s = past.jobs.width.astype(np.int64) * run_s
    rows: list[Int64s] = []
    later: list[Int64s] = []
    for hour in range(HOURS):
        hour_s = midnight_s + hour * HOUR_S
        same = past.hours_before(hour_s)
        found = [np.arange(*np.searchsorted(submit_s, [at_s, at_s + HOUR_S])) for at_s in same]
        wanted = [int(core_s[of].sum()) for of in found]
        chosen = int(np.argsort(wanted, kind="stable")[round((len(wanted) - 1) * past.quantile)])
        rows.append(found[chosen])
        later.append(submit_s[found[chosen]] - same[chosen] + hour * HOUR_S)
    jobs = np.concatenate(rows)
    return (jobs, np.concatenate(later)) if len(jobs) else None


def extracted(past: Past, site: Site, midnight_s: int, offset: float) -> list[int] | None:
    """The nodes that stay on in each hour of the day; None: nothing is known of it."""
    if (coming := expected(past, midnight_s)) is None:
        return None
    jobs, start_s, nodes = past.jobs, past.start_s, past.machine.nodes
    before = used_by_hour(work_of(jobs, past.machine), Carried(start_s, {}), midnight_s // DAY_S - 1)
    if sum(before) / HOURS > FULL:  # nothing goes off, whatever is expected
        return whole_nodes(extraction(before, before, offset), nodes)
    left = np.flatnonzero((jobs.submit_s < midnight_s) & (start_s + jobs.run_s > midnight_s))  # that run, or wait
    rest_s = np.minimum(start_s[left] + jobs.run_s[left] - midnight_s, jobs.run_s[left])
    rows, submit_s = np.concatenate([left, coming[0]]), np.concatenate([np.zeros(len(left), np.int64), coming[1]])
    run_s = np.concatenate([rest_s, jobs.run_s[coming[0]]])
    order = np.argsort(submit_s, kind="stable")
    trace = work_of(replace(jobs.only(rows[order]), submit_s=submit_s[order], run_s=run_s[order]), past.machine)
    plan = planned(trace, site, 1, "multi", "true", 0).carried
    return whole_nodes(extraction(before, used_by_hour(trace, plan, 0), offset), nodes)


# --- what counts when there is none


def kept_profile(
    make: Callable[[], Sequence[int] | None],
    last: Sequence[int] | None,
    nodes: int,
    most_s: float,
    clock: Callable[[], float],
) -> tuple[list[int], str]:
    """The nodes of each hour, and why they are not new (empty: they are). Without a forecast, or if the plan takes
    longer than ``most_s`` seconds of the ``clock``, those of the day before count, and without these all ``nodes``."""
    begun_s = clock()
    made = make()
    took_s = clock() - begun_s
    if made is not None and took_s <= most_s:
        return list(made), ""
    reason = "no forecast" if made is None else f"the plan took {took_s:.1f} s"
    if last is not None:
        return list(last), f"{reason}: the profile of the day before counts"
    return [nodes] * HOURS, f"{reason}: all nodes stay on"
