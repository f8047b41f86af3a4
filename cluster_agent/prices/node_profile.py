"""How many nodes stay on, by a profile made a day ahead (Bridi, PhD thesis, Bologna 2018, ch. 7), or by a timer.

The forecast of a day is a profit plan of the last 24 hours, as in the thesis, which has no forecaster. From that plan
the extraction makes a share of the nodes for each hour. Nodes beyond it go off when they have no job, and boot before
the hour that needs them. The profile refuses no job: one that needs a node more boots it at once.

Nodes are alike here, so that the last one to become idle is the first to get a job. With a timer a node goes off after
so many seconds without a job, and a job that finds no warm node waits for a boot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.cluster import Machine
from cluster_agent.prices.profit_days import DAY_S, Carried, Work

HOUR_S: Final = 3600
HOURS: Final = 24
FULL: Final = 0.84
"""Above this utilisation nothing goes off (thesis, ch. 7)."""


class WithoutJobs(msgspec.Struct, frozen=True):
    """What nodes did without jobs. ``late``: instants at which jobs had to wait for a boot."""

    joules: float
    boots: int
    late: int


def extraction(before: Sequence[float], forecast: Sequence[float], offset: float) -> list[float]:
    """The share of nodes that stay on in each hour of a day, from the utilisation of each hour of the day before, and
    of the forecast. ``offset``: the share of unused nodes that stay on. As printed: if the day before was used above
    84 %, everything stays on; else everything does in each hour that such 24 hours precede."""
    if sum(before) / HOURS > FULL:
        return [1.0] * HOURS
    series = [*before, *forecast]
    used = [sum(series[hour : hour + HOURS]) / HOURS for hour in range(HOURS)]
    return [1.0 if one > FULL else one + (1 - one) * offset for one in used]


def used_by_hour(work: Work, carried: Carried, day: int) -> list[float]:
    """The share of the cores that jobs use in each hour of the day."""
    starts = carried.start_s < np.iinfo(np.int64).max
    edges = day * DAY_S + HOUR_S * np.arange(HOURS + 1)
    gone_s = np.clip(edges[:, None] - carried.start_s[starts], 0, work.jobs.run_s[starts])
    core_s = np.diff(gone_s @ work.jobs.width[starts].astype(np.int64))
    used: list[float] = (core_s / (HOUR_S * work.nodes.has[:, 0].sum())).tolist()
    return used


def busy_nodes(busy: npt.NDArray[np.int64], from_s: int, to_s: int) -> list[tuple[int, int]]:
    """(Second, nodes with a job from then on), from ``from_s`` on, at each change before ``to_s``; of busy spells."""
    times = np.concatenate([busy[:, 1], busy[:, 2]])
    signs = np.concatenate([np.ones(len(busy), np.int64), -np.ones(len(busy), np.int64)])
    at_s, place = np.unique(np.clip(times, from_s, to_s), return_inverse=True)
    counts = np.cumsum(np.bincount(place, signs, len(at_s))).astype(int).tolist()
    found = list(zip(at_s.tolist(), counts, strict=True))
    if not found or found[0][0] > from_s:
        found.insert(0, (from_s, 0))
    return [one for one in found if one[0] < to_s]


def by_profile(used: Sequence[tuple[int, int]], on: Sequence[int], machine: Machine, to_s: int) -> WithoutJobs:
    """``on``: the nodes of each hour from the first second of ``used`` on; at that second they are on."""
    begin_s, node = used[0][0], machine.node
    hours = {begin_s + HOUR_S * hour: count for hour, count in enumerate(on)}
    changes = dict(used)
    joules, boots, late = 0.0, 0, 0
    kept, jobs, was_on, since_s = on[0], 0, max(on[0], used[0][1]), begin_s
    for at_s in [*sorted({*hours, *changes}), to_s]:
        joules += (at_s - since_s) * ((was_on - jobs) * node.idle_w + (machine.nodes - was_on) * node.off_w)
        if at_s == to_s:
            break
        kept, jobs, since_s = hours.get(at_s, kept), changes.get(at_s, jobs), at_s
        now_on = max(kept, jobs)
        boots += max(now_on - was_on, 0)
        late += now_on > was_on and now_on > kept
        was_on = now_on
    return WithoutJobs(joules + boots * (node.boot_j + node.switch_off_j), boots, late)


def by_timer(used: Sequence[tuple[int, int]], off_after_s: float, machine: Machine, to_s: int) -> WithoutJobs:
    """At the first second of ``used`` all nodes are on, and those without a job become idle."""
    node, begin_s = machine.node, used[0][0]
    idle_since = [begin_s] * (machine.nodes - used[0][1])
    joules, boots, late, jobs = 0.0, 0, 0, used[0][1]

    def spent(from_s: int, until_s: int) -> float:
        warm_s = min(until_s - from_s, off_after_s)
        return warm_s * node.idle_w + (until_s - from_s - warm_s) * node.off_w

    for at_s, count in used[1:]:
        is_late = False
        for _ in range(count - jobs):
            from_s = idle_since.pop()
            joules += spent(from_s, at_s)
            is_cold = at_s - from_s > off_after_s
            boots, is_late = boots + is_cold, is_late or is_cold
        idle_since += [at_s] * (jobs - count)
        late, jobs = late + is_late, count
    joules += sum(spent(from_s, to_s) for from_s in idle_since)
    return WithoutJobs(joules + boots * (node.boot_j + node.switch_off_j), boots, late)


def whole_nodes(shares: Sequence[float], nodes: int) -> list[int]:
    """At least so many."""
    return [math.ceil(share * nodes - 1e-9) for share in shares]
