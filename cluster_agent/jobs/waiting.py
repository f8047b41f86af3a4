"""Why a job waits, in words, from what the scheduler sees: the order of the queue, who runs until when, and the nodes.

A job that waits for other jobs, or for the time before which it is not to begin, is not in that queue (``Postponed``).

The scheduler gives no reasons: it starts what it can. So this module says for the head of the queue what is missing and
until when running jobs may occupy it, and for the others which job is before them. With a sharer no job waits for
watts: it starts and gets what there is. Only nodes that are to boot wait for watts (``jobs.power_switching``), and jobs
where the policy owns them. A policy that plans has times for jobs that wait.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.admission import can_run, has_resources
from cluster_agent.jobs.component_nodes import distributed, requested_nodes
from cluster_agent.jobs.job import Job, State
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Run
from cluster_agent.jobs.power_switching import Wanted

BEST_EFFORT: Final = "best-effort: until there are enough nodes that no other job can use now"


class Postponed:
    """Jobs that wait for others to end, for a time, or for what is left of their own earlier run. ``alive``: those that
    wait or run, by number; ``ended_as``: what became of another one, None: it is not known; ``now``: Unix time."""

    def __init__(
        self, alive: Mapping[int, Job], ended_as: Callable[[int], State | None], now: Callable[[], float]
    ) -> None:
        self._alive, self._ended_as, self._now = alive, ended_as, now
        self.jobs: dict[int, Job] = {}
        self.next_s = math.inf
        """When the first of those that wait for a time may begin."""
        self._given_up: dict[int, Job] = {}  # those of them that wait for a node, and some that no longer do
        self.is_due = False
        """A job has ended since."""

    def check(self, job: Job) -> None:
        """``WrongUseError`` for a job that waits for one that never was, or that can no longer be done."""
        what = f"job {job.id}" if job.id else "it"
        for number in (*job.spec.after, *job.spec.after_done):
            if number not in self._alive and self._ended_as(number) is None:
                raise WrongUseError(f"{what} is to wait for job {number}, and there is no such job")
        if failed := self._failed(job):
            raise WrongUseError(f"{what} is to wait until job {failed[0]} is done, and that is {failed[1]}")

    def postpone(self, job: Job) -> bool:
        """Keep it if it has to wait, or, after a restart, to be cancelled; a job that has run before has waited."""
        is_early = self._is_early(job)
        if job.awaits or is_early or (job.attempt == 0 and (self._waits_for(job) or self._failed(job))):
            self.jobs[job.id] = job
            if is_early:
                self.next_s = min(self.next_s, job.spec.begin_s)
            if job.awaits:
                self._given_up[job.id] = job
        return job.id in self.jobs

    def over(self) -> Iterator[tuple[Job, str]]:
        """Those that no longer wait, with the reason why one is to be cancelled; empty: it joins the queue."""
        self.is_due, self.next_s = False, math.inf
        for job in list(self.jobs.values()):
            if job.awaits or (job.attempt == 0 and self._waits_for(job)):
                continue
            failed = self._failed(job) if job.attempt == 0 else None
            if failed is None and self._is_early(job):
                self.next_s = min(self.next_s, job.spec.begin_s)
                continue
            del self.jobs[job.id]
            yield job, f"job {failed[0]} was to be done before, and is {failed[1]}" if failed else ""

    def heard(self, name: str, runs: Collection[int]) -> list[Job]:
        """A node says which jobs it runs, or is known to be off; returns the jobs that no longer wait for it."""
        found = [job for job in self._given_up.values() if name in job.awaits and job.id not in runs]
        for job in found:
            self._release(job, name)
        return found

    def overdue(self, now_s: float) -> list[Job]:
        """The jobs that no longer wait for a node, since that has ended them by itself by now: their walltime is
        over."""
        over = [
            (job, name) for job in self._given_up.values() for name, until_s in job.awaits.items() if until_s <= now_s
        ]  # fmt: skip
        for job, name in over:
            self._release(job, name)
        return [job for job, _ in over]

    @property
    def awaited(self) -> set[str]:
        """The nodes that jobs wait for."""
        return {name for job in self._given_up.values() for name in job.awaits}

    def release(self, job: Job) -> None:
        """It waits for no node any more."""
        for name in list(job.awaits):
            self._release(job, name)

    def _release(self, job: Job, name: str) -> None:
        del job.awaits[name]
        self.is_due = True
        if not job.awaits:
            self._given_up.pop(job.id, None)

    def why(self, job: Job) -> str:
        """What it waits for, in words."""
        if job.awaits:
            return f"until {', '.join(job.awaits)} no longer runs it (`clusterctl requeue {job.id}` if that is certain)"
        waits = self._waits_for(job)
        more = f" and {len(waits) - 1} more" if len(waits) > 1 else ""
        words = [f"after job {waits[0]} ({self._alive[waits[0]].state}){more}"] if waits else []
        words += [f"not before {_clock(job.spec.begin_s, self._now())}"] if self._is_early(job) else []
        return ", and ".join(words) or "about to join the queue"

    def _is_early(self, job: Job) -> bool:
        """Of a job that has not run."""
        return job.attempt == 0 and self._now() < job.spec.begin_s

    def _waits_for(self, job: Job) -> list[int]:
        return [number for number in (*job.spec.after, *job.spec.after_done) if number in self._alive]

    def _failed(self, job: Job) -> tuple[int, str] | None:
        for number in job.spec.after_done:
            if number not in self._alive and (state := self._ended_as(number)) != "done":
                return number, state or "not known any more"
        return None


def boots_nodes(job: Job) -> bool:
    """Whether nodes that are off boot for it."""
    return not job.spec.best_effort


def wanted_by(job: Job, most_nodes: int) -> Wanted:
    """The nodes that may have to boot for it."""
    return Wanted(partial(can_run, job), partial(distributed, job.spec), job.spec.nodes, most_nodes)


def why_waiting(
    order: Sequence[Job],
    jobs: Iterable[Job],
    nodes: Collection[Node],
    runs: Mapping[int, Run],
    now_s: float,
    owns_watts: bool = False,
) -> dict[int, str]:
    """Per number of each queued job. ``order`` is the queue; a job that is not in it is wider than the partition, or
    has just come. ``owns_watts``: whether the policy starts a job only if there are watts for it."""
    why, order = _apart(order)
    idle_of: dict[str, int] = {}  # by what jobs request of a node
    ready = _ready(nodes)
    for place, job in enumerate(order):
        if (requested := job.spec.requested) not in idle_of:
            idle_of[requested] = sum(has_resources(job, node) for node in ready)
        idle = _at_once(job, idle_of[requested], ready)
        if place == 0:
            having = [node for node in nodes if has_resources(job, node)]
            why[job.id] = _of_head(job, idle, having, runs, now_s)
            if owns_watts and job.spec.nodes <= idle:
                why[job.id] = f"first in the queue: {_needs(job, idle)}; it waits for watts"
        else:
            kept = ", kept for those before it" if job.spec.nodes <= idle else ""
            why[job.id] = (
                f"number {place + 1} in the queue, behind job {order[place - 1].id}: {_needs(job, idle)}{kept}"
            )
    for job in jobs:
        if job.state == "queued" and job.id not in why and (lacks := _lacks(job, nodes)):
            why[job.id] = lacks
    return why


def _apart(order: Sequence[Job]) -> tuple[dict[int, str], list[Job]]:
    """Why best-effort jobs wait, and the others."""
    why = {job.id: BEST_EFFORT for job in order if job.spec.best_effort}
    return why, [job for job in order if job.id not in why]


def add_plan(
    why: dict[int, str], order: Sequence[Job], planned_s: Mapping[int, int], trouble: str, now_s: float
) -> None:
    """Of a policy that plans: ``planned_s`` has when jobs are to start, by their number; ``trouble`` is why there is no
    plan."""
    for number, at_s in planned_s.items():
        why[number] = f"planned to start by {_clock(at_s, now_s)}"
    if trouble and order:
        why[order[0].id] += f" (decided by the list schedule; planner: {trouble})"


def _at_once(job: Job, idle: int, ready: Sequence[Node]) -> int:
    """Of the nodes that some component of the job could have, as many as count: too few if not all fit at once."""
    return min(idle, job.spec.nodes - 1) if job.spec.components and not distributed(job.spec, ready) else idle


def _ready(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.may_start]


def _lacks(job: Job, nodes: Collection[Node]) -> str:
    """Why the partition has too few nodes for it; empty: it has enough."""
    able, requested = sum(has_resources(job, node) for node in nodes), job.spec.requested
    what = f"nodes with {requested}" if requested else "nodes"
    return f"needs {job.spec.nodes} {what}, and the partition has {able}" if job.spec.nodes > able else ""


def _of_head(job: Job, idle: int, nodes: Collection[Node], runs: Mapping[int, Run], now_s: float) -> str:
    if job.spec.nodes <= idle:
        return "first in the queue: about to start"
    words = f"first in the queue: {_needs(job, idle)}"
    if job.spec.components:
        return f"{words}; its components start together"
    missing = job.spec.nodes - idle
    for end_s, free, what in _coming(nodes, runs, now_s):
        missing -= free
        if missing <= 0:
            return f"{words}; enough by {_clock(end_s, now_s)} at the latest, when {what}"
    away = ", ".join(f"{number} {state}" for state, number in sorted(_away(nodes).items()))
    return f"{words}; {missing} of the missing nodes cannot get a job ({away})"


def _needs(job: Job, idle: int) -> str:
    number, requested = job.spec.nodes, job.spec.requested
    if job.spec.components:
        return f"needs {requested_nodes(job.spec)}, and {idle} of these {number} {'is' if idle == 1 else 'are'} idle"
    what = f"node{'s' if number > 1 else ''}{f' with {requested}' if requested else ''}"
    return f"needs {number} {what}, and {idle} {'is' if idle == 1 else 'are'} idle"


def _coming(nodes: Collection[Node], runs: Mapping[int, Run], now_s: float) -> list[tuple[float, int, str]]:
    """When nodes become free, where that is known: (Unix seconds, how many, how), in order of time."""
    occupied = Counter(row for node in nodes if node.is_up and not node.gets_none for row in node.runs)
    found = [
        (
            now_s if one.job.spec.best_effort else max(float(one.expected_end_s), now_s),
            occupied[row],
            f"job {one.job.id} is to have ended",
        )
        for row, one in runs.items()
        if occupied[row]
    ]
    booting = [node for node in nodes if node.away_until_s is not None and node.switched is not None]
    for node in booting:
        assert node.away_until_s is not None and node.switched is not None
        how = f"{node.name} is to have booted" + (" (it waits for watts)" if node.switched.is_wanted else "")
        found.append((max(float(node.away_until_s), now_s), 1, how))
    return sorted(found)


def _away(nodes: Collection[Node]) -> Counter[str]:
    """How many nodes cannot get a job, by their state, other than those that come back by themselves."""
    return Counter(
        node.state if not node.gets_none or not node.is_up else "draining"
        for node in nodes
        if not node.is_up or node.gets_none or (node.switched is not None and node.away_until_s is None)
    )


def _clock(unix_s: float, now_s: float) -> str:
    then, now = datetime.fromtimestamp(unix_s), datetime.fromtimestamp(now_s)
    return then.strftime("%H:%M:%S" if then.date() == now.date() else "%Y-%m-%d %H:%M")
