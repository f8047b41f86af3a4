"""What the engines share of watts: a machine in whole microwatts, the plan of caps and nodes, and the calls of the
phases *react* and *idle*. The plan is a list of rows, each valid until the next begins (``plan_row_t`` in
``csrc/power.h``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import UW, Machine
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.job_columns import Int32s, Int64s, Jobs
from cluster_agent.scheduler.power_phases import Ends, Off, Power, Predictor, Reaction, Running, Situation
from cluster_agent.scheduler.power_shedding import off_watts

NO_CAP: Final = 2**63 - 1


class Row(NamedTuple):
    """``plan_row_t``."""

    from_s: int
    cap_uw: int
    kept: int
    idle_uw: int
    off_uw: int
    switching_uw: int
    bonus_uw: int


def _lowest_level(machine: Machine, power: Power) -> int:
    """The lowest frequency that the policy gives, as a position in the machine's list."""
    node, lowest = machine.node, 0
    if power.floor_mhz is not None:
        allowed = [i for i, mhz in enumerate(node.frequency_mhz) if mhz >= power.floor_mhz]
        if not allowed:
            highest = node.frequency_mhz[0]
            raise WrongUseError(f"{machine.name}: {power.floor_mhz} MHz is above its highest, {highest}")
        lowest = allowed[-1]
    if power.floor_share is not None:
        busy_w = node.busy_max_w or node.busy_w
        lowest = max(i for i, watts in enumerate(busy_w) if watts >= power.floor_share * busy_w[0])
    return lowest


def _planned_w(machine: Machine, power: Power, lowest: int) -> tuple[float, ...]:
    """What a busy node is planned to draw at each frequency: its most, or what the policy gives for the highest."""
    node = machine.node
    planned_w = node.busy_max_w or node.busy_w
    if power.node_w is None:
        return planned_w
    if not power.node_w > node.idle_w:
        raise WrongUseError(f"{machine.name}: {power.node_w:g} W for a busy node is not above its idle watts")
    if lowest:
        raise WrongUseError(f"{machine.name}: watts of a node are given for its highest frequency only")
    return (power.node_w, *planned_w[1:])


def _most_nodes(at_s: int, spans: Iterable[tuple[int, int, int]]) -> int:
    """The most of (nodes, from, to) at this time; 0: none."""
    return max((nodes for nodes, from_s, to_s in spans if from_s <= at_s < to_s), default=0)


class Watts(msgspec.Struct, frozen=True):
    """A machine as the engines count it, per processor; and the watts of single jobs, where they are known."""

    machine: Machine
    idle_uw: int
    busy_uw: tuple[int, ...]
    plan_uw: tuple[int, ...]
    slowdown: tuple[float, ...]
    lowest: int
    asks_watts: bool
    requeues: bool
    job_busy_uw: Int64s | None = None  # a processor at the highest frequency, idle share included, as accounted
    job_plan_uw: Int64s | None = None  # the same, as planned with: a prediction
    new_predictor: Callable[[], Predictor] | None = None
    """Makes a predictor of jobs' power; ``job_plan_uw`` then has the planned watts until a prediction replaces them."""
    margin: float = 1.0  # predictions count so many times
    job_lowest: Int32s | None = None  # the lowest frequency that each job may be given; None: ``lowest`` for all
    starts_slowed: bool = True
    reacts_to_ends: Ends = "unheard"
    rescales: bool = False
    meters: bool = False
    budget: Budget | None = None

    @classmethod
    def of(cls, machine: Machine, power: Power | None) -> Watts:
        """``WrongUseError`` if the machine does not fit: no watts, several kinds of nodes, no such frequency."""
        machine.check_watts()
        if len(machine.groups) > 1:
            raise WrongUseError(f"{machine.name}: watts are replayed on machines of one kind of nodes, not several")
        node, given = machine.node, power or Power()
        lowest = _lowest_level(machine, given)
        planned_w = _planned_w(machine, given, lowest)
        if (given.meters or given.rescales) and min(*node.busy_w, *planned_w) <= node.idle_w:
            what = "metered" if given.meters else "rescale"
            raise WrongUseError(
                f"{machine.name}: {what}=true needs nodes that draw more when they are busy: give busy_w"
            )

        def share(watts: float) -> int:
            return round(watts * UW / node.cores)

        return cls(
            machine,
            share(node.idle_w),
            tuple(map(share, node.busy_w)),
            tuple(map(share, planned_w)),
            machine.slowdowns(given.application),
            lowest,
            power is not None,
            given.requeue,
            starts_slowed=given.starts_slowed,
            reacts_to_ends=given.reacts_to_ends,
            rescales=given.rescales,
            meters=given.meters,
            budget=given.budget,
        )

    def only(self, rows: Int64s) -> Watts:
        """With the columns of these jobs."""
        columns = {name: getattr(self, name) for name in ("job_busy_uw", "job_plan_uw", "job_lowest")}
        return replace(self, **{name: one[rows] for name, one in columns.items() if one is not None})

    def drawn_w(self, job: int, width: int) -> float:
        """The job's power at the highest frequency, as accounted."""
        return width * (self.busy_uw[0] if self.job_busy_uw is None else int(self.job_busy_uw[job])) / UW

    def lowest_of(self, job: int) -> int:
        """The lowest frequency that the job may be given."""
        return self.lowest if self.job_lowest is None else int(self.job_lowest[job])

    def lowest_start(self, job: int) -> int:
        """The lowest frequency at which the job may be started."""
        return self.lowest_of(job) if self.starts_slowed else 0

    def plan_watts(self, width: int, level: int) -> float:
        """The planned watts of so many processors at a level, or idle with level -1."""
        return width * (self.idle_uw if level < 0 else self.plan_uw[level]) / UW

    def rows(self, caps: Sequence[Cap], offs: Sequence[Off], now_s: int) -> list[Row]:
        """The plan from ``now_s`` on."""
        node = self.machine.node
        off_s, boot_s = ceil(node.switch_off_s), ceil(node.boot_s)
        times = {now_s}
        for cap in caps:
            times |= {cap.from_s, cap.to_s}
        for off in offs:
            times |= {off.from_s - off_s, off.from_s, off.to_s, off.to_s + boot_s}
        rows: list[Row] = []
        for at_s in sorted(time for time in times if time >= now_s and time < 2**61):
            cap_w = min((cap.watts for cap in caps if cap.from_s <= at_s < cap.to_s), default=None)
            off_nodes = _most_nodes(at_s, ((one.nodes, one.from_s, one.to_s) for one in offs))
            leaving = _most_nodes(at_s, ((one.nodes, one.from_s - off_s, one.from_s) for one in offs))
            booting = _most_nodes(at_s, ((one.nodes, one.to_s, one.to_s + boot_s) for one in offs))
            row = self._row(at_s, cap_w, off_nodes, max(leaving - off_nodes, 0), max(booting - off_nodes, 0))
            if not rows or row[1:] != rows[-1][1:]:
                rows.append(row)
        return rows

    def _row(self, at_s: int, cap_w: float | None, off: int, leaving: int, booting: int) -> Row:
        machine, node = self.machine, self.machine.node
        away = off + max(leaving, booting)
        kept = machine.processors - away * node.cores
        off_w, fixed_w = off_watts(machine, off)
        switching_w = max(leaving, booting) * (
            node.switch_off_j / max(ceil(node.switch_off_s), 1)
            if leaving >= booting
            else node.boot_j / max(ceil(node.boot_s), 1)
        )
        return Row(
            at_s,
            NO_CAP if cap_w is None else round(cap_w * UW),
            kept,
            kept * self.idle_uw + round(fixed_w * UW),
            round(off_w * UW),
            round(switching_w * UW),
            round((machine.fixed_w - fixed_w + off * node.off_w - off_w) * UW),
        )


def admitted_uw(predicted_uw: Int64s, width: Int32s, allowed_uw: int, watts: Watts) -> Int64s:
    """A processor's watts with which jobs wait: as predicted, but no more than the caps ever allow a job that runs
    alone (``Governor.allowed_uw``), or it would wait for ever; though the caps cannot make it draw less than busy
    processors at the lowest frequency."""
    above_idle_uw = np.maximum(allowed_uw // width.astype(np.int64), watts.plan_uw[-1] - watts.idle_uw)
    admitted: Int64s = np.minimum(predicted_uw - watts.idle_uw, above_idle_uw) + watts.idle_uw
    return admitted


class Predicting:
    """Keeps ``job_plan_uw``, its own, at the prediction for each job when it is submitted (``admitted_uw``).

    The jobs that end at one instant are learned in the order of their numbers, before any prediction. So a replay of a
    whole log, which looks once a pass, predicts the same as a loop that gets every event.
    """

    def __init__(self, watts: Watts, jobs: Jobs) -> None:
        assert watts.new_predictor is not None and watts.job_plan_uw is not None
        self.job_plan_uw = watts.job_plan_uw.copy()
        self._predicted_uw = watts.job_plan_uw.copy()
        self._allowed_uw = NO_CAP
        self._watts = watts
        self._width = jobs.width
        self._predictor = watts.new_predictor()
        self._ended: list[int] = []
        self._submitted = 0
        self._open = np.empty(0, np.int64)

    def end(self, job: int) -> None:
        """The job has ended."""
        self._ended.append(job)

    def submit(self, job: int) -> None:
        """The job is submitted."""
        self.learn()
        width = int(self._width[job])
        predicted_uw = round(self._predictor.predict(job) * self._watts.margin / width * UW)
        # no more than the machine can draw, and something above an idle processor
        self._predicted_uw[job] = min(max(predicted_uw, self._watts.idle_uw + 1), self._watts.plan_uw[0])
        self._admit(np.array([job], np.int32))

    def allow(self, allowed_uw: int, waiting: Int32s) -> None:
        """There are other caps."""
        self._allowed_uw = allowed_uw
        self._admit(waiting)

    def _admit(self, jobs: Int32s) -> None:
        predicted_uw = self._predicted_uw[jobs]
        self.job_plan_uw[jobs] = admitted_uw(predicted_uw, self._width[jobs], self._allowed_uw, self._watts)

    def learn(self) -> None:
        """From the jobs that have ended since."""
        for job in sorted(self._ended):
            self._predictor.learn(job, self._watts.drawn_w(job, int(self._width[job])))
        self._ended.clear()

    def follow(self, submitted: int, end_s: Int64s) -> None:
        """Follow all that has happened up to a pass: how many are submitted, and when each has ended (-1: not yet)."""
        has_ended = end_s[self._open] >= 0
        self._ended += self._open[has_ended].tolist()
        self.learn()
        for job in range(self._submitted, submitted):
            self.submit(job)
        self._open = np.concatenate([self._open[~has_ended], np.arange(self._submitted, submitted)])
        self._submitted = submitted


class Governor:
    """Calls *idle* when a cap becomes known and *react* when the plan's next row begins."""

    def __init__(self, watts: Watts, power: Power | None, caps: Sequence[Cap], first_s: int) -> None:
        self.watts = watts
        budget = self._power_cap(watts, first_s)
        self._own = [] if budget is None else [budget]
        self._power = power or Power()
        self.announced_s: list[int] = []
        """When caps become known that no plan knows yet."""
        self._caps: list[Cap] = []
        self._offs: Sequence[Off] = ()
        self._rows: list[Row] = []
        self.announce(caps, first_s)

    def announce(self, caps: Sequence[Cap], now_s: int) -> None:
        """These are all caps that there are or will be, in place of those before."""
        caps = [*caps, *self._own]
        if not self._power.looks_ahead:
            caps = [replace(cap, announced_s=cap.from_s) for cap in caps]
        self.announced_s = sorted({cap.announced_s for cap in caps if cap.announced_s > now_s})
        self._caps = sorted(caps, key=lambda cap: cap.from_s)

    @staticmethod
    def _power_cap(watts: Watts, first_s: int) -> Cap | None:
        """A budget that no job may store from, as a cap."""
        budget = watts.budget
        if budget is None or budget.rule != "powercap" or budget.to_s <= first_s:
            return None
        return Cap(budget.from_s, budget.to_s, budget.limit_uw / UW, max(budget.from_s, first_s))

    def first_reading_s(self, first_s: int) -> int | None:
        """When the joules of a budget are read first; None: jobs cannot store any of it, or it has ended before the
        first submission."""
        budget = self.watts.budget
        if budget is None or budget.rule == "powercap" or budget.to_s <= first_s:
            return None
        return max(budget.from_s, first_s)

    def known(self, now_s: int) -> list[Cap]:
        """The caps that are known and not over."""
        return [cap for cap in self._caps if cap.announced_s <= now_s < cap.to_s]

    def plan(self, now_s: int) -> list[Row]:
        """Plan with all caps that are known at ``now_s``."""
        self.announced_s = [time_s for time_s in self.announced_s if time_s > now_s]
        caps = self.known(now_s)
        machine = self.watts.machine
        self._offs = self._power.idle(machine, caps, now_s) if self._power.idle else ()
        self._rows = self.watts.rows(caps, self._offs, now_s)
        return self._rows

    @property
    def allowed_uw(self) -> int:
        """What a job that runs alone may draw above idle at the best of times, by the caps of the last plan."""
        return max(NO_CAP if row.cap_uw == NO_CAP else max(row.cap_uw - row.idle_uw, 0) for row in self._rows)

    def nodes_off(self, now_s: int) -> int:
        """How many nodes are to be off, or going off, for a cap."""
        early_s = ceil(self.watts.machine.node.switch_off_s)
        return _most_nodes(now_s, ((one.nodes, one.from_s - early_s, one.to_s) for one in self._offs))

    def nodes_away(self, now_s: int) -> int:
        """The same, with those that boot again."""
        machine = self.watts.machine
        kept = [row.kept for row in self._rows if row.from_s <= now_s][-1:] or [machine.processors]
        return (machine.processors - kept[0]) // machine.node.cores

    def rows_from(self, now_s: int) -> list[Row]:
        """Of the last plan, the present row and all later ones."""
        present = sum(row.from_s <= now_s for row in self._rows) - 1
        return self._rows[max(present, 0) :]

    def is_plan_due(self, now_s: int) -> bool:
        """Whether a cap has become known that the last plan did not know."""
        return bool(self.announced_s) and self.announced_s[0] <= now_s

    def react(self, now_s: int, row: Row, plan_uw: int, running: Callable[[], Running]) -> Reaction:
        """What the policy does as the present row begins; nothing if it has no *react*."""
        if self._power.react is None:
            return Reaction()
        cap_watts = float("inf") if row.cap_uw == NO_CAP else row.cap_uw / UW
        return self._power.react(
            Situation(
                now_s,
                self.watts.machine,
                self.known(now_s),
                plan_uw / UW,
                cap_watts,
                running(),
                self.watts.lowest,
                self.watts.plan_watts,
            )
        )


def running_of(rows: Sequence[tuple[int, int, int, int, int, int, float]]) -> Running:
    """From (start_s, job, width, level, lowest, limit_s, watts)."""
    rows = sorted(rows)
    start_s, job, width, level, lowest, limit_s, watts = (np.array([row[i] for row in rows]) for i in range(7))
    return Running(
        job.astype(np.int32),
        start_s.astype(np.int64),
        width.astype(np.int32),
        level.astype(np.int32),
        lowest.astype(np.int32),
        limit_s.astype(np.int64),
        watts.astype(np.float64),
    )
