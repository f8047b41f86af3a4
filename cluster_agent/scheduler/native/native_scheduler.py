"""The scheduler in C (``csrc/scheduler.h``) for a loop of events. ``native_replay`` has the replay of a whole log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_agent._native import ffi, lib
from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import UW
from cluster_agent.scheduler.energy_window import Stored
from cluster_agent.scheduler.interfaces import Meter, unmetered
from cluster_agent.scheduler.job_columns import NEVER_S, Float64s, Int32s, Jobs
from cluster_agent.scheduler.native.governor import NO_CAP, Governor, Predicting, Row, Watts, running_of
from cluster_agent.scheduler.native.native_tables import (
    CJobs,
    CPriority,
    CWatts,
    c_caps,
    c_composition,
    c_idle_off,
    c_portfolio,
    c_rows,
    c_score,
    checked,
    owned,
    placed,
    pointer,
)
from cluster_agent.scheduler.policy_phases import Composition, Known
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.power_phases import Ends, Reaction, Running
from cluster_agent.scheduler.queue import nothing_known
from cluster_agent.scheduler.recorded import Recorded

if TYPE_CHECKING:  # a short replay is as long as its imports
    from cluster_agent.scheduler.native.native_moldable import CMoldable
    from cluster_agent.scheduler.native.native_unlike import CUnlike
    from cluster_agent.scheduler.native.own_phases import OwnOrder, OwnPhases
    from cluster_agent.scheduler.plans.looks import Look
    from cluster_agent.scheduler.switches.limits import CLimits
    from cluster_agent.scheduler.switches.queue_windows import OpenQueues
    from cluster_agent.scheduler.switches.reservations import Reserved
    from cluster_agent.scheduler.unlike_nodes.node_aware import Placed


def running(scheduler: Any, jobs: Jobs, watts: Watts) -> Running:
    """The running jobs of a native scheduler as *react* sees them."""
    room = ffi.new("int32_t[]", max(len(jobs), 1))
    start_s = lib.scheduler_decisions(scheduler).decided_s
    rows = []
    for job in room[0 : lib.scheduler_running(scheduler, room)]:
        width, level = int(jobs.width[job]), lib.scheduler_level(scheduler, job)
        limit_s = lib.scheduler_finish(scheduler, job, int(jobs.request_s[job]))
        drawn_uw = width * (lib.scheduler_extra_uw(scheduler, job, level) + watts.idle_uw)
        rows.append((start_s[job], job, width, level, watts.lowest_of(job), limit_s, drawn_uw / UW))
    return running_of(rows)


class NativeScheduler:
    """The native scheduler behind ``interfaces.Scheduler``; with ``watts`` it plans with those and the caps; with
    ``unlike`` on nodes that differ, with ``moldable`` in one of several configurations (see ``NativeReplay``)."""

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        processors: int,
        watts: Watts | None = None,
        caps: Sequence[Cap] = (),
        meter: Meter = unmetered,
        users: Sequence[int] | None = None,
        unlike: CUnlike | None = None,
        moldable: CMoldable | None = None,
        full_w: float | None = None,
        recorded: Recorded | None = None,
        looks: Sequence[Look] | None = None,
        limits: CLimits | None = None,
    ) -> None:
        """``full_w``: with priorities, what a processor draws at full load, if jobs are metered without ``watts``.
        ``recorded``: a warm start. ``looks``: those of a portfolio, to be repeated."""
        self._idle_off = c_idle_off(composition, watts)
        self._meter = meter
        self._jobs = CJobs(jobs)
        self._scheduler = owned(
            lib.scheduler_new(c_composition(composition, processors), self._jobs.c), lib.scheduler_free
        )
        self._c_priority = set_native_order(self._scheduler, composition, jobs, users, watts, full_w)
        if composition.portfolio is not None:
            self._portfolio = c_portfolio(self._scheduler, composition, processors, looks, keeps=False)
        self._moldable = moldable
        if moldable is not None:
            moldable.join(self._scheduler)
        self._unlike = unlike
        self._capped = unlike if unlike is not None else moldable
        self._cap_seen_s = -1 if unlike is not None else 0
        self._passed_s = 0
        if unlike is not None:
            checked(lib.scheduler_set_nodes(self._scheduler, unlike.c))
        self._keep_to(limits)
        if recorded is not None:
            lib.scheduler_decides_from(self._scheduler, recorded.until_s)
        self._recorded_level = {} if recorded is None else {one.job: one.level for one in recorded.starts}
        self._planned = unlike.planned if unlike is not None else None
        if self._planned is not None:
            self._planned.join(self._scheduler)
        self._starts = ffi.new("int32_t[]", max(len(jobs), 1))
        self._room = np.empty(len(jobs), np.int32)
        self._watts = watts
        self._predicting: Predicting | None = None
        if watts is not None:
            first_s = int(jobs.submit_s[0]) if len(jobs) else 0
            self._governor = Governor(watts, composition.power, caps, first_s)
            self._predicting = Predicting(watts, jobs) if watts.new_predictor else None
            self._c_watts = CWatts(watts, self._governor.first_reading_s(first_s), self._predicting)
            checked(lib.scheduler_set_power(self._scheduler, self._c_watts.c))
            if self._idle_off is not None:
                checked(lib.scheduler_set_idle_off(self._scheduler, self._idle_off.c))
            self._plan(first_s)
        known = known_of(watts, self._predicting, unlike, jobs)
        self._order, self._own = own_order_and_phases(composition, self._scheduler, jobs, known)

    def _keep_to(self, limits: CLimits | None) -> None:
        self._limits = limits
        if limits is not None:
            checked(lib.scheduler_set_limits(self._scheduler, limits.c))

    def reserve(self, reserved: Sequence[Reserved]) -> None:
        """Keep processors for these reservations from now on; with limits, if only empty ones."""
        assert self._limits is not None
        self._limits.reserve(reserved)
        lib.scheduler_reserve(self._scheduler, self._limits.c.reserved, len(reserved))

    def open(self, queues: OpenQueues) -> None:
        """These are the windows of the same queues from now on."""
        assert self._limits is not None
        self._limits.open(queues)
        lib.scheduler_open(self._scheduler, self._limits.c.opens, self._limits.c.windows)

    def submit(self, now_s: int, job: int) -> bool:
        """The job joins the queue; True if this calls for a pass."""
        if self._predicting is not None:
            self._predicting.submit(job)
        if self._unlike is not None:
            self._unlike.submitted(job)
        is_pass_due = bool(lib.scheduler_submit(self._scheduler, now_s, job))
        if self._own is not None:
            self._own.check()
        return is_pass_due

    def end(self, job: int) -> None:
        """The running job has ended."""
        if self._predicting is not None:
            self._predicting.end(job)
        lib.scheduler_end(self._scheduler, job)
        if self._unlike is not None:
            self._unlike.ended(job, sorted(self.queue()))

    def overrun(self, job: int) -> int:
        """The running job runs longer than its estimate: returns its new expected end."""
        return int(lib.scheduler_overrun(self._scheduler, job))

    def carry_out(self, now_s: int, job: int) -> None:
        """The waiting job starts now, as recorded."""
        if lib.scheduler_carry_out(self._scheduler, now_s, job, self._recorded_level.get(job, 0)) < 0:
            raise RuntimeError("defect: more jobs run than there are processors")
        if self._unlike is not None:
            self._unlike.started([job])

    def adopt(
        self, submitted_s: int, started_s: int, job: int, estimate_s: int = 0, level: int = 0,
        nodes: Sequence[int] = (), counts: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        """Add a job that runs already. ``estimate_s``: how long the scheduler is to expect it to run (0: the policy's
        estimate); ``level``: its frequency, -1: it draws no more than idle processors; ``nodes``: where its units are,
        if nodes differ, and ``counts``: how many on each, if more than one. Returns its expected end."""
        if self._unlike is not None:
            self.place(job, nodes, counts)
        if lib.scheduler_adopt(self._scheduler, submitted_s, started_s, estimate_s, job, level) < 0:
            raise RuntimeError("defect: more jobs run than there are processors")
        return self.expected_end_s(job)

    def place(self, job: int, nodes: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """With nodes that differ: the job has so many units, or one, on each of these, wherever it was started."""
        placed = list(zip(nodes, counts or [1] * len(nodes), strict=True))
        checked(lib.scheduler_place(self._scheduler, job, placed, len(placed)))

    def placed(self, job: int) -> Placed:
        """With nodes that differ: those of a job that was started."""
        return placed(self._scheduler, job)

    def past(self, submitted_s: int, started_s: int, ended_s: int, job: int, joules: float | None) -> None:
        """Learn from a job that ended before: its run time, and the joules that it took, if that is known. Such jobs
        come first, in the order of their ends."""
        metered_j = -1.0 if joules is None else joules
        checked(lib.scheduler_past(self._scheduler, submitted_s, started_s, ended_s, metered_j, job))

    def metered(self, job: int, joules: float) -> None:
        """All that a running job has taken; before it ends, for priorities."""
        lib.scheduler_metered(self._scheduler, job, joules)

    @property
    def stored(self) -> Stored | None:
        """The store of a budget of joules; None: there is no budget, or its window is not open."""
        if self._watts is None or self._watts.budget is None:
            return None
        store = lib.scheduler_store(self._scheduler)
        known = store.read_s, store.at_s, store.stored_j, store.drawn_uw
        return Stored(self._watts.budget.from_s, *known) if store.is_open else None

    def stored_by(self, at_s: int) -> float | None:
        """What it will have stored by then, as planned."""
        budget, stored = self._watts.budget if self._watts is not None else None, self.stored
        return None if stored is None or budget is None else stored.at(at_s, budget)

    def restore(self, now_s: int, stored: Stored) -> bool:
        """Go on with the store of the same window, which another scheduler has left; false: it is of another. The
        running jobs are known."""
        budget = self._watts.budget if self._watts is not None else None
        if budget is None or stored.from_s != budget.from_s:
            return False
        if lib.scheduler_next_reading(self._scheduler) <= now_s:
            self._meter()
            lib.scheduler_restore_joules(self._scheduler, now_s, stored.at(now_s, budget))
        return True

    def withdraw(self, job: int) -> None:
        """Remove the job, waiting or running, without learning from it; this calls for a pass."""
        lib.scheduler_withdraw(self._scheduler, job)

    def lose(self, job: int) -> None:
        """The running job is lost with a node, and waits again at its place in the queue; this calls for a pass."""
        lib.scheduler_lose(self._scheduler, job)

    def requeue(self, job: int) -> None:
        """A job that was killed waits again, at its place in the queue; this calls for a pass."""
        lib.scheduler_requeue(self._scheduler, job)

    def announce(self, caps: Sequence[Cap], now_s: int, is_reacting: bool) -> None:
        """From now on these caps are known, in place of all before. ``is_reacting``: *react* is called as well."""
        self._governor.announce(caps, now_s)
        self._plan(now_s)
        if is_reacting:
            self._governor.announced_s.insert(0, now_s)

    @property
    def allowed_uw(self) -> int:
        """What a job that runs alone may draw above idle at the best of times, by the caps that are known."""
        return self._governor.allowed_uw

    def set_cap(self, cap: PowerCap, now_s: int) -> None:
        """With nodes that differ, or configurations: from now on this cap is known, in place of the one before; this
        calls for a pass."""
        assert self._capped is not None
        self._capped.cap, self._capped.c_cap = cap, c_caps(cap)
        if self._planned is not None:
            self._planned.cap = cap
        lib.scheduler_set_caps(self._scheduler, self._capped.c_cap[0])
        self._cap_seen_s = now_s

    def queue(self) -> list[int]:
        """The jobs that wait, in the order in which they were served last."""
        lib.scheduler_order(self._scheduler, self._passed_s)
        return [int(job) for job in queued(self._scheduler, self._room)]

    def decide(self, now_s: int) -> list[int]:
        """One pass: the jobs to start now."""
        if self._predicting is not None:
            self._predicting.learn()
        if self._unlike is not None:
            self._unlike.meter()
        if self._order is not None:
            self._order.before_pass(now_s)
        count = lib.scheduler_decide(self._scheduler, now_s, self._starts)
        self._passed_s = now_s
        for caller in (self._moldable, self._own):
            if caller is not None:
                caller.check()
        checked(count)
        started = list(self._starts[0:count])
        if self._unlike is not None:
            self._unlike.started(started)
        return started

    @property
    def preempted(self) -> list[int]:
        """The best-effort jobs that the last pass has ended, so that others start: they wait again once they are
        ``requeue``-d."""
        count = ffi.new("int32_t *")
        found = lib.scheduler_preempted(self._scheduler, count)
        return list(found[0 : count[0]]) if count[0] else []

    def level(self, job: int) -> int:
        """The frequency of a running job."""
        return 0 if self._watts is None else int(lib.scheduler_level(self._scheduler, job))

    def begins_s(self, now_s: int, job: int) -> int:
        """When a job begins to run whose start was decided now."""
        return int(lib.scheduler_begins(self._scheduler, job))

    def next_change_s(self) -> int | None:
        """The next row of the plan, announcement, reading of joules, or change of a node or of such a cap."""
        if self._capped is not None:
            change_s = self._capped.cap.next_change_s(self._cap_seen_s)
            wake_s = self._planned.wake_s if self._planned is not None else NEVER_S
            return change_s if wake_s == NEVER_S else min(wake_s, wake_s if change_s is None else change_s)
        if self._watts is None:
            return None
        later = lib.scheduler_next_row, lib.scheduler_next_reading, lib.scheduler_next_switch
        times_s = [int(next_s(self._scheduler)) for next_s in later]
        return min([*self._governor.announced_s[:1], *(time_s for time_s in times_s if time_s < NEVER_S)], default=None)

    @property
    def reacts_to_ends(self) -> Ends:
        """The policy's choice while a cap is in force."""
        has_cap = self._watts is not None and lib.scheduler_row(self._scheduler).cap_uw != NO_CAP
        return self._watts.reacts_to_ends if self._watts is not None and has_cap else "unheard"

    def advance(self, now_s: int) -> bool:
        """Nodes are off or on, joules are read, a row begins, or a cap becomes known and all is planned again."""
        if self._capped is not None:
            self._cap_seen_s = now_s
            if self._planned is not None and self._planned.wake_s <= now_s:
                self._planned.wake_s = NEVER_S
            return False
        lib.scheduler_settle(self._scheduler, now_s)
        if lib.scheduler_next_reading(self._scheduler) <= now_s:
            lib.scheduler_read_joules(self._scheduler, now_s, self._meter())
        if min([*self._governor.announced_s[:1], int(lib.scheduler_next_row(self._scheduler))]) > now_s:
            return False
        if self._governor.is_plan_due(now_s):
            self._plan(now_s)
        lib.scheduler_advance(self._scheduler, now_s)
        return True

    def react(self, now_s: int) -> Reaction:
        """Apply the policy's *react* to the running jobs."""
        reaction = reaction_of(self._governor, self._scheduler, self._jobs.jobs, now_s)
        for job in reaction.kill:
            lib.scheduler_kill(self._scheduler, now_s, job)
        for job, level in reaction.level.items():
            lib.scheduler_set_level(self._scheduler, now_s, job, level)
        return reaction

    def expected_end_s(self, job: int) -> int:
        """When a running job is expected to end."""
        return int(lib.scheduler_expected_end(self._scheduler, job))

    def nodes_off(self, now_s: int) -> tuple[int, int]:
        """How many nodes are off for a cap by plan, or going off; the same with those that boot after it."""
        return (
            (self._governor.nodes_off(now_s), self._governor.nodes_away(now_s)) if self._watts is not None else (0, 0)
        )

    def _plan(self, now_s: int) -> None:
        rows = self._governor.plan(now_s)
        if self._predicting is not None:
            self._predicting.allow(self._governor.allowed_uw, queued(self._scheduler, self._room))
        checked(lib.scheduler_plan(self._scheduler, c_rows(rows), len(rows)))


def reaction_of(governor: Governor, scheduler: Any, jobs: Jobs, now_s: int) -> Reaction:
    """The result of *react* for a native scheduler."""
    row = lib.scheduler_row(scheduler)
    present = Row(row.from_s, row.cap_uw, row.kept, row.idle_uw, row.off_uw, row.switching_uw, row.bonus_uw)
    return governor.react(
        now_s,
        present,
        int(lib.scheduler_plan_uw(scheduler, now_s)),
        lambda: running(scheduler, jobs, governor.watts),
    )


def set_native_order(
    scheduler: Any,
    composition: Composition,
    jobs: Jobs,
    users: Sequence[int] | None,
    watts: Watts | None,
    full_w: float | None = None,
) -> CPriority | None:
    """Order a native queue by priority or score if the policy has one; keep the result as long as the scheduler."""
    if composition.score is not None:
        c_one, _steps = c_score(composition.score)
        checked(lib.scheduler_set_score(scheduler, c_one))
    if composition.priority is None:
        return None
    users = users or range(jobs.n_users)
    if len(users) < jobs.n_users:
        raise ValueError(f"{len(users)} numbers for {jobs.n_users} users")
    if full_w is None:
        full_w = watts.busy_uw[0] / UW if watts else 1.0
    priority = CPriority(composition.priority, users, full_w)
    checked(lib.scheduler_set_priority(scheduler, priority.c))
    return priority


def queued(scheduler: Any, room: Int32s) -> Int32s:
    """The native queue in its order; ``room`` has place for n_jobs, and for the result until it is used again."""
    return room[: lib.scheduler_queue(scheduler, pointer("int32_t", room))]


def known_of(watts: Watts | None, predicting: Predicting | None, unlike: CUnlike | None, jobs: Jobs) -> Known:
    """The columns of the queue that these resources have."""
    if unlike is not None:
        return unlike.known
    if watts is None:
        return nothing_known
    each_uw, plan_w = watts.job_plan_uw if predicting is None else predicting.job_plan_uw, watts.plan_uw[0] / UW

    def known(job: Int32s) -> dict[str, Float64s]:
        each_w = np.full(len(job), plan_w) if each_uw is None else each_uw[job] / UW
        return {"watts": jobs.width[job] * each_w}

    return known


def own_order_and_phases(
    composition: Composition, scheduler: Any, jobs: Jobs, known: Known
) -> tuple[OwnOrder | None, OwnPhases | None]:
    """The phases that are functions in Python, for a native scheduler; None where there are none."""
    is_own = callable(composition.estimate) or callable(composition.backfill)
    if composition.order is None and not is_own:
        return None, None
    from cluster_agent.scheduler.native.own_phases import (
        OwnOrder,
        OwnPhases,
    )  # a short replay is as long as its imports

    order = None if composition.order is None else OwnOrder(composition, scheduler, jobs, known)
    return order, OwnPhases(composition, scheduler, jobs, known) if is_own else None
