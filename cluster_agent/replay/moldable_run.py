"""A replay of jobs that can run in several ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from cluster_agent.replay.closed_loop import ClosedLoop, answering
from cluster_agent.replay.log_run import run_to_end
from cluster_agent.replay.measures import bounded_slowdown, measure_waits, running_w
from cluster_agent.replay.simulated import SimulatedMachine
from cluster_agent.scheduler.configurations.table import Configuration, MoldableJobs
from cluster_agent.scheduler.job_columns import Float64s, Int64s
from cluster_agent.scheduler.native.moment import Moment
from cluster_agent.scheduler.native.native_moldable import CMoldable
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap, constant
from cluster_agent.workloads.job_log import Workload


@dataclass(frozen=True, slots=True)
class MoldableResult:
    """The results. Jobs in ``impossible`` fit in none of their configurations, and were not submitted."""

    jobs: MoldableJobs  # as submitted: in a closed loop at other times
    start_s: Int64s  # -1: impossible
    end_s: Int64s
    chosen: tuple[Configuration | None, ...]  # with true times and watts
    impossible: tuple[int, ...]
    cap: PowerCap
    order: Int64s | None = None
    """In a closed loop: the index of each among the jobs as they were given."""
    moments: Mapping[int, Moment] = field(default_factory=dict)
    """Those that were requested, by time."""
    from_s: int | None = None
    """When it starts, if not with its first job."""

    def since(self, from_s: int) -> tuple[MoldableResult, list[int]]:
        """Without the jobs that had ended before; and which are left."""
        kept = np.flatnonzero((self.end_s < 0) | (self.end_s >= from_s)).tolist()
        if not kept:
            raise WrongUseError(f"--state of {from_s} s: all jobs had ended before: give a log of later ones")
        chosen = tuple(self.chosen[job] for job in kept)
        left = self.jobs.only(kept), self.start_s[kept], self.end_s[kept], chosen
        return MoldableResult(*left, (), self.cap, None, self.moments, from_s), kept

    @property
    def turnaround_s(self) -> Int64s:
        """From submission to end, of the jobs that ran."""
        ran = self.end_s >= 0
        return self.end_s[ran] - self.jobs.jobs.submit_s[ran]

    def peak_w(self) -> float:
        """The highest watts at any instant, by the table."""
        return float(power_of(self)[1].max(initial=0.0))


def power_of(result: MoldableResult) -> tuple[Int64s, Float64s, Float64s]:
    """Times, and from each to the next the watts of running jobs, and the cap."""
    ran = np.flatnonzero(result.start_s >= 0)
    start_s, end_s = np.maximum(result.start_s[ran], result.from_s or 0), result.end_s[ran]
    watts = np.array([one.watts for one in result.chosen if one is not None], np.float64)
    change_s = result.cap.changes(int(start_s.min(initial=0)), int(end_s.max(initial=0)))
    time_s = np.unique(np.concatenate([start_s, end_s, np.array(change_s, np.int64)]))
    cap_w = result.cap.at_times(time_s)
    return time_s, running_w(time_s, start_s, end_s, watts).round(ROUNDED_TO), cap_w


def measure_moldable(result: MoldableResult, nodes: int) -> dict[str, Any]:
    """The content of ``metrics.json``, of the jobs that ran. Watts are those of jobs; idle nodes are not counted."""
    ran = np.flatnonzero(result.start_s >= 0)
    jobs, start_s, end_s = result.jobs.jobs, result.start_s[ran], result.end_s[ran]
    chosen = [one for one in result.chosen if one is not None]
    submit_s, wanted = jobs.submit_s[ran], jobs.width[ran]
    given = np.array([one.nodes for one in chosen], np.int64)
    run_s, wait_s = end_s - start_s, start_s - submit_s
    first_s = int(submit_s.min()) if result.from_s is None else result.from_s
    span_s = max(int(end_s.max()) - first_s, 1)
    time_s, watts, cap_w = power_of(result)
    lasts_s = np.diff(time_s)
    energy_j = float((watts[:-1] * lasts_s).sum())
    return {
        "jobs": len(jobs),
        "ended": len(ran),
        "unstarted": len(jobs) - len(ran),
        **measure_waits(wait_s, run_s, bounded_slowdown(wait_s, run_s)),
        "makespan_s": span_s,
        "utilisation": float((given * (end_s - np.maximum(start_s, first_s))).sum() / (nodes * span_s)),
        "nodes_over_asked": float(given.mean() / wanted.mean()),
        "throughput_jobs_per_h": len(ran) * 3600 / span_s,
        "energy_j": energy_j,
        "mean_w": energy_j / span_s,
        "peak_w": float(watts.max()),
        "over_cap_ws": float((np.clip((watts - cap_w)[:-1], 0, None) * lasts_s).sum()),
        "overtook": int((start_s < np.maximum.accumulate(start_s)).sum()),
    }


ROUNDED_TO: Final = 6
"""Decimal places of watts: sums in another order differ by less than this."""


def impossible(composition: Composition, jobs: MoldableJobs, nodes: int, cap: PowerCap) -> list[int]:
    """The jobs that the policy would not start even on an empty cluster under the last cap."""
    ways = CMoldable(composition, jobs, nodes, constant(cap.watts[-1]))
    return np.flatnonzero(NativeReplay(composition, ways.jobs(jobs.jobs), nodes, moldable=ways).impossible()).tolist()


def replay_moldable(
    composition: Composition,
    jobs: MoldableJobs,
    nodes: int,
    cap: PowerCap,
    advance: Callable[[int], None] = lambda ended: None,
) -> MoldableResult:
    """Replay the jobs on so many nodes under a cap. ``advance`` is called with the number of ended jobs."""
    never = impossible(composition, jobs, nodes, cap)
    rows = np.setdiff1d(np.arange(len(jobs)), never)
    found = replay_possible(composition, jobs.only(rows.tolist()), nodes, cap, advance)
    if not never:
        return found
    start_s, end_s = np.full(len(jobs), -1, np.int64), np.full(len(jobs), -1, np.int64)
    start_s[rows], end_s[rows] = found.start_s, found.end_s
    chosen: list[Configuration | None] = [None] * len(jobs)
    for row, one in zip(rows.tolist(), found.chosen, strict=True):
        chosen[row] = one
    return MoldableResult(jobs, start_s, end_s, tuple(chosen), tuple(never), cap)


def replay_possible(
    composition: Composition,
    jobs: MoldableJobs,
    nodes: int,
    cap: PowerCap,
    advance: Callable[[int], None] = lambda ended: None,
    loop: tuple[Workload, ClosedLoop] | None = None,
    at_s: Sequence[int] = (),
) -> MoldableResult:
    """As ``replay_moldable``, if no job is impossible. ``loop``: submissions follow from the schedule. ``at_s``: of
    these times the result has the moments."""
    order = None
    if loop is None:
        ways = CMoldable(composition, jobs, nodes, cap)
        schedule = NativeReplay(composition, ways.jobs(jobs.jobs), nodes, moldable=ways)
    else:
        submitted, _, answers = answering(loop[0], None, None, loop[1])
        ways = CMoldable(composition, jobs, nodes, cap, answers.table)
        order = answers.table(np.arange(len(jobs)))
        schedule = NativeReplay(composition, ways.jobs(submitted.jobs), nodes, answering=answers, moldable=ways)
    moments = run_to_end(schedule, advance, at_s)
    if order is not None:
        jobs = replace(jobs.only(order.tolist()), jobs=submitted.jobs)
    chosen = tuple(ways.chosen())
    return MoldableResult(jobs, schedule.start_s, schedule.end_s, chosen, (), cap, order, moments)


def stepped(
    composition: Composition, jobs: MoldableJobs, nodes: int, cap: PowerCap
) -> tuple[NativeScheduler, SimulatedMachine]:
    """For the loop in Python. Widths and run times become known as jobs start."""
    ways = CMoldable(composition, jobs, nodes, cap)
    given = ways.jobs(jobs.jobs)
    return NativeScheduler(composition, given, nodes, moldable=ways), SimulatedMachine(given, "instant")
