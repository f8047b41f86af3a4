"""What became of the jobs of some hours of a log, and its measures: the same of a real Slurm and of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

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
        highest clock; ``energy_j``: by the machine file's watts."""
        waiting, node = self.waiting, self.machine.node
        waits_s = [self.wait_s(job, ran) for job in waiting]
        energy_j, work_s = node.idle_w * self.machine.nodes * (self.to_s - self.from_s), 0.0
        for job, one in ran.items():
            node_s = int(self.jobs.width[job]) * self.lasts_s(one)
            work_s += node_s / self.slowdown[one.level]
            energy_j += node_s * (node.busy_w[one.level] - node.idle_w)
        energy_j -= self._off_node_s(ran) * (node.idle_w - node.off_w)
        return {
            "jobs": len(waiting),
            "started": sum(job in ran and (ran[job].start_s or 0.0) < self.to_s for job in waiting),
            "mean_wait_s": sum(waits_s) / max(len(waits_s), 1),
            "work_node_h": work_s / HOUR_S,
            "energy_j": energy_j,
        }

    def _off_node_s(self, ran: Mapping[int, Ran]) -> float:
        """Seconds of nodes that are off: as many as planned, as far as no job has them."""
        total_s = 0.0
        for off in self.offs:
            from_s, to_s = max(off.from_s, self.from_s), min(off.to_s, self.to_s)
            changes = [(float(from_s), 0), (float(to_s), 0)]
            for job, one in ran.items():
                end_s = self.to_s if one.end_s is None else one.end_s
                if one.start_s is not None and one.start_s < to_s and end_s > from_s:
                    width = int(self.jobs.width[job])
                    changes += [(max(one.start_s, from_s), width), (min(end_s, to_s), -width)]
            busy, changes = 0, sorted(changes)
            for (at_s, width), (next_s, _) in pairwise(changes):
                busy += width
                total_s += min(off.nodes, self.machine.nodes - busy) * max(next_s - at_s, 0)
        return total_s
