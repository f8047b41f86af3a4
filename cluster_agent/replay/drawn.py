"""What was drawn over time: watts of running jobs, and what nodes without a job drew where nodes differ.

On nodes and with configurations watts are the power of jobs, and of nodes that boot for them; idle nodes are not
counted, as in the published comparisons. What they draw is measured apart.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

import msgspec
import numpy as np

from cluster_agent.cluster import NodeGroup
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.idle_off import switch_s
from cluster_agent.scheduler.job_columns import Float64s, Int64s

NEVER_S: Final = float("inf")

ROUNDING_W: Final = 1e-6
"""Ours: sums of watts in another order differ by less."""

ROUNDED_TO: Final = 6
"""The same in decimal places."""


class PowerOverTime(msgspec.Struct, frozen=True):
    """Watts and the cap as steps: ``watts[i]`` and ``cap_w[i]`` (infinite: none) are those from ``time_s[i]`` to
    ``time_s[i + 1]``."""

    time_s: Int64s
    watts: Float64s
    cap_w: Float64s

    @property
    def over_j(self) -> float:
        """Watt-seconds above the cap."""
        over_w = np.maximum(self.watts - self.cap_w, 0.0)
        over_w[over_w < ROUNDING_W] = 0.0
        return float((over_w[:-1] * np.diff(self.time_s)).sum())


def power_over_time(result: Result) -> PowerOverTime:
    """The cluster's power, as the engine metered it; on nodes and with configurations that of the running jobs, and of
    nodes that boot for them."""
    kind, from_s = result.world.kind, result.from_s or 0
    if kind == "processors":
        return PowerOverTime(*result.schedule.power)
    has_started = result.start_s >= 0
    booted = empty_nodes(result).boots if kind == "nodes" and result.idle_off_s is not None else []
    boots = np.array(booted, np.float64).reshape(-1, 3)
    start_s = np.concatenate([result.start_s[has_started], boots[:, 0].astype(np.int64)])
    start_s = np.maximum(start_s, from_s)
    end_s = np.concatenate([(result.start_s + result.run_s)[has_started], boots[:, 1].astype(np.int64)])
    watts = np.concatenate([job_w(result)[has_started], boots[:, 2]])
    last_s = int(end_s.max(initial=0))
    if kind == "nodes":
        change_s = [from_s, *(time_s for time_s in result.world.caps.time_s if from_s < time_s <= last_s)]
    else:
        change_s = [*result.world.caps.changes(0, last_s)]
    time_s = np.unique(np.concatenate([start_s, end_s, np.array(change_s, np.int64)]))
    running = running_w(time_s, start_s, end_s, watts)
    cap_w = result.world.caps.at_times(time_s)
    return PowerOverTime(time_s, running if kind == "nodes" else running.round(ROUNDED_TO), cap_w)


def job_w(result: Result) -> Float64s:
    """Watts of each job while it runs, as the trace or its configuration has them."""
    if result.world.kind == "nodes":
        return result.jobs.watts
    return np.array([np.nan if one is None else one.watts for one in result.chosen], np.float64)


def running_w(times_s: Int64s, start_s: Int64s, end_s: Int64s, watts: Float64s) -> Float64s:
    """Watts of all jobs that run from each of ``times_s`` to the next: all starts and ends are among these, sorted."""
    begun = np.bincount(np.searchsorted(times_s, start_s), watts, len(times_s))
    ended = np.bincount(np.searchsorted(times_s, end_s), watts, len(times_s))
    running: Float64s = np.cumsum(begun - ended)
    return running


class EmptyNodes(msgspec.Struct):
    """What nodes without a job drew from ``begin_s`` to the last end. ``boots``: (from, to, watts)."""

    begin_s: int
    idle_j: float = 0.0
    off_j: float = 0.0
    switching_j: float = 0.0
    boots: list[tuple[int, int, float]] = []

    def add(self, group: NodeGroup, from_s: int, to_s: int, goes_s: float, taken_s: float) -> None:
        """A node of this group runs no job from ``from_s`` to ``to_s``; it goes off at ``goes_s``, if no job has taken
        it by then."""
        if min(taken_s, to_s) <= goes_s:
            self.idle_j += group.idle_w * self._lasts_s(from_s, to_s)
            return
        switch_off_s, boot_s = switch_s(group)
        off_s = goes_s + switch_off_s
        on_s = max(off_s, taken_s) + boot_s
        self.idle_j += group.idle_w * self._lasts_s(from_s, goes_s)
        self.switching_j += group.switch_off_j * self._lasts_s(goes_s, min(off_s, to_s)) / max(switch_off_s, 1)
        self.off_j += group.off_w * self._lasts_s(off_s, min(on_s - boot_s, to_s))
        if taken_s < NEVER_S:
            boot_w = group.boot_j / max(boot_s, 1)
            self.switching_j += boot_w * self._lasts_s(on_s - boot_s, on_s)
            self.idle_j += group.idle_w * self._lasts_s(on_s, to_s)
            if on_s > self.begin_s:
                self.boots.append((max(int(on_s) - boot_s, self.begin_s), int(on_s), boot_w))

    def _lasts_s(self, from_s: float, to_s: float) -> float:
        return max(to_s - max(from_s, self.begin_s), 0)


def empty_nodes(result: Result, from_s: int = 0) -> EmptyNodes:
    """Of a machine whose file says what its nodes draw; else nothing."""
    if result.empty is not None:
        return result.empty
    assert result.world.nodes is not None
    found, groups, start_s = EmptyNodes(from_s), result.world.nodes.group, result.start_s
    started, end_s, decided_s = np.flatnonzero(start_s >= 0), start_s + result.run_s, result.schedule.decided_s
    last_s = int(end_s[started].max(initial=0))
    runs: list[list[tuple[int, int, float]]] = [[] for _ in groups]
    for job in started.tolist() if groups else ():
        for node in result.schedule.placed(job).node.tolist():
            runs[node].append((int(start_s[job]), int(end_s[job]), float(decided_s[job])))
    for group, on_node in zip(groups, runs, strict=True):
        on_node = [*sorted(on_node), (last_s, last_s, NEVER_S)]
        taken = accumulate((taken_s for *_, taken_s in reversed(on_node)), min)  # by this job or a later one
        empty_s = 0
        for (begins_s, ends_s, _), taken_s in zip(on_node, reversed(list(taken)), strict=True):
            if begins_s > empty_s:
                goes_s = NEVER_S if result.idle_off_s is None else empty_s + result.idle_off_s
                found.add(group, empty_s, begins_s, goes_s, taken_s)
            empty_s = max(empty_s, ends_s)
    return found
