"""Phases that are functions in Python: *order*, which a replay stops for, and *estimate* and *backfill*, which the
native scheduler calls while it runs (``own_t`` in ``csrc/scheduler.h``)."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.job_columns import Busy, Float64s, Jobs, Past, Submitted
from cluster_agent.scheduler.native.native_tables import checked, pointer
from cluster_agent.scheduler.policy_phases import Composition, Known, Queue
from cluster_agent.scheduler.queue import no_order, nothing_known

_c_array = ffi.from_buffer
_DOUBLES = ffi.typeof("double[]")


class QueueColumns:
    """The native queue as the columns that a function gets, which it may change and keep: memory of which it has kept
    nothing is used again. Columns that are not known are read-only."""

    def __init__(self, scheduler: Any, jobs: Jobs, known: Known = nothing_known) -> None:
        self._scheduler, self._known = scheduler, None if known is nothing_known else known
        self._submit_s = pointer("int64_t", np.ascontiguousarray(jobs.submit_s, np.int64))
        self._unknown = np.broadcast_to(np.nan, len(jobs))  # takes no memory
        self._allocate(16)

    def of(self, waiting: int) -> Queue:
        """The jobs that wait, all of which there are so many."""
        if waiting > self._room or getrefcount(self._wide) + getrefcount(self._narrow) > self._references:
            self._allocate(waiting)
        lib.scheduler_columns(self._scheduler, self._submit_s, waiting, self._room, self._c_wide, self._c_narrow)
        # one by one: a loop over them would take as long again
        submit_s, request_s, estimate_s, job, width, user = self._columns
        submit_s, request_s, estimate_s = submit_s[:waiting], request_s[:waiting], estimate_s[:waiting]
        job, width, user = job[:waiting], width[:waiting], user[:waiting]
        if self._known is not None:
            return Queue(job, submit_s, request_s, estimate_s, width, user, **self._known(job))
        nan = self._unknown[:waiting]
        return Queue(job, submit_s, request_s, estimate_s, width, user, nan, nan, nan, nan, nan, nan)

    def _allocate(self, waiting: int) -> None:
        """Room for so many, and for as many again."""
        self._room = 2 * waiting
        self._wide, self._narrow = np.empty((3, self._room), np.int64), np.empty((3, self._room), np.int32)
        self._c_wide, self._c_narrow = _c_array("int64_t[]", self._wide), _c_array("int32_t[]", self._narrow)
        self._columns = [*self._wide, *self._narrow]  # what is cut out of these counts as a reference, too
        self._references = getrefcount(self._wide) + getrefcount(self._narrow)


class OwnOrder:
    """The phase *order* as a function, and the native queue that it puts in order.

    It is called before a pass only if two jobs or more wait; once it has answered scores, which do not depend on the
    order before, only if one of them may fit as well. With ``order_at="passes"`` it is called before each pass."""

    def __init__(self, composition: Composition, scheduler: Any, jobs: Jobs, known: Known) -> None:
        assert composition.order is not None
        self._order, self._scheduler = composition.order, scheduler
        self._is_always_due = composition.order_at == "passes"
        self._columns = QueueColumns(scheduler, jobs, known)

    def before_pass(self, now_s: int) -> None:
        """Put the queue in order if that can matter now; ``ClusterError`` for an answer that is none."""
        if self._is_always_due or lib.scheduler_needs_order(self._scheduler, now_s):
            self.put(now_s)

    def put(self, now_s: int) -> None:
        """Put the queue in order."""
        waiting = lib.scheduler_waiting(self._scheduler)
        found = np.asarray(self._order(self._columns.of(waiting), now_s))
        kind = found.dtype.kind
        if found.shape != (waiting,) or kind not in "fiu":
            raise no_order(waiting, found.size, now_s)
        if kind == "f":
            checked(lib.scheduler_order_by(self._scheduler, _c_array(_DOUBLES, _doubles(found))))
            return
        places = _c_array("int64_t[]", np.ascontiguousarray(found, np.int64))
        status = lib.scheduler_order_at(self._scheduler, places)
        if status == lib.ORDER_NONE:
            raise no_order(waiting, found.size, now_s)
        checked(status)


def _doubles(scores: Any) -> Float64s:
    """The scores in C's type; longer ones by their ranks, so that none become equal."""
    if scores.dtype.itemsize <= 8:
        return np.ascontiguousarray(scores, np.float64)
    return np.unique(scores, return_inverse=True)[1].astype(np.float64)


class OwnPhases:
    """``own_t``: the phases *estimate* and *backfill* as functions.

    C cannot pass on what a function raises: ``check`` does, after each call of the scheduler. Until then no function is
    called any more, and nobody starts behind a head."""

    def __init__(self, composition: Composition, scheduler: Any, jobs: Jobs, known: Known) -> None:
        self.error: BaseException | None = None
        self._jobs, self._scheduler = jobs, scheduler
        self._columns = QueueColumns(scheduler, jobs, known)
        self._estimate = composition.estimate if callable(composition.estimate) else None
        self._backfill = composition.backfill if callable(composition.backfill) else None
        self._ended = np.empty(len(jobs), np.int32)
        self.c = ffi.new("own_t *", {"ended": pointer("int32_t", self._ended)})
        self._past = _GrowingPast(jobs, self._ended)
        if self._estimate is not None:
            self._c_estimate = ffi.callback("int64_t(void *, int64_t, int32_t)", self._estimate_s, 1)
            self.c.estimate = self._c_estimate
        if self._backfill is not None:
            signature = "int32_t(void *, int64_t, int32_t, int32_t, int64_t, int32_t *)"
            self._c_backfill = ffi.callback(signature, self._start_behind, 0)
            self.c.backfill = self._c_backfill
        lib.scheduler_set_own(scheduler, self.c)

    def check(self) -> None:
        """Raise what a function has raised."""
        if self.error is not None:
            raise self.error

    def _estimate_s(self, context: Any, now_s: int, job: int) -> int:
        if self.error is not None:
            return 1
        try:
            return self._estimated_s(now_s, job)
        except BaseException as error:  # raised again by ``check``, outside the callback
            self.error = error
            return 1

    def _estimated_s(self, now_s: int, job: int) -> int:
        assert self._estimate is not None
        jobs = self._jobs
        request_s = int(jobs.request_s[job])
        submitted = Submitted(job, now_s, request_s, int(jobs.width[job]), int(jobs.user[job]))
        found = self._estimate(submitted, self._past.until(self.c.n_ended))
        try:
            seconds = float(found)
        except (TypeError, ValueError):
            seconds = np.nan
        if not seconds >= 0:
            raise ClusterError(
                f"the policy's estimate must return how long the job will run, in seconds, as a number from 0 on: of"
                f" job {jobs.number[job]} at {now_s} s it returned {found!r}"
            )
        return int(max(min(seconds, request_s), 1))

    def _start_behind(self, context: Any, now_s: int, waiting: int, running: int, free: int, starts: Any) -> int:
        if self.error is not None:
            return 0
        try:
            return self._chosen(now_s, waiting, running, free, starts)
        except BaseException as error:  # as above
            self.error = error
            return 0

    def _chosen(self, now_s: int, waiting: int, running: int, free: int, starts: Any) -> int:
        assert self._backfill is not None
        end_s, narrow = np.empty(running, np.int64), np.empty((2, running), np.int32)
        lib.scheduler_runs(self._scheduler, now_s, running, _c_array("int64_t[]", end_s), _c_array("int32_t[]", narrow))
        job, width = narrow
        queue = self._columns.of(waiting)
        jobs, widths = queue.job.copy(), queue.width.copy()  # the function may change its own
        found = np.asarray(self._backfill(queue, Busy(free, job, width, end_s), now_s))
        if not found.size:
            return 0
        at = found.astype(np.int64) if found.dtype.kind in "iu" and found.ndim == 1 else np.full(1, -1)
        if at.min() < 0 or at.max() >= waiting or len(np.unique(at)) < len(at):
            raise ClusterError(
                f"the policy's backfill must return positions, 0 to {waiting - 1}, of the waiting jobs that start now,"
                f" each at most once, as whole numbers: at {now_s} s it returned {found.size} values that are not these"
            )
        started, widths = jobs[at], widths[at]
        left = free - np.cumsum(widths, dtype=np.int64)
        if left[-1] < 0:
            first = int(np.argmax(left < 0))
            number, before = self._jobs.number[started[first]], int(left[first] + widths[first])
            raise ClusterError(
                f"the policy's backfill starts job {number} at {now_s} s, which needs {widths[first]} processors, and"
                f" {before} are free then"
            )
        starts[0 : len(started)] = started.tolist()
        return len(started)


class _GrowingPast:
    """The columns of ``Past``: what stands in them does not change, and more jobs come to their end."""

    def __init__(self, jobs: Jobs, ended: Any) -> None:
        self._ended, self._known = ended, 0
        self._sources: list[npt.NDArray[Any]] = [jobs.submit_s, jobs.request_s, jobs.run_s, jobs.width, jobs.user]
        self._columns = [np.empty(len(jobs), column.dtype) for column in self._sources]
        self._seen = [column.view() for column in (ended, *self._columns)]
        for column in self._seen:
            column.flags.writeable = False

    def until(self, ended: int) -> Past:
        """The first so many jobs that have ended."""
        if ended > self._known:
            new = self._ended[self._known : ended]
            for column, source in zip(self._columns, self._sources, strict=True):
                column[self._known : ended] = source[new]
            self._known = ended
        return Past(*(column[:ended] for column in self._seen))
