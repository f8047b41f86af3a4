"""Who shares a node with whom: a planner for nodes of two shares (``unlike_nodes.shared_nodes``).

Each rule places jobs in the order of the queue, with EASY's reservation for the first that cannot start, which counts
the ends that are expected now. Half of a node is a share, and so is half of a GPU's time.

compact        empty nodes first, both shares of each; then nodes with one free share  } REGALE D2.3 §2.1, and
spread         one share on each of twice as many nodes, empty ones first; compact if  } ``no_preference`` in halves
               the cluster has not so many                                             } of nodes
no_preference  nodes with one free share first, then both shares of empty ones
matched        ours: the first jobs of the queue, and those that run next to free shares, are matched in pairs, exactly,
               so that they save the most node hours; the others run as under compact, on empty nodes

On GPUs a job has one share of as many cards either way. There ``compact`` is a card for each job that nobody shares,
``spread`` empty cards first, and ``no_preference`` cards with one job first.

No rule lets a job run next to another where the speed of one is below its floor, or 0, or not known. What a pair saves
(``matched``): while both run they do as much work as so many nodes would do with jobs alone, and take so many nodes;
then the longer one goes on next to shares of which the part ``REFILLED`` gets another job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.plans.plan_phase import Plan, PlanBudget, Situation, Start
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.scheduler.unlike_nodes.node_jobs import CORES
from cluster_agent.scheduler.unlike_nodes.shared_nodes import SHARES, Shared

Rule: TypeAlias = Literal["compact", "spread", "no_preference", "matched"]
Match: TypeAlias = Callable[[Float64s], Sequence[int]]
"""``match(saved)``: the partner of each, by its position; its own where it has none (``sharing.matching``)."""

REFILLED: Final = 0.2
"""Ours, chosen on the tuning mixes (benchmarks/shared_nodes.py): of free shares, the part that another job gets."""
DEPTH: Final = 300
"""Ours: so many jobs of the queue at most are tried on free shares next to several running ones."""
LONELY: Final = 4
"""Ours: so many running jobs at most, those with the most free shares next to them, are matched with waiting ones."""

_NOBODY: Final = -1


class _On(NamedTuple):
    """A job and what it takes: ``nodes`` and how many shares of each."""

    job: int
    nodes: list[int]
    counts: list[int]


class _Machine:
    """Who has the shares of each node."""

    def __init__(self, situation: Situation, shared: Shared) -> None:
        self.shared = shared
        self.free: list[int] = situation.free[:, CORES].tolist()
        self.on: list[list[int]] = [[] for _ in self.free]
        self.runs: list[tuple[int, _On]] = []
        running = situation.running
        for job, end_s, placed in zip(running.job.tolist(), running.end_s.tolist(), running.placed, strict=True):
            one = _On(job, placed.node.tolist(), placed.count.tolist())
            self.runs.append((end_s, one))
            for node in one.nodes:
                self.on[node].append(job)
        self.runs.sort(key=lambda run: run[0])

    def copy(self) -> _Machine:
        other = object.__new__(_Machine)
        other.shared, other.runs = self.shared, self.runs
        other.free, other.on = self.free[:], [jobs[:] for jobs in self.on]
        return other

    def take(self, one: _On) -> None:
        for node, count in zip(one.nodes, one.counts, strict=True):
            self.free[node] -= count
            self.on[node].append(one.job)

    def give_back(self, one: _On) -> None:
        for node, count in zip(one.nodes, one.counts, strict=True):
            self.free[node] += count
            self.on[node].remove(one.job)

    def empty(self, avoid: set[int]) -> list[int]:
        return [node for node, free in enumerate(self.free) if free == SHARES and node not in avoid]

    def half(self, avoid: set[int]) -> list[int]:
        """With one job and one free share."""
        return [
            node for node, free in enumerate(self.free) if free == 1 and len(self.on[node]) == 1 and node not in avoid
        ]


class _Pairs:
    """What is known of two jobs next to each other."""

    def __init__(self, shared: Shared, floor: float, jobs: Sequence[int]) -> None:
        """``jobs``: those that wait or run; a live table has many more rows."""
        rows = np.array(jobs, np.int64)
        floors = (floor if math.isnan(one) else one for one in shared.floor[rows].tolist())
        self.known, self.kind = shared.known.tolist(), dict(zip(jobs, shared.kind[rows].tolist(), strict=True))
        self.floor = dict(zip(jobs, floors, strict=True))

    def speed(self, job: int, partner: int) -> float:
        """NaN: not known. ``partner`` -1: next to nobody."""
        return float(self.known[self.kind[job]][_NOBODY if partner == _NOBODY else self.kind[partner]])

    def may(self, job: int, partner: int) -> bool:
        return self._keeps(job, partner) and self._keeps(partner, job)

    def _keeps(self, job: int, partner: int) -> bool:
        speed = self.speed(job, partner)
        return speed > 0 and speed >= self.floor[job]  # False for NaN

    def is_open(self, job: int) -> bool:
        """Whether it may have any partner."""
        return self.floor[job] <= 1

    def is_known(self, job: int) -> bool:
        return not all(map(math.isnan, self.known[self.kind[job]]))


def _or_1(speed: float) -> float:
    """Who is not known is expected to run as alone."""
    return 1.0 if math.isnan(speed) else speed


class Pairing(msgspec.Struct, frozen=True):
    """The planner: ``window`` jobs of the queue are matched at once."""

    shares_nodes: ClassVar[bool] = True
    rule: Rule
    floor: float
    window: int
    match: Match

    def __call__(self, situation: Situation, budget: PlanBudget) -> Plan:
        """The starts that are due now."""
        shared = situation.shared
        if shared is None:
            raise ValueError("it is for jobs that share nodes: give a table of them, and --pairs")
        return list(_Pass(self, situation, shared).starts())


class _Pass:
    """One plan."""

    def __init__(self, planner: Pairing, situation: Situation, shared: Shared) -> None:
        self.rule, self.window, self._match = planner.rule, planner.window, planner.match
        self.now_s, self.shared = situation.now_s, shared
        self.machine = _Machine(situation, shared)
        self.waiting: list[int] = situation.queue.job.tolist()
        self.pairs = _Pairs(shared, planner.floor, [*self.waiting, *situation.running.job.tolist()])
        self.units: dict[int, int] = dict(zip(self.waiting, map(int, situation.queue.units.tolist()), strict=True))
        self.length_s: dict[int, float] = dict(zip(self.waiting, situation.queue.estimate_s.tolist(), strict=True))
        self.running = {one.job: (end_s, one) for end_s, one in self.machine.runs}
        self.ends: dict[int, tuple[float, _On]] = dict(self.running)  # and of those that start now
        self.shadow_s = math.inf
        self.reserved: set[int] = set()

    def starts(self) -> Iterator[Start]:
        if not self.waiting or not any(self.machine.free):
            return
        groups = self._matched() if self.rule == "matched" else ([job] for job in self.waiting)
        for group in groups:
            found = [group] if isinstance(group, _On) else self._placed_now(group)
            for one in found:
                self.ends |= {**self._slowed(one), one.job: (self._end_s(one, found), one)}
            for one in found:
                self.machine.take(one)
                yield Start(one.job, self.now_s, Placed(np.array(one.nodes, np.int64), np.array(one.counts, np.int64)))

    def _placed_now(self, group: list[int]) -> list[_On]:
        """The jobs of a group on their nodes, all or none. The first group that cannot start gets a reservation."""
        for avoid in (self.reserved, set[int]()) if self.reserved else (set[int](),):
            found = self._place(self.machine, group, avoid)
            if found and not any(self._delays(one, found) for one in found):
                return found
        if self.shadow_s == math.inf:
            self._reserve(group)
        return []

    def _delays(self, one: _On, group: Sequence[_On]) -> bool:
        """Whether the job, which would start now with its group, may keep a reserved node for too long, or another job
        on one, which it slows."""
        if self.shadow_s == math.inf:
            return False
        if not self.reserved.isdisjoint(one.nodes) and self._end_s(one, group) > self.shadow_s:
            return True
        return any(
            self.ends[other][0] <= self.shadow_s < end_s and not self.reserved.isdisjoint(on.nodes)
            for other, (end_s, on) in self._slowed(one).items()
        )

    def _end_s(self, one: _On, group: Sequence[_On]) -> float:
        """When the job is expected to end that would start now, at the slowest of its speeds, next to its partners and
        next to nobody."""
        slowest = 1.0
        for node, count in zip(one.nodes, one.counts, strict=True):
            if count < SHARES:
                others = [other.job for other in group if other.job != one.job and node in other.nodes]
                for partner in (_NOBODY, *self.machine.on[node], *others):
                    slowest = min(slowest, _or_1(self.pairs.speed(one.job, partner)))
        return self.now_s + self.length_s[one.job] / slowest if slowest else math.inf

    def _slowed(self, one: _On) -> dict[int, tuple[float, _On]]:
        """The jobs next to which it would start now, and when they would end then."""
        found = {}
        for other in {other for node in one.nodes for other in self.machine.on[node]}:
            end_s, on = self.ends[other]
            now, then = _or_1(self._speed_now(on)), _or_1(self.pairs.speed(other, one.job))
            slower = now / then if then else math.inf
            found[other] = self.now_s + max(end_s - self.now_s, 0) * max(slower, 1.0), on
        return found

    def _reserve(self, group: list[int]) -> None:
        later = self.machine.copy()
        for end_s, run in self.machine.runs:
            later.give_back(run)
            if found := self._place(later, group, set()):
                self.shadow_s = end_s
                self.reserved = {node for one in found for node in one.nodes}
                return
        self.shadow_s = self.now_s  # it needs those that start now, too: nobody else starts
        self.reserved = set(range(len(self.machine.free)))

    # --- where

    def _place(self, machine: _Machine, group: list[int], avoid: set[int]) -> list[_On]:
        if len(group) == 2:
            return self._side_by_side(machine, group, avoid)
        job = group[0]
        one = self._by_rule(machine, job, avoid)
        return [] if one is None else [one]

    def _side_by_side(self, machine: _Machine, group: list[int], avoid: set[int]) -> list[_On]:
        empty, most = machine.empty(avoid), max(self.units[job] for job in group)
        if len(empty) < most:
            return []
        return [_On(job, empty[: self.units[job]], [1] * self.units[job]) for job in group]

    def _by_rule(self, machine: _Machine, job: int, avoid: set[int]) -> _On | None:
        empty, half = machine.empty(avoid), [node for node in machine.half(avoid) if self._may_join(machine, job, node)]
        units, is_open = self.units[job], self.pairs.is_open(job)
        if not self.shared.are_halves:
            order = {"spread": empty + half, "no_preference": half + empty}.get(self.rule, empty)
            order = order if is_open else empty
            return _On(job, order[:units], [1] * units) if len(order) >= units else None
        if self.rule == "spread" and is_open and self.pairs.is_known(job) and units <= len(machine.free):
            order = empty + half
            return _On(job, order[:units], [1] * units) if len(order) >= units else None
        fragments = [] if self.rule == "matched" or not is_open else half
        return self._whole(job, units, [(node, SHARES) for node in empty], [(node, 1) for node in fragments])

    def _whole(
        self, job: int, units: int, empty: list[tuple[int, int]], fragments: list[tuple[int, int]]
    ) -> _On | None:
        nodes, counts = list[int](), list[int]()
        for node, free in fragments + empty if self.rule == "no_preference" else empty + fragments:
            if units > 0:
                nodes.append(node)
                counts.append(min(free, units))
                units -= counts[-1]
        return _On(job, nodes, counts) if units == 0 else None

    def _may_join(self, machine: _Machine, job: int, node: int) -> bool:
        other = machine.on[node][0]
        return self.pairs.may(job, other)

    # --- with whom

    def _matched(self) -> Iterator[list[int] | _On]:
        """In the order of the queue: a pair that waits, one that waits alone, or one next to a running partner."""
        open_ones = [job for job in self.waiting if self.pairs.is_open(job) and self.pairs.is_known(job)]
        lonely = self._lonely()
        partner = self._partners(open_ones[: self.window], lonely)
        next_to = {job: lonely[partner.pop(job)] for job in list(partner) if partner[job] in lonely}
        if self.waiting[0] not in next_to:
            self._reserve_first(self.waiting[0], partner)
        done: set[int] = set()
        for one in self._on_free_shares(next_to, [job for job in open_ones[:DEPTH] if job not in partner]):
            done.add(one.job)
            yield one
        for job in self.waiting:
            if job in done:
                continue
            if job in partner:
                done.add(partner[job])
                yield [job, partner[job]]
            else:
                yield [job]

    def _reserve_first(self, head: int, partner: dict[int, int]) -> None:
        """The head of the queue gets its reservation before those next to running jobs start, which have no turn."""
        group = [head, partner[head]] if head in partner else [head]
        if not self._place(self.machine, group, set()):
            self._reserve(group)

    def _on_free_shares(self, next_to: dict[int, list[int]], others: list[int]) -> Iterator[_On]:
        """Jobs next to the running one that they are matched with, on its nodes, then others next to several."""
        for job, nodes in next_to.items():
            one = _On(job, nodes[: self.units[job]], [1] * self.units[job])
            if not self._delays(one, ()):
                others = [other for other in others if other != job]
                yield one
        yield from self._filled(others)

    def _lonely(self) -> dict[int, list[int]]:
        """The running jobs next to the most free shares, which may have a partner there, with these nodes."""
        found = self._next_to_free()
        most = sorted(found, key=lambda job: -len(found[job]))[:LONELY]
        return {job: found[job] for job in most}

    def _next_to_free(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for node in self.machine.half(set()):
            job = self.machine.on[node][0]
            if self.pairs.is_open(job) and self.pairs.is_known(job):
                found.setdefault(job, []).append(node)
        return found

    def _filled(self, jobs: list[int]) -> Iterator[_On]:
        """Jobs on free shares next to several running ones, those first that save the most for each share."""
        left = jobs[:]
        while left:
            free = self._next_to_free()
            found = [one for job in left if (one := self._among(job, free)) is not None]
            if not found:
                return
            best = max(found, key=lambda one: one[0])[1]
            left.remove(best.job)
            if not self._delays(best, ()):
                yield best

    def _among(self, job: int, free: dict[int, list[int]]) -> tuple[float, _On] | None:
        """What the job saves for each share next to the partners that slow it least, and where it is then."""
        others = sorted(
            (other for other in free if self.pairs.may(job, other)), key=lambda other: -self.pairs.speed(job, other)
        )
        nodes = [(node, other) for other in others for node in free[other]][: self.units[job]]
        if len(nodes) < self.units[job]:
            return None
        chosen = {other for _, other in nodes}
        own = min(self.pairs.speed(job, other) for other in chosen)
        gained = self._alone(self.units[job]) * own - REFILLED * self.units[job] / SHARES
        for other in chosen:
            if other in self.running:
                now = self._speed_now(self.running[other][1])
                then = min(now, self.pairs.speed(other, job))
                gained += self._alone(sum(self.running[other][1].counts)) * (then - now)
        if gained <= 0:
            return None
        return gained / self.units[job], _On(job, [node for node, _ in nodes], [1] * len(nodes))

    def _partners(self, window: list[int], lonely: dict[int, list[int]]) -> dict[int, int]:
        """The partner of each job of the window that has one."""
        both = [*window, *lonely]
        saved = np.zeros((len(both), len(both)))
        for i, job in enumerate(window):
            for j in range(i + 1, len(both)):
                other = both[j]
                if not self.pairs.may(job, other):
                    continue
                if j < len(window):
                    saved[i, j] = saved[j, i] = self._together(job, other)
                elif self.units[job] <= len(lonely[other]):
                    saved[i, j] = saved[j, i] = self._next_to(job, *self.running[other])
        found = self._match(saved) if len(both) > 1 else range(len(both))
        return {job: both[int(found[i])] for i, job in enumerate(window) if int(found[i]) != i}

    def _together(self, job: int, other: int) -> float:
        """Node seconds that two waiting jobs save."""
        most = max(self.units[job], self.units[other])
        if most > len(self.machine.free):
            return 0.0
        speed = self.pairs.speed(job, other), self.pairs.speed(other, job)
        units, length_s = (self.units[job], self.units[other]), (self.length_s[job], self.length_s[other])
        together_s = min(length_s[0] / speed[0], length_s[1] / speed[1])
        work = self._alone(units[0]) * speed[0] + self._alone(units[1]) * speed[1]
        saved = together_s * (work - (1 - REFILLED) * most - REFILLED * sum(units) / SHARES)
        for at, one in enumerate((job, other)):
            saved += self._afterwards(one, length_s[at] - together_s * speed[at])
        return saved

    def _next_to(self, job: int, end_s: int, other: _On) -> float:
        """Node seconds that a waiting job saves on free shares next to one that runs."""
        now = self._speed_now(other)
        then, own = min(now, self.pairs.speed(other.job, job)), self.pairs.speed(job, other.job)
        together_s = min(self.length_s[job] / own, (end_s - self.now_s) * now / then)
        units = self.units[job]
        gained = self._alone(units) * own + self._alone(sum(other.counts)) * (then - now)
        left_s = self.length_s[job] - together_s * own
        return together_s * (gained - REFILLED * units / SHARES) + self._afterwards(job, left_s)

    def _afterwards(self, job: int, left_s: float) -> float:
        """What it saves once it is next to nobody, or to whoever comes, with so many seconds of its work left."""
        units, speed = self.units[job], self.pairs.speed(job, _NOBODY)
        if left_s < 1:
            return 0.0
        return left_s / speed * (self._alone(units) * speed - (1 - REFILLED) * units - REFILLED * units / SHARES)

    def _alone(self, units: int) -> float:
        """Nodes that it would take alone."""
        return units / SHARES if self.shared.are_halves else float(units)

    def _speed_now(self, one: _On) -> float:
        speeds = []
        for node, count in zip(one.nodes, one.counts, strict=True):
            others = [job for job in self.machine.on[node] if job != one.job]
            speeds.append(1.0 if count == SHARES else self.pairs.speed(one.job, others[0] if others else _NOBODY))
        return min(speeds)
