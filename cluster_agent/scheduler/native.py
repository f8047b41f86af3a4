"""The scheduler in C (``csrc/scheduler.c``), alone for a live loop and inside the native replay of a whole log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.caps import Cap
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.budget import Ledger
from cluster_agent.scheduler.governor import NO_CAP, UW, Governor, Predicting, Row, Watts, running_of
from cluster_agent.scheduler.idle_off import IdleOff
from cluster_agent.scheduler.interfaces import Meter, unmetered
from cluster_agent.scheduler.jobs import Bools, Int32s, Int64s, Jobs
from cluster_agent.scheduler.phases import Composition, Learning, Order
from cluster_agent.scheduler.power import Ends, Reaction, Running
from cluster_agent.scheduler.priority import Priority
from cluster_agent.scheduler.queue import columns, served

ESTIMATES: Final = {
    "requested": lib.ESTIMATE_REQUESTED,
    "clairvoyant": lib.ESTIMATE_CLAIRVOYANT,
    "mean2": lib.ESTIMATE_MEAN2,
    "learned": lib.ESTIMATE_LEARNED,
}
MODELS: Final = {"thesis": lib.MODEL_THESIS, "sc15": lib.MODEL_SC15}
LOSSES: Final = {"linear": lib.LOSS_LINEAR, "squared": lib.LOSS_SQUARED}
WEIGHTS: Final = {
    "equal": lib.WEIGHT_EQUAL,
    "short-wide": lib.WEIGHT_SHORT_WIDE,
    "long-narrow": lib.WEIGHT_LONG_NARROW,
    "small": lib.WEIGHT_SMALL,
    "large": lib.WEIGHT_LARGE,
}
CORRECTIONS: Final = {
    "requested": lib.CORRECT_REQUESTED,
    "incremental": lib.CORRECT_INCREMENTAL,
    "doubling": lib.CORRECT_DOUBLING,
    "doubling-capped": lib.CORRECT_DOUBLING_CAPPED,
}
BACKFILLS: Final = {
    "none": lib.BACKFILL_NONE,
    "list": lib.BACKFILL_LIST,
    "easy": lib.BACKFILL_EASY,
    "conservative": lib.BACKFILL_CONSERVATIVE,
    "compress": lib.BACKFILL_COMPRESS,
}
SCANS: Final = {"queue": lib.SCAN_QUEUE, "shortest": lib.SCAN_SHORTEST}
ENDS: Final = {
    "unheard": lib.ENDS_UNHEARD,
    "before": lib.ENDS_BEFORE_PASS,
    "after": lib.ENDS_AFTER_PASS,
}
RULES: Final = {"reducepc": lib.BUDGET_REDUCEPC, "energybud": lib.BUDGET_ENERGYBUD}
TESTS: Final = {"path": lib.TEST_PATH, "job": lib.TEST_JOB, "whole": lib.TEST_WHOLE}
NEVER_S: Final = 2**63 - 1
BATCHES: Final = {"instant": lib.BATCH_INSTANT, "sc15": lib.BATCH_EVENT}


def c_composition(composition: Composition, processors: int) -> Any:
    """``composition_t *``."""
    return ffi.new(
        "composition_t *",
        {
            "processors": processors,
            "estimate": ESTIMATES[composition.estimate],
            "correct": CORRECTIONS[composition.correct],
            "backfill": BACKFILLS[composition.backfill],
            "scan": SCANS[composition.scan],
            "frees_at_estimate": composition.frees_at_estimate,
            "passes_if_new_fits": composition.passes_if_new_fits,
            "guard": composition.guard or 0.0,
            "learning": _learning(composition.learning),
        },
    )


def _learning(learning: Learning) -> dict[str, int]:
    over, under = learning.loss.split("-")
    return {
        "model": MODELS[learning.model],
        "over": LOSSES[over],
        "under": LOSSES[under],
        "weight": WEIGHTS[learning.weight],
    }


def pointer(kind: str, array: Any) -> Any:
    """The memory of a NumPy column as a C array; the column must outlive its use."""
    return ffi.from_buffer(f"{kind}[]", array)


Scalar = TypeVar("Scalar", bound=np.generic)


def copied(source: Any, count: int, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    """A NumPy copy of a C column of ``count``."""
    return np.frombuffer(ffi.buffer(source, count * np.dtype(dtype).itemsize), dtype).copy()


class CJobs:
    """``jobs_t`` over the columns of ``Jobs``, which it keeps alive."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self._columns = [
            pointer("int64_t", np.ascontiguousarray(jobs.run_s, np.int64)),
            pointer("int64_t", np.ascontiguousarray(jobs.request_s, np.int64)),
            pointer("int32_t", np.ascontiguousarray(jobs.width, np.int32)),
            pointer("int32_t", np.ascontiguousarray(jobs.user, np.int32)),
        ]
        run_s, request_s, width, user = self._columns
        self.c = ffi.new("jobs_t *", [len(jobs), jobs.n_users, run_s, request_s, width, user])


class CWatts:
    """``power_model_t`` over the columns of ``Watts``, which it keeps alive, and the budget of a ledger."""

    def __init__(self, watts: Watts, ledger: Ledger | None, predicting: Predicting | None = None) -> None:
        jobs = [watts.job_busy_uw, predicting.job_plan_uw if predicting else watts.job_plan_uw]
        self._columns = [
            ffi.new("int64_t[]", watts.busy_uw),
            ffi.new("int64_t[]", watts.plan_uw),
            ffi.new("double[]", watts.slowdown),
            *(ffi.NULL if one is None else pointer("int64_t", np.ascontiguousarray(one, np.int64)) for one in jobs),
        ]
        lowest = ffi.NULL
        if watts.job_lowest is not None and watts.starts_slowed:
            lowest = self._lowest = pointer("int32_t", np.ascontiguousarray(watts.job_lowest, np.int32))
        self.c = ffi.new(
            "power_model_t *",
            [
                len(watts.busy_uw),
                watts.lowest if watts.starts_slowed else 0,
                watts.asks_watts,
                watts.requeues,
                watts.idle_uw,
                *self._columns,
                lowest,
                ENDS[watts.reacts_to_ends],
                c_budget(ledger),
            ],
        )


def c_idle_off(composition: Composition, watts: Watts | None) -> Any:
    """``idle_off_t *``, or None where nodes stay on; ``WrongUseError`` without watts."""
    if composition.idle_off_s is None:
        return None
    if watts is None:
        raise WrongUseError("idle_off_s needs a machine with watts, such as --machine curie")
    return ffi.new("idle_off_t *", astuple(IdleOff.of(watts.machine, composition.idle_off_s)))


def c_budget(ledger: Ledger | None) -> list[int]:
    """``budget_t`` of a ledger that is not open yet."""
    if ledger is None:
        return [lib.BUDGET_NONE, 0, 0, 0, 0, 0]
    budget = ledger.budget
    return [
        RULES[budget.rule],
        TESTS[budget.test],
        ledger.next_s,
        budget.to_s,
        budget.limit_uw,
        budget.tick_s,
    ]


class CPriority:
    """``priority_t`` over columns per user, which it keeps alive. ``users``: their numbers in the log."""

    def __init__(self, priority: Priority, users: Sequence[int], watts: Watts | None) -> None:
        share, efficiency = priority.of_users(users)
        full_w = watts.busy_uw[0] / UW if watts else 1.0
        self._columns = [pointer("double", share), pointer("double", efficiency * full_w)]
        self.c = ffi.new(
            "priority_t *",
            [
                *(priority.age, priority.size, priority.cpu, priority.energy),
                priority.oldest_s,
                priority.half_life_s,
                priority.period_s or 0,
                priority.damping,
                full_w,
                priority.is_relative,
                *self._columns,
            ],
        )


def running(scheduler: Any, jobs: Jobs, watts: Watts) -> Running:
    """The running jobs of a native scheduler as *react* sees them."""
    room = ffi.new("int32_t[]", max(len(jobs), 1))
    levels, start_s = lib.scheduler_levels(scheduler), lib.scheduler_decided(scheduler)
    rows = []
    for job in room[0 : lib.scheduler_running(scheduler, room)]:
        width, level = int(jobs.width[job]), levels[job]
        limit_s = lib.scheduler_finish(scheduler, job, int(jobs.request_s[job]))
        drawn_uw = width * (lib.scheduler_extra_uw(scheduler, job, level) + watts.idle_uw)
        rows.append((start_s[job], job, width, level, watts.lowest_of(job), limit_s, drawn_uw / UW))
    return running_of(rows)


def c_rows(rows: Sequence[Row]) -> Any:
    """``plan_row_t[]``."""
    return ffi.new("plan_row_t[]", [tuple(row) for row in rows])


def _take(pointer_or_null: Any, free: Callable[[Any], None]) -> Any:
    if pointer_or_null == ffi.NULL:
        raise MemoryError
    return ffi.gc(pointer_or_null, free)


class NativeScheduler:
    """The native scheduler behind ``interfaces.Scheduler``; with ``watts`` it knows those and the caps."""

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        processors: int,
        watts: Watts | None = None,
        caps: Sequence[Cap] = (),
        meter: Meter = unmetered,
        users: Sequence[int] | None = None,
    ) -> None:
        idle_off = c_idle_off(composition, watts)
        self._meter = meter
        self._order = composition.order
        self._jobs = CJobs(jobs)
        self._scheduler = _take(
            lib.scheduler_new(c_composition(composition, processors), self._jobs.c), lib.scheduler_free
        )
        if composition.priority is not None:
            users = users or range(jobs.n_users)
            if len(users) < jobs.n_users:
                raise ValueError(f"{len(users)} numbers for {jobs.n_users} users")
            self._c_priority = CPriority(composition.priority, users, watts)
            if lib.scheduler_set_priority(self._scheduler, self._c_priority.c) < 0:
                raise MemoryError
        self._starts = ffi.new("int32_t[]", max(len(jobs), 1))
        self._room = np.empty(len(jobs), np.int32)
        self._watts = watts
        self._announcements: list[int] = []
        self._predicting: Predicting | None = None
        if watts is not None:
            first_s = int(jobs.submit_s[0]) if len(jobs) else 0
            self._governor = Governor(watts, composition.power, caps, first_s)
            self._predicting = Predicting(watts, jobs) if watts.new_predictor else None
            self._c_watts = CWatts(watts, self._governor.ledger(first_s), self._predicting)
            self._announcements = list(self._governor.announced_s)
            if lib.scheduler_set_power(self._scheduler, self._c_watts.c) < 0:
                raise MemoryError
            if idle_off is not None and lib.scheduler_set_idle_off(self._scheduler, idle_off) < 0:
                raise MemoryError
            self._plan(first_s)

    def submit(self, now_s: int, job: int) -> bool:
        """The job joins the queue; True if this calls for a pass."""
        if self._predicting is not None:
            self._predicting.submit(job)
        return bool(lib.scheduler_submit(self._scheduler, now_s, job))

    def end(self, job: int) -> None:
        """The running job has ended."""
        if self._predicting is not None:
            self._predicting.end(job)
        lib.scheduler_end(self._scheduler, job)

    def overrun(self, job: int) -> int:
        """The running job has outlived its estimate: its new expected end."""
        return int(lib.scheduler_overrun(self._scheduler, job))

    def adopt(self, submitted_s: int, started_s: int, job: int, estimate_s: int = 0) -> int:
        """The job runs already, as far as the scheduler is to know for ``estimate_s`` (0: what the policy estimates);
        its expected end."""
        assert self._watts is None
        lib.scheduler_adopt(self._scheduler, submitted_s, started_s, estimate_s, job)
        return self.expected_end_s(job)

    def withdraw(self, job: int) -> None:
        """The job, waiting or running, is gone, and nothing is learned from it; this calls for a pass."""
        assert self._watts is None
        lib.scheduler_withdraw(self._scheduler, job)

    def decide(self, now_s: int) -> list[int]:
        """One pass: the jobs to start now."""
        if self._predicting is not None:
            self._predicting.learn()
        if self._order is not None:
            reorder(self._scheduler, self._jobs.jobs, self._order, now_s, self._room)
        count = lib.scheduler_decide(self._scheduler, now_s, self._starts)
        if count < 0:
            raise MemoryError
        return list(self._starts[0:count])

    def level(self, job: int) -> int:
        """The frequency of a running job."""
        return 0 if self._watts is None else int(lib.scheduler_levels(self._scheduler)[job])

    def begins_s(self, now_s: int, job: int) -> int:
        """When a job begins to run whose start was decided now."""
        return int(lib.scheduler_begins(self._scheduler, job))

    def next_change_s(self) -> int | None:
        """The next row of the plan, announcement, reading of joules, or change of a node."""
        if self._watts is None:
            return None
        later = lib.scheduler_next_row, lib.scheduler_next_reading, lib.scheduler_next_switch
        times_s = [int(next_s(self._scheduler)) for next_s in later]
        return min([*self._announcements[:1], *(time_s for time_s in times_s if time_s < NEVER_S)], default=None)

    @property
    def reacts_to_ends(self) -> Ends:
        """While a cap holds, what the policy says."""
        has_cap = self._watts is not None and lib.scheduler_row(self._scheduler).cap_uw != NO_CAP
        return self._watts.reacts_to_ends if self._watts is not None and has_cap else "unheard"

    def advance(self, now_s: int) -> bool:
        """Nodes are off or on; joules are read; the next row begins, or a cap becomes known and all is planned anew."""
        lib.scheduler_settle(self._scheduler, now_s)
        if lib.scheduler_next_reading(self._scheduler) <= now_s:
            lib.scheduler_read_joules(self._scheduler, now_s, self._meter())
        if min([*self._announcements[:1], int(lib.scheduler_next_row(self._scheduler))]) > now_s:
            return False
        if self._announcements and self._announcements[0] <= now_s:
            self._announcements = [time_s for time_s in self._announcements if time_s > now_s]
            self._plan(now_s)
        lib.scheduler_advance(self._scheduler, now_s)
        return True

    def react(self, now_s: int) -> Reaction:
        """Do to running jobs what the policy says."""
        reaction = reaction_of(self._governor, self._scheduler, self._jobs.jobs, now_s)
        for job in reaction.kill:
            lib.scheduler_kill(self._scheduler, now_s, job)
        for job, level in reaction.level.items():
            lib.scheduler_set_level(self._scheduler, now_s, job, level)
        return reaction

    def expected_end_s(self, job: int) -> int:
        """When a running job is expected to end."""
        return int(lib.scheduler_expected_end(self._scheduler, job))

    def _plan(self, now_s: int) -> None:
        rows = self._governor.plan(now_s)
        if lib.scheduler_plan(self._scheduler, c_rows(rows), len(rows)) < 0:
            raise MemoryError


def reaction_of(governor: Governor, scheduler: Any, jobs: Jobs, now_s: int) -> Reaction:
    """What *react* answers for a native scheduler."""
    row = lib.scheduler_row(scheduler)
    present = Row(row.from_s, row.cap_uw, row.kept, row.idle_uw, row.off_uw, row.switching_uw, row.bonus_uw)
    return governor.react(
        now_s,
        present,
        int(lib.scheduler_plan_uw(scheduler, now_s)),
        lambda: running(scheduler, jobs, governor.watts),
    )


def reorder(scheduler: Any, jobs: Jobs, order: Order, now_s: int, room: Int32s) -> None:
    """Put the native queue into the order that a policy's Python phase says; ``room`` holds n_jobs."""
    n = len(jobs)
    queued = room[: lib.scheduler_queue(scheduler, pointer("int32_t", room))]
    estimate_s = np.frombuffer(ffi.buffer(lib.scheduler_first_estimates(scheduler), 8 * n), np.int64)
    positions = served(order, columns(jobs, queued, estimate_s), now_s)
    lib.scheduler_reorder(scheduler, pointer("int32_t", np.ascontiguousarray(queued[positions])))


class NativeReplay:
    """The replay of a whole log in C. Deterministic: equal input gives equal bits. With ``watts`` it meters them.

    ``users``: the log's numbers of users 0, 1, ..., for priorities that know some of them.
    """

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        processors: int,
        watts: Watts | None = None,
        caps: Sequence[Cap] = (),
        users: Sequence[int] | None = None,
    ) -> None:
        idle_off = c_idle_off(composition, watts)
        self.jobs = jobs
        self.watts = watts
        self._order = composition.order
        self._c_jobs = CJobs(jobs)
        self._submit = pointer("int64_t", np.ascontiguousarray(jobs.submit_s, np.int64))
        self._replay = _take(
            lib.replay_new(
                c_composition(composition, processors),
                self._c_jobs.c,
                self._submit,
                BATCHES[composition.ties],
                self._order is not None or (watts is not None and watts.new_predictor is not None),
            ),
            lib.replay_free,
        )
        self._predicting: Predicting | None = None
        self._scheduler = lib.replay_scheduler(self._replay)
        self._room = np.empty(len(jobs), np.int32)
        if composition.priority is not None:
            users = users or range(jobs.n_users)
            if len(users) < jobs.n_users:
                raise ValueError(f"{len(users)} numbers for {jobs.n_users} users")
            self._c_priority = CPriority(composition.priority, users, watts)
            if lib.scheduler_set_priority(self._scheduler, self._c_priority.c) < 0:
                raise MemoryError
        if watts is not None:
            first_s = int(jobs.submit_s[0]) if len(jobs) else 0
            self._governor = Governor(watts, composition.power, caps, first_s)
            self._predicting = Predicting(watts, jobs) if watts.new_predictor else None
            self._c_watts = CWatts(watts, self._governor.ledger(first_s), self._predicting)
            self._announcements = list(self._governor.announced_s)
            self._announced = ffi.new("int64_t[]", self._announcements)
            c = self._announced, len(self._announced)
            if lib.replay_set_power(self._replay, self._c_watts.c, *c) < 0:
                raise MemoryError
            if idle_off is not None and lib.replay_set_idle_off(self._replay, idle_off) < 0:
                raise MemoryError
            self._plan(first_s)

    def _plan(self, now_s: int) -> None:
        rows = self._governor.plan(now_s)
        if lib.replay_replan(self._replay, c_rows(rows), len(rows)) < 0:
            raise MemoryError

    def _follow(self) -> None:
        """A cap has become known, or a row of the plan begins."""
        now_s = lib.replay_now(self._replay)
        if self._announcements and self._announcements[0] <= now_s:
            self._announcements = [time_s for time_s in self._announcements if time_s > now_s]
            self._plan(now_s)
        reaction = reaction_of(self._governor, self._scheduler, self.jobs, now_s)
        for job in reaction.kill:
            lib.replay_kill(self._replay, job)
        for job, level in reaction.level.items():
            if lib.replay_set_level(self._replay, job, level) < 0:
                raise MemoryError

    def keep_queued(self, waiting: int) -> None:
        """Closed loop: the next job is submitted whenever fewer than ``waiting`` wait."""
        lib.replay_keep_queued(self._replay, waiting)

    def run(self, until_ended: int) -> bool:
        """Go on until so many jobs have ended in all; False when nothing is left to happen."""
        while True:
            status = lib.replay_run(self._replay, until_ended)
            if status == lib.REPLAY_PASS_DUE:
                now_s = lib.replay_now(self._replay)
                if self._predicting is not None:
                    ends = np.frombuffer(ffi.buffer(lib.replay_ends(self._replay), 8 * len(self.jobs)), np.int64)
                    self._predicting.follow(now_s, self.jobs.submit_s, ends)
                if self._order is not None:
                    reorder(self._scheduler, self.jobs, self._order, now_s, self._room)
            elif status == lib.REPLAY_POWER_DUE:
                self._follow()
            elif status == lib.REPLAY_NO_MEMORY:
                raise MemoryError
            elif status == lib.REPLAY_OVERFULL:
                raise RuntimeError("the scheduler started more jobs than the machine holds: a defect of the scheduler")
            else:
                return bool(status == lib.REPLAY_PAUSED)

    @property
    def ended(self) -> int:
        """Jobs that have ended."""
        return int(lib.replay_ended(self._replay))

    @property
    def passes(self) -> int:
        """Scheduling passes so far."""
        return int(lib.replay_passes(self._replay))

    @property
    def now_s(self) -> int:
        """The time of the last event."""
        return int(lib.replay_now(self._replay))

    @property
    def submit_s(self) -> Int64s:
        """When each job was submitted: with ``keep_queued`` not when the table of jobs says."""
        return self._column(lib.replay_submits(self._replay), np.int64)

    @property
    def start_s(self) -> Int64s:
        """When each job was started, -1: not (yet)."""
        return self._column(lib.replay_starts(self._replay), np.int64)

    @property
    def end_s(self) -> Int64s:
        """When each job ended, -1: not (yet)."""
        return self._column(lib.replay_ends(self._replay), np.int64)

    @property
    def level(self) -> Int32s:
        """Each job's last frequency, 0 the highest. Only with watts, as all that follows up to ``power``."""
        return self._column(lib.scheduler_levels(self._scheduler), np.int32)

    @property
    def kills(self) -> Int32s:
        """How often each job was killed."""
        return self._column(lib.replay_kills(self._replay), np.int32)

    @property
    def lost(self) -> Int64s:
        """Processor-seconds of each job's killed runs."""
        return self._column(lib.replay_lost(self._replay), np.int64)

    @property
    def job_j(self) -> npt.NDArray[np.float64]:
        """Joules of each job, killed runs included."""
        return self._column(lib.replay_job_uj(self._replay), np.float64) / UW

    @property
    def lost_j(self) -> npt.NDArray[np.float64]:
        """Joules of each job's killed runs."""
        return self._column(lib.replay_lost_uj(self._replay), np.float64) / UW

    @property
    def boots(self) -> int:
        """How many nodes have booted for a job since they went off idle."""
        return int(lib.scheduler_boots(self._scheduler))

    @property
    def joules(self) -> dict[str, float]:
        """Joules of the ``cluster``, of ``idle`` processors with chassis and racks, ``off`` nodes, and
        ``switching``."""
        found = lib.replay_joules(self._replay)
        return {
            "cluster": found.cluster_uj / UW,
            "idle": found.idle_uj / UW,
            "off": found.off_uj / UW,
            "switching": found.switching_uj / UW,
        }

    @property
    def power_uw(self) -> tuple[Int64s, Int64s]:
        """The cluster's microwatts, each from a time until the next, as (times, microwatts)."""
        table = self._power_table()
        return table[:, 0].copy(), table[:, 1].copy()

    @property
    def power(self) -> tuple[Int64s, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The cluster's watts and cap (infinite: none), each from a time until the next, as (times, watts, caps)."""
        table = self._power_table()
        caps = np.where(table[:, 2] == NO_CAP, np.inf, table[:, 2] / UW)
        return table[:, 0].astype(np.int64), table[:, 1] / UW, caps

    def _power_table(self) -> Int64s:
        count = ffi.new("int64_t *")
        steps = lib.replay_power(self._replay, count)
        if not count[0]:
            return np.empty((0, 3), np.int64)
        return np.frombuffer(ffi.buffer(steps, 24 * count[0]), np.int64).reshape(-1, 3)

    def power_csv(self) -> bytes:
        """``power`` as lines of text, the watts with six decimals and nothing where there is no cap."""
        count = ffi.new("int64_t *")
        steps = lib.replay_power(self._replay, count)
        room = 72 * count[0] + 1
        out = ffi.new("char[]", room)
        return bytes(ffi.buffer(out, lib.power_csv_write(steps, count[0], out)))

    @property
    def used(self) -> list[float]:
        """By user, what was used lately of what the machine had to give (processor-seconds). Only with priorities."""
        now_s = lib.replay_now(self._replay)
        return [lib.scheduler_used(self._scheduler, now_s, user) for user in range(self.jobs.n_users)]

    @property
    def first_estimate_s(self) -> Int64s:
        """What each job was first taken to run."""
        return self._column(lib.scheduler_first_estimates(self._scheduler), np.int64)

    @property
    def corrections(self) -> Int32s:
        """How often each job outlived its estimate."""
        return self._column(lib.scheduler_corrections(self._scheduler), np.int32)

    @property
    def overtook(self) -> Bools:
        """Which jobs were started past an earlier one of the queue."""
        return self._column(lib.scheduler_overtook(self._scheduler), np.bool_)

    @property
    def interval_first(self) -> Int64s:
        """Where each job's processors begin in ``intervals``."""
        return self._column(lib.replay_interval_first(self._replay), np.int64)

    @property
    def interval_count(self) -> Int32s:
        """How many intervals of processors each job got."""
        return self._column(lib.replay_interval_count(self._replay), np.int32)

    @property
    def c_intervals(self) -> Any:
        """``interval_t *``; belongs to this replay."""
        return lib.replay_intervals(self._replay)

    def processors(self, job: int) -> list[tuple[int, int]]:
        """The processors of a job as (first, last), both included."""
        first, count = self.interval_first[job], self.interval_count[job]
        return [(one.first, one.last) for one in self.c_intervals[int(first) : int(first + count)]]

    def _column(self, source: Any, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
        return copied(source, len(self.jobs), dtype)
