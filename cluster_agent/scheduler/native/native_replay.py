"""What the native engine is made of, for one world and one policy: the same in a replay of a whole log, in a loop of
events, and on a live partition (``NativeScheduler``). And the replay of a whole log in C (``csrc/replay/replay.h``),
the scheduler inside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import UW
from cluster_agent.scheduler.job_columns import Bools, Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.governor import NO_CAP, Governor, Predicting, Row, Watts
from cluster_agent.scheduler.native.moment import Moment
from cluster_agent.scheduler.native.native_scheduler import (
    known_of,
    own_order_and_phases,
    queued,
    reaction_of,
    set_native_order,
)
from cluster_agent.scheduler.native.native_tables import (
    CJobs,
    CWatts,
    Scalar,
    c_composition,
    c_idle_off,
    c_portfolio,
    c_rows,
    c_score,
    checked,
    copied,
    looks_so_far,
    owned,
    placed,
    pointer,
)
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.recorded import Recorded, StartsError
from cluster_agent.scheduler.world import World

if TYPE_CHECKING:  # a short replay is as long as its imports
    from cluster_agent.scheduler.native.answering import Answering
    from cluster_agent.scheduler.native.native_moldable import CMoldable
    from cluster_agent.scheduler.native.native_unlike import CUnlike
    from cluster_agent.scheduler.native.own_phases import OwnOrder, OwnPhases
    from cluster_agent.scheduler.plans.looks import Look
    from cluster_agent.scheduler.switches.failures import CFailures
    from cluster_agent.scheduler.switches.limits import CLimits
    from cluster_agent.scheduler.unlike_nodes.node_aware import Placed

PASS_DUE: Final = lib.REPLAY_PASS_DUE
BATCHES: Final = {"instant": lib.BATCH_INSTANT, "sc15": lib.BATCH_EVENT}


class Looped(Protocol):
    """A closed loop: ``jobs`` are filled in as they come."""

    jobs: Jobs
    answers: Answering

    def in_order(self, predictor: Any) -> Any:
        """The predictor, which knows the jobs by their places in the trace."""


class Engine:
    """``composition``, ``jobs``, ``processors`` and ``given`` are the native engine's arguments."""

    def __init__(self, world: World, composition: Composition, looped: Looped | None = None) -> None:
        self.composition, self.jobs = composition, world.jobs if looped is None else looped.jobs
        self.unlike: CUnlike | None = None
        self.moldable: CMoldable | None = None
        self.given: dict[str, Any] = {"recorded": world.recorded}
        self.limits: CLimits | None = None
        if world.limits is not None:
            from cluster_agent.scheduler.switches.limits import CLimits  # only here: most worlds have none

            self.limits = CLimits(world.limits) if looped is None else CLimits(world.limits, looped.answers.table)
            self.given["limits"] = self.limits
        if world.nodes is not None:
            self.unlike = self._on_nodes(world, looped)
            self.composition, self.processors = self.unlike.phases, self.unlike.processors
            self.given["unlike"] = self.unlike
            return
        source = world.on_processors
        self.processors = source.processors
        if world.ways is not None:
            self.moldable = self._in_ways(world, looped)
            self.jobs = self.moldable.jobs(self.jobs)
            self.given["moldable"] = self.moldable
            return
        users = source.users if composition.priority else None
        self.given |= {"watts": world.watts, "caps": world.caps, "users": users, "looks": world.looks}

    @property
    def switches(self) -> dict[str, int]:
        """What of the site is modelled, and how many jobs each has changed so far."""
        return {name: count for part in (self.unlike, self.limits) if part for name, count in part.switches.items()}

    def _on_nodes(self, world: World, looped: Looped | None) -> CUnlike:
        # only here: a short replay is as long as its imports
        from cluster_agent.scheduler.native.native_unlike import CUnlike

        assert world.nodes is not None
        power = None if world.new_predictor is None else world.new_predictor(world.node_trace, world.nodes)
        given = self.composition, self.jobs, world.nodes, world.caps
        if looped is None:
            return CUnlike(*given, power, world.plan, on=world.on, say=world.say, shared=world.shared)
        return CUnlike(*given, None if power is None else looped.in_order(power), world.plan, looped.answers.table)

    def _in_ways(self, world: World, looped: Looped | None) -> CMoldable:
        from cluster_agent.scheduler.native.native_moldable import CMoldable  # as above

        assert world.ways is not None
        given = self.composition, world.jobs, world.ways, self.processors, world.caps
        return CMoldable(*given) if looped is None else CMoldable(*given, looped.answers.table)


class _Column(Generic[Scalar]):
    """A column of ``replayed_t``, copied each time."""

    def __init__(self, name: str, dtype: type[Scalar]) -> None:
        self._source, self._dtype = attrgetter(name), dtype

    def __get__(self, replay: NativeReplay, owner: object) -> npt.NDArray[Scalar]:
        return replay._column(self._source(replay._so_far), self._dtype)


def _pauses(composition: Composition, watts: Watts | None, unlike: CUnlike | None) -> int:
    """Before which passes something in Python is called."""
    if unlike is not None or (watts is not None and watts.new_predictor is not None):
        return int(lib.PAUSES_PASSES)
    if composition.order is None:
        return int(lib.PAUSES_NOWHERE)
    return int(lib.PAUSES_PASSES if composition.order_at == "passes" else lib.PAUSES_WHERE_ORDERED)


class NativeReplay:
    """The replay of a whole log in C. Deterministic: equal input gives equal bits. With ``watts`` it meters them.

    ``users``: the log's numbers of users 0, 1, ..., for priorities that know some of them. ``answering``: a closed
    loop; then ``jobs`` and the columns of ``watts`` are the tables that it fills. ``moldable``: jobs can run in several
    ways; ``jobs`` are its own, ``processors`` are nodes. ``unlike``: nodes differ; ``composition`` and ``processors``
    are its own. ``recorded``: a warm start; not with the two before. ``looks``: those of a portfolio, to be repeated.
    ``is_stepped``: its caller decides (``csrc/steps.h``); only if nothing clashes with ``STEPPED``.
    """

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        processors: int,
        watts: Watts | None = None,
        caps: Sequence[Cap] = (),
        users: Sequence[int] | None = None,
        answering: Answering | None = None,
        moldable: CMoldable | None = None,
        unlike: CUnlike | None = None,
        recorded: Recorded | None = None,
        looks: Sequence[Look] | None = None,
        limits: CLimits | None = None,
        failures: CFailures | None = None,
        is_stepped: bool = False,
    ) -> None:
        self._idle_off, pauses = c_idle_off(composition, watts), _pauses(composition, watts, unlike)
        self.jobs = jobs
        self.watts = watts
        self._c_jobs = CJobs(jobs)
        self._submit = pointer("int64_t", np.ascontiguousarray(jobs.submit_s, np.int64))
        self._kept: Bools | None = None
        self._since: Moment | None = None
        self._replay = owned(
            lib.replay_new(
                c_composition(composition, processors),
                self._c_jobs.c,
                self._submit,
                BATCHES[composition.ties],
                pauses,
            ),
            lib.replay_free,
        )
        self._processors = processors
        if is_stepped:
            checked(lib.replay_set_stepped(self._replay))
        if answering is not None:
            from cluster_agent.scheduler.native.answering import CAnswering

            self._c_answering = CAnswering(answering, jobs)
            checked(lib.replay_answer(self._replay, self._c_answering.c))
        self._predicting: Predicting | None = None
        self._scheduler = lib.replay_scheduler(self._replay)
        self._moldable, self._unlike, self._limits, self._failures = moldable, unlike, limits, failures
        self._planned = unlike.planned if unlike is not None else None
        self._join_nodes()
        if recorded is not None:
            self._c_recorded = ffi.new("recorded_t[]", recorded.starts)
            lib.replay_set_record(self._replay, self._c_recorded, len(recorded.starts), recorded.until_s)
        self.pass_s: list[float] = []
        """Only on nodes: processor seconds of each pass, from the order on until the next event."""
        self.longest_queue = 0
        """Only on nodes: the most jobs that waited before a pass."""
        self._room = np.empty(len(jobs), np.int32)
        self._c_priority = set_native_order(self._scheduler, composition, jobs, users, watts)
        self._portfolio: list[Any] | None = None
        if composition.portfolio is not None:
            self._looked = looks, len(composition.portfolio.members)
            self._portfolio = c_portfolio(self._scheduler, composition, processors, looks, keeps=True)
        if watts is not None:
            first_s = int(jobs.submit_s[0]) if len(jobs) else 0
            self._governor = Governor(watts, composition.power, caps, first_s)
            self._predicting = Predicting(watts, jobs) if watts.new_predictor else None
            self._c_watts = CWatts(watts, self._governor.first_reading_s(first_s), self._predicting)
            self._announced = ffi.new("int64_t[]", self._governor.announced_s)
            c = self._announced, len(self._announced)
            checked(lib.replay_set_power(self._replay, self._c_watts.c, *c))
            if self._idle_off is not None:
                checked(lib.replay_set_idle_off(self._replay, self._idle_off.c))
            self._plan(first_s)
        order, own = self._own_phases(composition)
        stops_where_ordered = pauses == lib.PAUSES_WHERE_ORDERED and not is_stepped
        self._order = None if order is None else order.put if stops_where_ordered else order.before_pass
        self._callers = [one for one in (moldable, own) if one is not None]  # of functions that may raise

    def _join_nodes(self) -> None:
        if self._moldable is not None:
            self._moldable.join(self._scheduler)
            lib.replay_set_caps(self._replay, self._moldable.c_cap[0], 1)
        if self._unlike is not None:
            checked(lib.scheduler_set_nodes(self._scheduler, self._unlike.c))
            lib.replay_set_caps(self._replay, self._unlike.c_cap[0], 0)
            if self._unlike.are_shared:
                checked(lib.replay_set_sharing(self._replay))
        if self._planned is not None:
            self._planned.join(self._scheduler)
        if self._limits is not None:
            checked(lib.replay_set_limits(self._replay, self._limits.c))
        if self._failures is not None:
            given = self._failures.c, self._failures.count, self._failures.c_mattered
            checked(lib.replay_set_failures(self._replay, *given))

    def _own_phases(self, composition: Composition) -> tuple[OwnOrder | None, OwnPhases | None]:
        known = known_of(self.watts, self._predicting, self._unlike, self.jobs)
        return own_order_and_phases(composition, self._scheduler, self.jobs, known)

    def _plan(self, now_s: int) -> None:
        rows = self._governor.plan(now_s)
        if self._predicting is not None:
            self._predicting.allow(self._governor.allowed_uw, queued(self._scheduler, self._room))
        checked(lib.replay_replan(self._replay, c_rows(rows), len(rows)))

    def follow(self) -> None:
        """A cap has become known, or a row of the plan begins."""
        now_s = self.now_s
        if self._governor.is_plan_due(now_s):
            self._plan(now_s)
        reaction = reaction_of(self._governor, self._scheduler, self.jobs, now_s)
        for job in reaction.kill:
            lib.replay_kill(self._replay, job)
        for job, level in reaction.level.items():
            checked(lib.replay_set_level(self._replay, job, level))

    def prepare_pass(self) -> None:
        """The policy predicts watts, and orders the queue."""
        if self._predicting is not None:
            ends = np.frombuffer(ffi.buffer(self._so_far.end_s, 8 * len(self.jobs)), np.int64)
            self._predicting.follow(self.submitted, ends)
        if self._unlike is not None:
            ended = copied(self._so_far.ended_jobs, self.ended, np.int32)
            self._unlike.follow(ended, self.submitted, queued(self._scheduler, self._room))
            self.longest_queue = max(self.longest_queue, lib.scheduler_waiting(self._scheduler))
        if self._order is not None:
            self._order(lib.replay_now(self._replay))
        if self._planned is not None:
            lib.replay_wake(self._replay, self._planned.wake_s)

    def run(self, until_ended: int) -> bool:
        """Run until so many jobs have ended in all; False when no event is left."""
        begun_s: float | None = None
        while True:
            status = lib.replay_run(self._replay, until_ended)
            for caller in self._callers:
                caller.check()
            if begun_s is not None:
                self.pass_s.append(time.thread_time() - begun_s)
                begun_s = None
            if status == PASS_DUE:
                begun_s = None if self._unlike is None else time.thread_time()
                self.prepare_pass()
            elif status == lib.REPLAY_POWER_DUE:
                self.follow()
            elif status == lib.REPLAY_NO_MEMORY:
                raise MemoryError
            elif status == lib.REPLAY_OVERFULL:
                raise StartsError("defect: jobs were started that had not come, or had no room")
            else:
                return bool(status == lib.REPLAY_PAUSED)

    def forked(self, composition: Composition, is_blind: bool) -> NativeReplay:
        """The same moment in a replay of its own, both stepped, under a policy that differs in order and backfilling.
        ``is_blind``: with what a scheduler knows."""
        other = copy(self)
        c_one, _steps = (ffi.NULL, None) if composition.score is None else c_score(composition.score)
        c = c_composition(composition, self._processors)
        other._replay = owned(lib.replay_copy(self._replay, c, c_one, is_blind), lib.replay_free)
        other._scheduler = lib.replay_scheduler(other._replay)
        order, _ = other._own_phases(composition)
        other._order = None if order is None else order.before_pass
        other._room = np.empty(len(self.jobs), np.int32)
        if self.watts is not None:
            other._governor = copy(self._governor)
            if is_blind:
                other._governor.announced_s = []
        return other

    @property
    def c(self) -> Any:
        """``replay_t *``."""
        return self._replay

    @property
    def c_scheduler(self) -> Any:
        """Its ``scheduler_t *``."""
        return self._scheduler

    @property
    def has_order(self) -> bool:
        """Whether a pass begins with an order in Python (``prepare_pass``)."""
        return self._order is not None

    @property
    def plan_rows(self) -> list[Row]:
        """The plan of caps and nodes from now on. Only with watts."""
        return self._governor.rows_from(self.now_s)

    @property
    def looks(self) -> list[Look]:
        """Those of a portfolio so far. ``ClusterError`` if they were to be others."""
        return [] if self._portfolio is None else looks_so_far(self._scheduler, *self._looked)

    def impossible(self) -> Bools:
        """Which jobs could not start in any of their ways; before running, and only with ``moldable``."""
        never = np.empty(len(self.jobs), np.uint8)
        lib.scheduler_impossible(self._scheduler, pointer("uint8_t", never))
        if self._moldable is not None:
            self._moldable.check()
        return never.view(np.bool_)

    def placed(self, job: int) -> Placed:
        """The nodes of a job that was started; only with ``unlike``."""
        return placed(self._scheduler, job if self._kept is None else int(np.flatnonzero(self._kept)[job]))

    def pause_at(self, at_s: int) -> None:
        """``run`` does not let anything happen that happens at this time or later."""
        lib.replay_pause_at(self._replay, at_s)

    def moment(self, at_s: int) -> Moment:
        """How things are, once ``run`` has paused for it."""
        decided_s = copied(self._so_far.decisions.decided_s, len(self.jobs), np.int64)
        known = at_s, self.submitted, np.where(self.start_s < 0, -1, decided_s), self.end_s
        if self.watts is None:
            return Moment(*known) if self._failures is None else Moment(*known, kills=self.kills, lost=self.lost)
        running = self._room[: lib.scheduler_running(self._scheduler, pointer("int32_t", self._room))].tolist()
        done_s = {job: self._done_s(at_s, job) for job in running}
        return Moment(*known, self.level, done_s, self.kills, self.lost, self.lost_j, self._joules(at_s))

    def _done_s(self, at_s: int, job: int) -> float:
        assert self.watts is not None
        length_s, since_s = int(self.jobs.run_s[job]), int(lib.scheduler_begins(self._scheduler, job))
        left_s = int(lib.scheduler_finish(self._scheduler, job, length_s)) - max(since_s, at_s)
        level = int(lib.scheduler_level(self._scheduler, job))
        return length_s - left_s / self.watts.slowdown[level]

    def since(self, moment: Moment, is_over: Bools) -> None:
        """After the run: ``jobs`` and all columns are without these, which had ended then. Power, joules and kills are
        those since then; a job's joules are all of its own."""
        self._kept, self._since = ~is_over, moment
        self.jobs = self.jobs.only(self._kept)

    @property
    def ended(self) -> int:
        """Jobs that have ended."""
        left_out = 0 if self._kept is None else int((~self._kept).sum())
        return int(self._so_far.ended) - left_out

    @property
    def passes(self) -> int:
        """Scheduling passes so far."""
        return int(self._so_far.passes)

    @property
    def now_s(self) -> int:
        """The time of the last event."""
        return int(self._so_far.now_s)

    @property
    def submitted(self) -> int:
        """Jobs that have been submitted."""
        return int(self._so_far.submitted)

    start_s = _Column("start_s", np.int64)
    """When each job was started, -1: not (yet)."""
    decided_s = _Column("decisions.decided_s", np.int64)
    """When each job got its nodes or processors, which may boot first; meaningful if it was started."""
    end_s = _Column("end_s", np.int64)
    """When each job ended, -1: not (yet)."""
    first_estimate_s = _Column("decisions.first_estimate_s", np.int64)
    corrections = _Column("decisions.corrections", np.int32)
    """How often each job ran longer than its estimate."""
    overtook = _Column("decisions.overtook", np.bool_)
    """Which jobs were started past an earlier one of the queue."""
    interval_first = _Column("decisions.interval_first", np.int64)
    """Where each job's processors begin in ``c_intervals``."""
    interval_count = _Column("decisions.interval_count", np.int32)
    """How many intervals of processors each job got."""
    level = _Column("decisions.level", np.int32)
    """Each job's last frequency, 0 the highest. Only with watts, as all that follows up to ``power``."""

    @property
    def requeues(self) -> bool:
        """Whether killed jobs wait again."""
        return self.watts is None or self.watts.requeues

    @property
    def kills(self) -> Int32s:
        """How often each job was killed."""
        return self._later("kills", self._so_far.kills, np.int32)

    @property
    def lost(self) -> Int64s:
        """Processor-seconds of each job's killed runs."""
        return self._later("lost", self._so_far.lost, np.int64)

    @property
    def job_j(self) -> npt.NDArray[np.float64]:
        """Joules of each job, killed runs included."""
        return self._column(self._so_far.job_uj, np.float64) / UW

    @property
    def lost_j(self) -> npt.NDArray[np.float64]:
        """Joules of each job's killed runs."""
        return self._later("lost_j", self._so_far.lost_uj, np.float64, UW)

    @property
    def boots(self) -> int:
        """How many nodes have booted for a job since they went off idle."""
        return int(lib.scheduler_boots(self._scheduler))

    @property
    def joules(self) -> dict[str, float]:
        """Joules of the ``cluster``, of ``idle`` processors with chassis and racks, ``off`` nodes, and
        ``switching``."""
        if self._since is None:
            return self._joules(self.now_s)
        found = self._joules(max(self.now_s, self._since.at_s))  # nothing may happen after that moment
        return {part: found_j - self._since.joules[part] for part, found_j in found.items()}

    def _joules(self, at_s: int) -> dict[str, float]:
        found = lib.replay_joules(self._replay, at_s)
        return {
            "cluster": found.cluster_uj / UW,
            "idle": found.idle_uj / UW,
            "off": found.off_uj / UW,
            "switching": found.switching_uj / UW,
        }

    @property
    def power_uw(self) -> tuple[Int64s, Int64s]:
        """The cluster's microwatts, each from a time until the next, as (times, microwatts); of a warm start, too,
        from the beginning."""
        table = self._power_table(is_whole=True)
        return table[:, 0].copy(), table[:, 1].copy()

    @property
    def power(self) -> tuple[Int64s, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The cluster's watts and cap (infinite: none), each from a time until the next, as (times, watts, caps)."""
        table = self._power_table()
        caps = np.where(table[:, 2] == NO_CAP, np.inf, table[:, 2] / UW)
        return table[:, 0].astype(np.int64), table[:, 1] / UW, caps

    def _power_table(self, is_whole: bool = False) -> Int64s:
        found = self._so_far
        if not found.n_steps:
            return np.empty((0, 3), np.int64)
        table = np.frombuffer(ffi.buffer(found.steps, 24 * found.n_steps), np.int64).reshape(-1, 3)
        if self._since is None or is_whole:
            return table
        last = max(int(np.searchsorted(table[:, 0], self._since.at_s, "right")) - 1, 0)
        later = table[last:].copy()
        later[0, 0] = max(later[0, 0], self._since.at_s)
        return later

    @property
    def used(self) -> list[float]:
        """Per user, the share of the machine that was used recently (processor-seconds). Only with priorities."""
        now_s = self.now_s
        return [lib.scheduler_used(self._scheduler, now_s, user) for user in range(self.jobs.n_users)]

    @property
    def c_intervals(self) -> Any:
        """``interval_t *``; belongs to this replay."""
        return self._so_far.decisions.intervals

    def processors(self, job: int) -> list[tuple[int, int]]:
        """The processors of a job as (first, last), both included."""
        first, count = self.interval_first[job], self.interval_count[job]
        return [(one.first, one.last) for one in self.c_intervals[int(first) : int(first + count)]]

    @property
    def _so_far(self) -> Any:
        return lib.replay_so_far(self._replay)

    def _later(self, name: str, source: Any, dtype: type[Scalar], per: float = 1) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = copied(source, len(self._kept) if self._kept is not None else len(self.jobs), dtype)
        found = found if per == 1 else found / per
        return found if self._since is None else (found - getattr(self._since, name))[self._kept]

    def _column(self, source: Any, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
        if self._kept is None:
            return copied(source, len(self.jobs), dtype)
        return copied(source, len(self._kept), dtype)[self._kept]
