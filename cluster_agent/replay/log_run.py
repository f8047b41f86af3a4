"""A replay: one workload under one policy, from start to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from cluster_agent.cap_steps import Cap
from cluster_agent.scheduler.job_columns import Bools, Int64s
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.moment import Moment
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.recorded import Recorded
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.swf import TraceError

if TYPE_CHECKING:
    from cluster_agent.replay.closed_loop import ClosedLoop
    from cluster_agent.scheduler.native.answering import Answering

NEVER_S: Final = 2**63 - 1

SLICES: Final = 200
"""Ours: how often a replay reports its progress. The cost is not measurable."""


class Result(msgspec.Struct, frozen=True):
    """The results of a replay. Every job has ended, except those in ``unstarted``. ``from_s``: when it starts, if not
    with its first job. ``moments``: those that were requested, by time."""

    workload: Workload
    schedule: NativeReplay
    from_s: int | None = None
    moments: Mapping[int, Moment] = {}

    @property
    def run_s(self) -> Int64s:
        """How long each job ran here: longer than in the log at a lower frequency, shorter if it was killed at last."""
        jobs, schedule = self.workload.jobs, self.schedule
        return (
            np.where(schedule.end_s < 0, jobs.run_s, schedule.end_s - schedule.start_s)
            if schedule.watts
            else jobs.run_s
        )

    @property
    def is_killed(self) -> Bools:
        """Which jobs were killed and not requeued."""
        schedule = self.schedule
        if schedule.requeues:
            return np.zeros(len(self.workload.jobs), np.bool_)
        return schedule.kills > 0

    @property
    def unstarted(self) -> int:
        """Jobs that never started; 0 if every job fits the machine."""
        return len(self.workload.jobs) - self.schedule.ended

    def since(self, from_s: int) -> Result:
        """Of a warm start: without the jobs that had ended before, which were no longer the policy's."""
        is_over = (self.schedule.end_s >= 0) & (self.schedule.end_s < from_s)
        workload, kept = self.workload, ~is_over
        if is_over.all():
            raise TraceError(f"{workload.log.path}: all its jobs had ended before: give a log of later ones")
        self.schedule.since(self.moments[from_s], is_over)
        left = replace(workload, jobs=self.schedule.jobs, row=workload.row[kept], is_cut=workload.is_cut[kept])
        return Result(left, self.schedule, from_s)


def replay(
    workload: Workload,
    composition: Composition,
    advance: Callable[[int], None] = lambda ended: None,
    watts: Watts | None = None,
    caps: Sequence[Cap] = (),
    loop: ClosedLoop | None = None,
    recorded: Recorded | None = None,
    at_s: Sequence[int] = (),
) -> Result:
    """Replay the workload, with ``watts`` on a machine that has them, with other submissions in a closed loop, or
    (``recorded``) from a state. ``at_s``: of these times the result has the moments.

    ``advance`` is called from time to time with the number of jobs that have ended.
    """
    if watts is not None and composition.power is not None:
        from cluster_agent.workloads.job_watts import of_jobs  # only here: a short replay is as long as its imports

        watts = of_jobs(watts, workload, composition.power)
    users = workload.users if composition.priority else None
    answers: Answering | None = None
    if loop is not None:
        from cluster_agent.replay.closed_loop import answering  # only here: a short replay is as long as its imports

        workload, watts, answers = answering(workload, watts, composition.power, loop)
    schedule = NativeReplay(
        composition, workload.jobs, workload.processors, watts, caps, users, answers, recorded=recorded
    )
    moments = run_to_end(schedule, advance, at_s)
    if len(never := workload.row[schedule.submitted :]):
        from cluster_agent.replay.closed_loop import never_came

        workload = replace(workload, findings=(*workload.findings, never_came(workload.log.lines[never])))
    return Result(workload, schedule, moments=moments)


def run_to_end(schedule: NativeReplay, advance: Callable[[int], None], at_s: Sequence[int] = ()) -> dict[int, Moment]:
    """Run until no event is left; ``advance`` is called from time to time with the number of jobs that have ended.
    Returns the moments ``at_s``."""
    step = max(len(schedule.jobs) // SLICES, 1)
    moments = {}
    for pause_s in [*sorted({*at_s}), NEVER_S]:
        schedule.pause_at(pause_s)
        goal = schedule.ended + step
        while schedule.run(goal) and schedule.ended >= goal:
            advance(schedule.ended)
            goal = schedule.ended + step
        if pause_s < NEVER_S:
            moments[pause_s] = schedule.moment(pause_s)
    advance(schedule.ended)
    return moments
