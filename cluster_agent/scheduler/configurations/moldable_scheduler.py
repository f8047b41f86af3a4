"""A scheduler of jobs that can run in several ways, on nodes and under a bound of watts.

It is the same engine (``interfaces.Scheduler``) with one phase more: *choose* says at every pass in which configuration
a waiting job should run, and the job starts if that one can start now. The head of the queue, when it cannot, gets a
reservation of nodes *and* watts at the earliest time at which both suffice; jobs behind it may start if they end
before, or leave it its nodes and its watts (EASY, Lifka 1995, in two dimensions: RMAP's text has nodes only).

The choices of the policies that ship are native too (``csrc/moldable.c``): replays use those, and tests check that both
are equal. A policy with its own choice is run by this module, job by job. Watts are added up as whole microwatts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Literal, NamedTuple, TypeAlias

from cluster_agent.cluster import UW
from cluster_agent.scheduler.configurations.table import Configuration, MoldableJobs
from cluster_agent.scheduler.interfaces import OneFrequency


@dataclass(frozen=True, slots=True)
class ChoiceInput:
    """What *choose* gets of one waiting job and of the cluster."""

    now_s: int
    rows: Sequence[Configuration]
    nodes: int  # that the job requests
    request_s: int
    cluster_nodes: int
    cluster_w: float
    free_nodes: int
    free_w: float
    earliest_s: Callable[[Configuration], int | None]
    """When a row could start if no other job waited; None: never."""


Choose: TypeAlias = Callable[[ChoiceInput], Configuration | None]
"""The configuration in which the job is to run, now or when there is room; None: no configuration."""


class Rule(NamedTuple):
    """A choice that is native, with the parameters of its policy."""

    name: Literal["traditional", "naive", "adaptive", "stock", "cores-endtime", "energy"]
    th: float = 0.0
    near: float = 0.0
    priority: float = 1.0
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class MoldableComposition:
    """A policy for jobs with configurations, ready to run."""

    choose: Choose
    rule: Rule | None = None
    """The same, native; None: there is only ``choose``."""

    @property
    def owns_watts(self) -> bool:
        """Always: a configuration is nodes and watts (``owner``)."""
        return True


class MoldableScheduler(OneFrequency):
    """See ``interfaces.Scheduler``. ``chosen``: the configuration in which each job was started."""

    def __init__(self, composition: MoldableComposition, jobs: MoldableJobs, nodes: int, watts: float) -> None:
        self.jobs = jobs
        self.nodes = nodes
        self.watts = watts
        self.uw = whole_uw(watts)
        self.queue: list[int] = []
        self.running: dict[int, int] = {}  # job: when it will have ended
        self.chosen: dict[int, Configuration] = {}
        self._choose = composition.choose
        self._least_nodes, self._least_uw = jobs.least()
        self._known: list[tuple[int, int, int]] | None = None  # the result of ``_free``, while it is valid

    def submit(self, now_s: int, job: int) -> bool:
        """The job joins the queue."""
        self.queue.append(job)
        return True

    def end(self, job: int) -> None:
        """Its nodes and watts are free."""
        del self.running[job]
        self._known = None

    def overrun(self, job: int) -> int:
        """The table's times are taken as true; a job that runs longer is expected to end at any moment."""
        self.running[job] += 1
        self._known = None
        return self.running[job]

    def expected_end_s(self, job: int) -> int:
        """When a running job is expected to end."""
        return self.running[job]

    def decide(self, now_s: int) -> list[int]:
        """Start heads while they can start; then jobs that leave the head its reservation."""
        started: list[int] = []
        while self.queue and (row := self.starts_now(now_s, self.queue[0])):
            started.append(self._start(now_s, self.queue[0], row))
        if not self.queue:
            return started
        head, *others = self.queue
        row = self._choose(self._choice_input(now_s, head))
        at_s = None if row is None else self._earliest_s(now_s, row)
        if row is None or at_s is None:
            return started  # it can never run; that is found out before the replay begins
        return started + self._backfill(now_s, others, row, at_s)

    def _backfill(self, now_s: int, others: Sequence[int], head: Configuration, head_s: int) -> list[int]:
        """Start jobs that leave the head its nodes and watts at ``head_s``."""
        started: list[int] = []
        _, nodes, uw = next(step for step in self._free(now_s) if step[0] == head_s)
        left_nodes, left_uw = nodes - head.nodes, uw - head.uw
        for job in others:
            free_nodes, free_uw = self._free(now_s)[0][1:]
            if free_nodes < self._least_nodes or free_uw < self._least_uw:
                break  # there is room for nobody, however many wait
            row = self.starts_now(now_s, job)
            if row is None:
                continue
            ends_in_time = now_s + length_s(row) <= head_s
            if ends_in_time or (row.nodes <= left_nodes and row.uw <= left_uw):
                if not ends_in_time:  # it runs on next to the head
                    left_nodes, left_uw = left_nodes - row.nodes, left_uw - row.uw
                started.append(self._start(now_s, job, row))
        return started

    def starts_now(self, now_s: int, job: int) -> Configuration | None:
        """The configuration in which the job could start, if it is the one that is chosen."""
        row = self._choose(self._choice_input(now_s, job))
        return row if row is not None and self._earliest_s(now_s, row) == now_s else None

    def _choice_input(self, now_s: int, job: int) -> ChoiceInput:
        jobs = self.jobs.jobs
        _, free_nodes, free_uw = self._free(now_s)[0]
        return ChoiceInput(
            now_s,
            self.jobs.rows[job],
            int(jobs.width[job]),
            int(jobs.request_s[job]),
            self.nodes,
            self.watts,
            free_nodes,
            free_uw / UW,
            lambda row: self._earliest_s(now_s, row),
        )

    def _start(self, now_s: int, job: int, row: Configuration) -> int:
        self.queue.remove(job)
        self.chosen[job] = row
        self.running[job] = now_s + length_s(row)
        self._known = None
        return job

    def _free(self, now_s: int) -> list[tuple[int, int, int]]:
        """(From when, nodes, microwatts) if no other job starts; the first is now."""
        if self._known is None or self._known[0][0] != now_s:
            times_s = sorted({now_s, *(end_s for end_s in self.running.values() if end_s > now_s)})
            self._known = []
            for at_s in times_s:
                rows = [self.chosen[job] for job, end_s in self.running.items() if end_s > at_s]
                free_uw = self.uw - sum(row.uw for row in rows)
                self._known.append((at_s, self.nodes - sum(row.nodes for row in rows), free_uw))
        return self._known

    def _earliest_s(self, now_s: int, row: Configuration) -> int | None:
        for at_s, nodes, uw in self._free(now_s):
            if row.nodes <= nodes and row.uw <= uw:
                return at_s
        return None


def whole_uw(watts: float) -> int:
    """A bound, rounded down, after removing rounding errors of doubles."""
    return floor(watts * UW + 1e-3)


def length_s(row: Configuration) -> int:
    """The engine counts whole seconds."""
    return max(ceil(row.time_s - 1e-9), 1)
