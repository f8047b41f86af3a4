"""A replay: one workload under one policy, from start to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cluster_agent.replay.workload import Workload
from cluster_agent.scheduler.native import NativeReplay
from cluster_agent.scheduler.phases import Composition

SLICES: Final = 200
"""Ours: how often a replay reports how far it is. It costs nothing measurable."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a replay. Every job has ended unless ``unstarted`` says otherwise."""

    workload: Workload
    schedule: NativeReplay

    @property
    def unstarted(self) -> int:
        """Jobs that never started; none, as long as every job fits the machine."""
        return len(self.workload.jobs) - self.schedule.ended


def replay(workload: Workload, composition: Composition, advance: Callable[[int], None] = lambda ended: None) -> Result:
    """Replay the workload; ``advance`` is told from time to time how many jobs have ended."""
    jobs = workload.jobs
    schedule = NativeReplay(composition, jobs, workload.processors)
    step = max(len(jobs) // SLICES, 1)
    while schedule.run(schedule.ended + step):
        advance(schedule.ended)
    advance(schedule.ended)
    return Result(workload, schedule)
