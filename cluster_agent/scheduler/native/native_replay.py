"""The replay of a whole log in C (``csrc/replay.h``), the scheduler inside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic

import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import UW
from cluster_agent.scheduler.job_columns import Bools, Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.governor import NO_CAP, Governor, Predicting, Watts
from cluster_agent.scheduler.native.moment import Moment
from cluster_agent.scheduler.native.native_scheduler import known_of, queued, reaction_of, reorder, set_native_order
from cluster_agent.scheduler.native.native_tables import (
    CJobs,
    CWatts,
    Scalar,
    c_composition,
    c_idle_off,
    c_rows,
    checked,
    copied,
    owned,
    placed,
    pointer,
)
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.recorded import Recorded, StartsError

if TYPE_CHECKING:  # a short replay is as long as its imports
    from cluster_agent.scheduler.native.answering import Answering
    from cluster_agent.scheduler.native.native_moldable import CMoldable
    from cluster_agent.scheduler.native.native_unlike import CUnlike
    from cluster_agent.scheduler.unlike_nodes.node_aware import Placed

BATCHES: Final = {"instant": lib.BATCH_INSTANT, "sc15": lib.BATCH_EVENT}


class _Column(Generic[Scalar]):
    """A column of ``replayed_t``, copied each time."""

    def __init__(self, name: str, dtype: type[Scalar]) -> None:
        self._source, self._dtype = attrgetter(name), dtype

    def __get__(self, replay: NativeReplay, owner: object) -> npt.NDArray[Scalar]:
        return replay._column(self._source(replay._so_far), self._dtype)


class NativeReplay:
    """The replay of a whole log in C. Deterministic: equal input gives equal bits. With ``watts`` it meters them.

    ``users``: the log's numbers of users 0, 1, ..., for priorities that know some of them. ``answering``: a closed
    loop; then ``jobs`` and the columns of ``watts`` are the tables that it fills. ``moldable``: jobs can run in several
    ways; ``jobs`` are its own, ``processors`` are nodes. ``unlike``: nodes differ; ``composition`` and ``processors``
    are its own. ``recorded``: a warm start; not with the two before.
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
    ) -> None:
        idle_off = c_idle_off(composition, watts)
        self.jobs = jobs
        self.watts = watts
        self._order = composition.order
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
                self._order is not None or (watts is not None and watts.new_predictor is not None),
            ),
            lib.replay_free,
        )
        if answering is not None:
            from cluster_agent.scheduler.native.answering import CAnswering

            self._c_answering = CAnswering(answering, jobs)
            checked(lib.replay_answer(self._replay, self._c_answering.c))
        self._predicting: Predicting | None = None
        self._scheduler = lib.replay_scheduler(self._replay)
        self._moldable = moldable
        if moldable is not None:
            moldable.join(self._scheduler)
            lib.replay_set_caps(self._replay, moldable.c_cap[0], 1)
        self._unlike = unlike
        self._planned = unlike.planned if unlike is not None else None
        if unlike is not None:
            checked(lib.scheduler_set_unlike(self._scheduler, unlike.c))
            lib.replay_set_caps(self._replay, unlike.c_cap[0], 0)
            if unlike.planned is not None:
                unlike.planned.join(self._scheduler)
        if recorded is not None:
            self._c_recorded = ffi.new("recorded_t[]", recorded.starts)
            lib.replay_set_record(self._replay, self._c_recorded, len(recorded.starts), recorded.until_s)
        self.pass_s: list[float] = []
        """Only with an order in Python: processor seconds of each pass, from the order on until the next event."""
        self.longest_queue = 0
        """Only with an order in Python: the most jobs that waited before a pass."""
        self._room = np.empty(len(jobs), np.int32)
        self._c_priority = set_native_order(self._scheduler, composition, jobs, users, watts)
        if watts is not None:
            first_s = int(jobs.submit_s[0]) if len(jobs) else 0
            self._governor = Governor(watts, composition.power, caps, first_s)
            self._predicting = Predicting(watts, jobs) if watts.new_predictor else None
            self._c_watts = CWatts(watts, self._governor.first_reading_s(first_s), self._predicting)
            self._announced = ffi.new("int64_t[]", self._governor.announced_s)
            c = self._announced, len(self._announced)
            checked(lib.replay_set_power(self._replay, self._c_watts.c, *c))
            if idle_off is not None:
                checked(lib.replay_set_idle_off(self._replay, idle_off))
            self._plan(first_s)
        self._known = known_of(watts, self._predicting, unlike, jobs)

    def _plan(self, now_s: int) -> None:
        rows = self._governor.plan(now_s)
        if self._predicting is not None:
            self._predicting.allow(self._governor.allowed_uw, queued(self._scheduler, self._room))
        checked(lib.replay_replan(self._replay, c_rows(rows), len(rows)))

    def _follow(self) -> None:
        """A cap has become known, or a row of the plan begins."""
        now_s = self.now_s
        if self._governor.is_plan_due(now_s):
            self._plan(now_s)
        reaction = reaction_of(self._governor, self._scheduler, self.jobs, now_s)
        for job in reaction.kill:
            lib.replay_kill(self._replay, job)
        for job, level in reaction.level.items():
            checked(lib.replay_set_level(self._replay, job, level))

    def _prepare_pass(self) -> None:
        """The policy predicts watts, and orders the queue."""
        if self._predicting is not None:
            ends = np.frombuffer(ffi.buffer(self._so_far.end_s, 8 * len(self.jobs)), np.int64)
            self._predicting.follow(self.submitted, ends)
        if self._unlike is not None:
            ended = copied(self._so_far.ended_jobs, self.ended, np.int32)
            self._unlike.follow(ended, self.submitted, queued(self._scheduler, self._room))
        if self._order is not None:
            now_s = self.now_s
            waiting = reorder(self._scheduler, self.jobs, self._order, now_s, self._room, self._known)
            self.longest_queue = max(self.longest_queue, waiting)
        if self._planned is not None:
            lib.replay_wake(self._replay, self._planned.wake_s)

    def run(self, until_ended: int) -> bool:
        """Run until so many jobs have ended in all; False when no event is left."""
        begun_s: float | None = None
        while True:
            status = lib.replay_run(self._replay, until_ended)
            if self._moldable is not None:
                self._moldable.check()
            if begun_s is not None:
                self.pass_s.append(time.thread_time() - begun_s)
                begun_s = None
            if status == lib.REPLAY_PASS_DUE:
                begun_s = time.thread_time()
                self._prepare_pass()
            elif status == lib.REPLAY_POWER_DUE:
                self._follow()
            elif status == lib.REPLAY_NO_MEMORY:
                raise MemoryError
            elif status == lib.REPLAY_OVERFULL:
                raise StartsError("defect: jobs were started that had not come, or had no room")
            else:
                return bool(status == lib.REPLAY_PAUSED)

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
            return Moment(*known)
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

    def power_csv(self) -> memoryview:
        """``power`` as lines of text, the watts with six decimals and nothing where there is no cap."""
        table = self._power_table()
        out = np.empty(72 * len(table), np.uint8)
        steps = pointer("power_step_t", table)
        return out[: lib.power_csv_write(steps, len(table), pointer("char", out))].data

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
