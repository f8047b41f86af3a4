"""What became of the jobs of some hours of a log, and its measures: the same of a real Slurm and of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.power_phases import Off

HOUR_S: Final = 3600


@dataclass(slots=True)
class Ran:
    """A job that was started. In the log's time, None: not yet. ``decided_s``: when it was released; ``seen_s``: when
    the scheduler knew of its end; ``level``: its clock, 0 the highest."""

    decided_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    seen_s: float | None = None
    level: int = 0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """Some hours of a log. The first ``came`` jobs are there before they begin; of those ``ended`` have ended by then,
    and ``left_s`` has what is left of those that run. ``offs``: nodes that are off by plan."""

    jobs: Jobs
    machine: Machine
    from_s: int
    to_s: int
    came: int
    ended: frozenset[int]
    left_s: dict[int, int]
    offs: Sequence[Off] = ()
    caps: Sequence[Cap] = ()

    @property
    def slowdown(self) -> Sequence[float]:
        """Run times at the machine's clocks over those at the highest."""
        return self.machine.slowdowns()

    def lasts_s(self, one: Ran) -> float:
        """How long it ran within these hours."""
        if one.start_s is None:
            return 0.0
        end_s = self.to_s if one.end_s is None else min(one.end_s, self.to_s)
        return max(end_s - max(one.start_s, self.from_s), 0.0)

    def wait_s(self, job: int, ran: Mapping[int, Ran]) -> float:
        """How long it waited within these hours."""
        start_s = ran[job].start_s if job in ran else None
        until_s = self.to_s if start_s is None else min(start_s, self.to_s)
        return max(until_s - max(int(self.jobs.submit_s[job]), self.from_s), 0.0)

    @property
    def waiting(self) -> list[int]:
        """The jobs that wait when they begin, or come in them."""
        last = int(self.jobs.submit_s.searchsorted(self.to_s))
        return [job for job in range(last) if job not in self.ended and job not in self.left_s]

    def measures(self, ran: Mapping[int, Ran]) -> dict[str, float]:
        """Of these hours alone. ``mean_wait_s``: of the jobs that do not run when they begin; ``work_node_h``: at the
        highest clock; ``energy_j`` and ``over_cap_ws`` (above the cap): by the machine file's watts."""
        waiting, steps = self.waiting, self._steps(ran)
        waits_s = [self.wait_s(job, ran) for job in waiting]
        work_s = (int(self.jobs.width[job]) * self.lasts_s(one) / self.slowdown[one.level] for job, one in ran.items())
        return {
            "jobs": len(waiting),
            "started": sum(job in ran and (ran[job].start_s or 0.0) < self.to_s for job in waiting),
            "mean_wait_s": sum(waits_s) / max(len(waits_s), 1),
            "work_node_h": sum(work_s) / HOUR_S,
            "energy_j": sum(watts * lasts_s for _, lasts_s, watts in steps),
            "over_cap_ws": sum(max(watts - self.cap_w(at_s), 0.0) * lasts_s for at_s, lasts_s, watts in steps),
        }

    def cap_w(self, at_s: float) -> float:
        """The cap at this time; infinite: none."""
        return min((cap.watts for cap in self.caps if cap.from_s <= at_s < cap.to_s), default=inf)

    def _steps(self, ran: Mapping[int, Ran]) -> list[tuple[float, float, float]]:
        """(from, how long, watts of all nodes) between changes. As many nodes are off as planned, as far as no job has
        them."""
        node, changes = self.machine.node, list[tuple[float, int, float]]()
        for job, one in ran.items():
            if (lasts_s := self.lasts_s(one)) and one.start_s is not None:
                width, began_s = int(self.jobs.width[job]), max(one.start_s, self.from_s)
                above_w = width * (node.busy_w[one.level] - node.idle_w)
                changes += [(began_s, width, above_w), (began_s + lasts_s, -width, -above_w)]
        edges = [self.from_s, self.to_s]
        for window in (*((off.from_s, off.to_s) for off in self.offs), *((cap.from_s, cap.to_s) for cap in self.caps)):
            edges += window
        changes += [(float(min(max(edge, self.from_s), self.to_s)), 0, 0.0) for edge in edges]
        changes.sort()
        steps, busy, above_w = list[tuple[float, float, float]](), 0, 0.0
        for (at_s, width, watts), (next_s, *_) in pairwise(changes):
            busy, above_w = busy + width, above_w + watts
            planned = max((off.nodes for off in self.offs if off.from_s <= at_s < off.to_s), default=0)
            off = min(planned, self.machine.nodes - busy)
            steps.append(
                (at_s, next_s - at_s, self.machine.nodes * node.idle_w + above_w - off * (node.idle_w - node.off_w))
            )
        return steps
