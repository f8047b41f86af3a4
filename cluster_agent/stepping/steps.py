"""A replay that stops at each decision: one looks at the queue and at what runs, says who starts, and goes on.

A world is the native engine's own (``csrc/steps.h``), so what the policy's own pass decides here is what it decides in
a replay. A fork is the same moment in a world of its own. It costs as much as jobs wait and run, however long the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from math import inf
from operator import index
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from cluster_agent import library
from cluster_agent._native import ffi, lib
from cluster_agent.cluster import UW
from cluster_agent.errors import StepError
from cluster_agent.library.fitting import fitted
from cluster_agent.library.own_policies import PolicyLike
from cluster_agent.library.own_policies import policy as policy_of
from cluster_agent.library.replaying import LOGGER
from cluster_agent.replay.world_run import with_job_watts
from cluster_agent.scheduler.job_columns import NEVER_S, RESOURCES, Float64s, Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import Engine, NativeReplay
from cluster_agent.scheduler.policy_phases import A_WARM_START, STEPPED, Composition, clash
from cluster_agent.scheduler.power_cap import NO_CAP, UNCAPPED
from cluster_agent.scheduler.world import World

Stops: TypeAlias = Literal["passes", "choices", "instants"]
"""Where a world stops. ``passes``: at each time at which something happens and a job waits. ``choices``: only where two
jobs or more wait and one may fit; elsewhere the policy's own pass decides. ``instants``: at each time at which
something happens."""

_WHERE: Final = {"passes": lib.STEP_PASSES, "choices": lib.STEP_CHOICES, "instants": lib.STEP_INSTANTS}
WAITING: Final = np.dtype([("estimate_s", np.int64), ("job", np.int32), ("width", np.int32)])
"""A row of ``Steps.queue``: seconds, the job's index, processors."""
RUNNING: Final = np.dtype([("expected_end_s", np.int64), ("job", np.int32), ("width", np.int32)])
"""A row of ``Steps.running``."""
_SAME: Final = ("estimate", "history", "fixed", "correct", "shadow", "power", "placing")


class _Rows:
    """Memory of the engine as NumPy sees it; an array on it keeps the engine."""

    def __init__(self, engine: Any, start: Any, size: int) -> None:
        self.engine = engine
        address = int(ffi.cast("uintptr_t", start))
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}


class Steps:
    """A world at a decision.

    ``queue``, ``running`` and ``started`` are read-only views of the engine's memory without a copy: they are true
    until the world moves on, so copy what is to be kept. Deterministic: equal actions give equal bits.
    """

    def __init__(self, world: World, policy: Composition, stops: Stops = "passes") -> None:
        """At the first decision. ``policy`` has the estimates, what may overtake the head, and, where no other order is
        given, the order. ``StepError`` if the world or the policy cannot be stepped."""
        _check(world, policy, stops)
        self.world, self.policy, self.stops = with_job_watts(world, policy), policy, stops
        self._given = given = Engine(self.world, policy)
        own = self._phases(policy)
        self._begin(NativeReplay(own, given.jobs, given.processors, is_stepped=True, **given.given))
        self.advance()

    @classmethod
    def of(cls, world: library.World, policy: PolicyLike = "easy", stops: Stops = "passes") -> Steps:
        """The same of the library's world, and of any policy that its ``replay`` takes. ``ClusterError`` as there; what
        was found on the way are warnings of its logger."""
        if not isinstance(world, library.World):
            raise StepError(f"give a World of the library, not {type(world).__name__} {world!r:.60}")
        choice = policy_of(policy)
        kind = world.kind(choice)
        if world.state is not None:
            raise StepError(str(clash([A_WARM_START, STEPPED])))
        say = partial(logging.getLogger(LOGGER).warning, "%s")
        return cls(fitted(world, choice, kind, say), choice.on(kind), stops)

    def _phases(self, policy: Composition) -> Composition:
        """The policy in the terms of the engine. On nodes the order of submission needs no order in Python."""
        if self._given.unlike is None:
            return policy
        return replace(self._given.composition, order=policy.order, backfill=policy.backfill)

    def _begin(self, replay: NativeReplay) -> None:
        self._replay, self._engine, self._scheduler = replay, replay.c, replay.c_scheduler
        self._seen = ffi.new("seen_t *")
        self._views: dict[Any, npt.NDArray[Any]] = {}  # made once: that takes microseconds
        self._status = lib.REPLAY_PAUSED
        self._had_ended = 0

    def _rows(self, start: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A row a job, of a column that stays where it is."""
        rows = self._views.get(start)
        if rows is None:
            self._open(even_over=True)
            kind = np.dtype(dtype)
            rows = np.asarray(_Rows(self._engine, start, len(self.jobs) * kind.itemsize)).view(kind)
            self._views[start] = rows
        return rows

    # --- what one sees

    @property
    def jobs(self) -> Jobs:
        """Of the whole log, those too that have not been submitted."""
        return self._given.jobs

    @property
    def processors(self) -> int:
        """Of the machine; on nodes, their cores."""
        return self._given.processors

    @property
    def now_s(self) -> int:
        """The time of the decision, in the log's seconds."""
        return int(self._seen.now_s)

    @property
    def free(self) -> int:
        """Processors without a job."""
        return int(self._seen.free)

    @property
    def is_over(self) -> bool:
        """Nothing is left to happen. Jobs that nobody has started may still wait."""
        return bool(self._status == lib.REPLAY_ENDED)

    @property
    def queue(self) -> npt.NDArray[Any]:
        """The waiting jobs (``WAITING``), in order of submission unless the policy has an order."""
        head = self._seen.head
        return self._rows(self._seen.queue, WAITING)[head : head + self._seen.waiting]

    @property
    def running(self) -> npt.NDArray[Any]:
        """The running jobs (``RUNNING``), in order of expected end."""
        return self._rows(self._seen.runs, RUNNING)[: self._seen.running]

    @property
    def profile(self) -> tuple[Int64s, Int64s]:
        """What is expected to be free from when on if nobody else starts: (times in s, processors), from now on. Of
        equal times the last counts."""
        running = self.running
        time_s = np.empty(len(running) + 1, np.int64)
        free = np.empty(len(running) + 1, np.int64)
        time_s[0], free[0] = self.now_s, self.free
        np.maximum(running["expected_end_s"], self.now_s + 1, out=time_s[1:])
        np.cumsum(running["width"], out=free[1:])
        free[1:] += self.free
        return time_s, free

    @property
    def caps(self) -> tuple[Int64s, Float64s]:
        """The caps that are known, now and later, and from when on they are in force: (times in s, watts); infinite:
        none. On nodes the caps that are kept, all of them."""
        self._open(even_over=True)
        if self.world.watts is None:
            caps = UNCAPPED if self.policy.power is None else self.world.caps
            return np.array(caps.time_s, np.int64), np.array(caps.watts, np.float64)
        rows = self._replay.plan_rows
        watts = [inf if row.cap_uw == NO_CAP else row.cap_uw / UW for row in rows]
        return np.array([row.from_s for row in rows], np.int64), np.array(watts)

    @property
    def levels(self) -> Int32s:
        """The frequency of each job of ``running`` as a place in the machine's list, 0 the highest."""
        self._open(even_over=True)
        self._watts("levels")
        levels: Int32s = self._rows(lib.scheduler_decisions(self._scheduler).level, np.int32)[self.running["job"]]
        return levels

    @property
    def drawn_w(self) -> float:
        """What the machine draws now, as planned; a cap is compared with it."""
        self._open(even_over=True)
        self._watts("drawn_w")
        return float(lib.scheduler_plan_uw(self._scheduler, self.now_s)) / UW

    @property
    def joules(self) -> float:
        """What the machine has drawn since the first submission."""
        self._open(even_over=True)
        self._watts("joules")
        return float(lib.replay_joules(self._engine, self.now_s).cluster_uj) / UW

    @property
    def room(self) -> Int64s:
        """On nodes that differ, what each has free (nodes, ``RESOURCES``): cores, GPUs, MICs, KiB of memory. A copy."""
        self._open(even_over=True)
        if self.world.nodes is None:
            raise StepError("room: only a world of nodes that differ has one")
        shape = len(self.world.nodes), lib.NODE_KINDS
        start = ffi.buffer(lib.scheduler_room(self._scheduler), 8 * shape[0] * shape[1])
        return np.frombuffer(start, np.int64).reshape(shape)[:, : len(RESOURCES)].copy()

    def tables(self, most: int | None = None) -> tuple[Float64s, Float64s]:
        """``queue``, its first ``most`` rows, and ``running`` as numbers for a model, both new: (seconds waited,
        estimate in s, processors), and (seconds left as expected, below 0: late; processors)."""
        self._open(even_over=True)
        seen = self._seen
        count = seen.waiting if most is None else min(max(most, 0), seen.waiting)
        waiting, running = np.empty((count, 3)), np.empty((seen.running, 2))
        tables = ffi.from_buffer("double[]", waiting), ffi.from_buffer("double[]", running)
        lib.scheduler_table(self._scheduler, seen.now_s, count, *tables)
        return waiting, running

    @property
    def started(self) -> Int32s:
        """The jobs that were started since this world, or this fork, was made, in the order of the decisions."""
        return self._rows(self._seen.starts, np.int32)[: self._seen.started]

    @property
    def submitted(self) -> int:
        """How many jobs have been submitted: they are the first ones of ``jobs``."""
        return int(self._seen.submitted)

    @property
    def ended(self) -> Int32s:
        """The jobs that have ended since this world, or this fork, was made, in the order of their ends."""
        self._open(even_over=True)
        so_far = lib.replay_so_far(self._engine)
        return self._rows(so_far.ended_jobs, np.int32)[self._had_ended : self._seen.ended]

    def ended_since(self, place: int) -> list[int]:
        """Those of ``ended`` from this place on. A list costs less than a view where it is short."""
        self._open(even_over=True)
        first, end = self._had_ended + place, self._seen.ended
        return [] if first >= end else ffi.unpack(lib.replay_so_far(self._engine).ended_jobs + first, end - first)

    @property
    def schedule(self) -> NativeReplay:
        """All that has happened so far, as a ``Result`` needs it."""
        self._open(even_over=True)
        return self._replay

    @property
    def wait_s(self) -> Int64s:
        """How long each job of ``started`` had waited."""
        started = self.started
        waits: Int64s = self._rows(self._seen.start_s, np.int64)[started] - self.jobs.submit_s[started]
        return waits

    # --- what one does

    def start(self, jobs: Sequence[int] | Int32s, level: int | None = None) -> None:
        """Start these waiting jobs now, all or none. ``level``: the frequency, as a place in the machine's list; None:
        each gets the highest that caps leave room for. ``StepError`` names the job that cannot start, and why."""
        self._open()
        given = _listed("start", jobs)
        if level is not None:
            self._check_level("start", given, level)
        has_more = self.world.watts is not None or self.world.nodes is not None  # than processors, to be short of
        good = len(given)
        if has_more and len(given) > 1:
            good = self.fork()._start(given, level)
        if good == len(given):
            good = self._start(given, level)
        if good < len(given):
            raise StepError(f"start: {self._why_not(given, good, level)}")

    def _start(self, given: list[int], level: int | None) -> int:
        """How many could start. Where watts or nodes are missing, those have started that come before."""
        try:
            chosen = -1 if level is None else level
            good = int(lib.replay_start_these(self._engine, given, len(given), chosen, self._seen))
        except (TypeError, OverflowError):
            raise StepError(f"start: give the indices of waiting jobs as whole numbers, not {given!r}") from None
        if good == lib.REPLAY_NO_MEMORY:
            raise MemoryError
        return good

    def set_level(self, jobs: Sequence[int] | Int32s, level: int) -> None:
        """Give these running jobs this frequency from now on, all or none: a place in the machine's list. A higher one
        must leave what runs below the caps, that in force and those that are known, until the time limits; a lower one
        may always be given. ``StepError`` names the job that cannot have it, and why."""
        self._open()
        given = _listed("set_level", jobs)
        self._check_level("set_level", given, level)
        running = self.running["job"].tolist()
        for at, job in enumerate(given):
            if job in given[:at]:
                raise StepError(f"set_level: job {job} is given twice")
            if not isinstance(job, int) or job not in running:
                raise StepError(f"set_level: job {job!r} does not run; give jobs of running")
        levels = dict(zip(running, self.levels.tolist(), strict=True))
        if any(levels[job] > level for job in given):
            self._check_room(given, level)
        self._set_level(given, level)

    def _set_level(self, given: list[int], level: int) -> None:
        for job in given:
            if lib.replay_set_level(self._engine, job, level) == lib.REPLAY_NO_MEMORY:
                raise MemoryError
        lib.replay_look(self._engine, self._seen)

    def _check_room(self, given: list[int], level: int) -> None:
        """``StepError`` unless the caps leave room for that."""
        trial = self.fork()
        trial._set_level(given, level)
        at = lib.scheduler_exceeds(trial._scheduler, self.now_s)
        if at >= 0:
            row, mhz = self._replay.plan_rows[at], self._watts("set_level").machine.node.frequency_mhz[level]
            when = "now" if row.from_s <= self.now_s else f"at {row.from_s} s"
            raise StepError(
                f"set_level: with jobs {', '.join(map(str, given))} at {mhz} MHz more than the cap of"
                f" {row.cap_uw / UW:,.0f} W would be drawn {when}, if what runs then lasts to its time limit"
            )

    def order(self, places: Sequence[int] | Int64s) -> Int32s:
        """A pass of the policy that sees the jobs at these places of the queue first, in this order, then the others.
        Whoever goes on to wait stays in its place. Returns the jobs that it has started."""
        given = _listed("order", places)
        self._open()
        if given and (self.policy.score is not None or self.policy.order is not None):
            raise StepError("order: this world's policy orders the queue itself; fork it with one that does not")
        return self._pass(given)

    def _pass(self, given: list[int]) -> Int32s:
        before = self._seen.started
        try:
            count = lib.replay_decide_in(self._engine, given, len(given), self._seen)
        except (TypeError, OverflowError):
            count = -2
        if count == lib.REPLAY_NO_MEMORY:
            raise MemoryError
        if count < 0:
            last = self._seen.waiting - 1
            raise StepError(f"order: give places of the queue, 0 to {last}, each at most once, not {given!r}")
        return self._rows(self._seen.starts, np.int32)[before : before + count] if count else _NOBODY

    def decide(self) -> Int32s:
        """The policy's own pass. Returns the jobs that it has started."""
        self._open()
        if self._replay.has_order:
            self._replay.prepare_pass()
        return self._pass([])

    def end(self, job: int) -> None:
        """End this running job now; it does not wait again. ``StepError`` if it does not run."""
        self._open()
        if job not in self.running["job"]:
            raise StepError(f"end: job {job!r} does not run; give a job of running")
        lib.replay_cut(self._engine, job, self._seen)

    def advance(self, wake_s: int | None = None) -> bool:
        """On to the next decision, or to ``wake_s`` if that is before it; who was not started waits on. False: there is
        none, and the world is over."""
        if wake_s is not None:
            self._open()
            lib.replay_wake(self._engine, max(wake_s, self.now_s))
        return bool(self._step(_WHERE[self.stops]) == lib.REPLAY_PASS_DUE)

    def run(self, until_s: int | None = None) -> None:
        """The policy decides, now if this is a decision, and from here on: until the world is over, or before anything
        happens at ``until_s`` or later."""
        try:
            pause_s = NEVER_S if until_s is None else min(max(index(until_s), -NEVER_S), NEVER_S)
        except TypeError:
            raise StepError(f"run: until_s={until_s!r}: give whole seconds of the log") from None
        if self._status == lib.REPLAY_PASS_DUE:
            self.decide()
        self._open()
        lib.replay_pause_at(self._engine, pause_s)
        try:
            self._step(lib.STEP_NOWHERE)
        finally:  # an order in Python may raise
            lib.replay_pause_at(self._engine, NEVER_S)

    def _step(self, where: int) -> int:
        if self._status != lib.REPLAY_PASS_DUE:
            self._open()
        has_order = self._replay.has_order
        while True:
            status = lib.replay_step(self._engine, lib.STEP_PASSES if has_order else where, self._seen)
            self._status = status
            if status == lib.REPLAY_POWER_DUE:
                self._replay.follow()
            elif status == lib.REPLAY_PASS_DUE and has_order and not self._stops_here(where):
                self.decide()
            elif status == lib.REPLAY_NO_MEMORY:
                raise MemoryError
            else:
                return int(status)

    def _stops_here(self, where: int) -> bool:
        return where == lib.STEP_PASSES or (
            where == lib.STEP_CHOICES and bool(lib.scheduler_has_choice(self._scheduler))
        )

    # --- forks

    def fork(self, policy: Composition | None = None, blind: bool = False) -> Steps:
        """The same moment in a world of its own, whose ``started`` is empty. A fork that is never stepped is a
        snapshot: fork it to go back to it.

        ``policy``: another order and other backfilling from here on; it estimates as this one. ``blind``: with what a
        scheduler knows, so no job is submitted any more and all run for as long as estimated. Else it is the log's own
        future, which only a bound, or what judges, may look at.
        """
        self._open(even_over=True)
        if policy is not None:
            _check(self.world, policy, self.stops)
            for phase in _SAME:
                if getattr(policy, phase) != getattr(self.policy, phase):
                    raise StepError(
                        f"fork: the jobs wait with {phase}={getattr(self.policy, phase)}, and this policy has"
                        f" {phase}={getattr(policy, phase)}"
                    )
        other = Steps.__new__(Steps)
        other.world, other.policy, other.stops = self.world, policy or self.policy, self.stops
        other._given = self._given
        other._begin(self._replay.forked(self._phases(other.policy), bool(blind)))
        lib.replay_look(other._engine, other._seen)
        other._status, other._had_ended = self._status, int(other._seen.ended)
        return other

    def __reduce__(self) -> Any:
        """``StepError``: a copy by ``copy`` or ``pickle`` would be the same world twice, or none."""
        raise StepError("a stepped world is neither copied nor pickled: fork it, or make it from its log")

    def close(self) -> None:
        """Give up the world: its memory goes with the last array on it. Its forks stay."""
        for name in ("_replay", "_scheduler"):
            vars(self).pop(name, None)
        self._engine, self._views = None, {}
        self._status = lib.REPLAY_PAUSED

    # --- what cannot be

    def _open(self, even_over: bool = False) -> None:
        if self._engine is None:
            raise StepError("this world is gone: it was closed; fork it before, or make another")
        if self._status == lib.REPLAY_ENDED and not even_over:
            waiting = self._seen.waiting
            left = f"{waiting} jobs wait that nobody started" if waiting else "every job has ended"
            raise StepError(f"this world is over at {self.now_s} s, {left}; fork an earlier one, or make another")

    def _watts(self, what: str) -> Watts:
        if self.world.watts is None:
            raise StepError(f"{what}: this world has no machine with watts")
        return self.world.watts

    def _check_level(self, what: str, given: list[int], level: int) -> None:
        watts = self._watts(f"{what}: level={level!r}")
        mhz = watts.machine.node.frequency_mhz
        if isinstance(level, bool) or not isinstance(level, int | np.integer) or not 0 <= level < len(mhz):
            there = f"0 ({mhz[0]} MHz) to {len(mhz) - 1} ({mhz[-1]} MHz)"
            raise StepError(f"{what}: level={level!r}: this machine has the levels {there}")
        does, to, lowest_of = (
            ("starts", "at", watts.lowest_start) if what == "start" else ("slows", "to", watts.lowest_of)
        )
        for job in given:
            if isinstance(job, int) and 0 <= job < len(self.jobs) and level > (lowest := lowest_of(job)):
                raise StepError(f"{what}: level={level}: the policy {does} job {job} {to} level {lowest} at the lowest")

    def _why_not(self, given: list[int], at: int, level: int | None) -> str:
        job, jobs = given[at], self.jobs
        if not 0 <= job < len(jobs):
            return f"no job has the index {job}; they go from 0 to {len(jobs) - 1}"
        if job in given[:at]:
            return f"job {job} is given twice"
        if job >= self._seen.submitted:
            return f"job {job} is submitted at {jobs.submit_s[job]} s, and it is {self.now_s} s"
        if job in self.running["job"]:
            return f"job {job} runs already"
        if job not in self.queue["job"]:
            return f"job {job} has ended"
        then = self
        if at:
            then = self.fork()
            then._start(given[:at], level)
        others = f" once those before it in the list have started (job {given[0]} first)" if at else ""
        if jobs.width[job] > then.free:
            return f"job {job} needs {jobs.width[job]} processors, and {then.free} are free{others}"
        if self._given.unlike is not None:
            units, need = int(jobs.units[job]), ", ".join(map(str, jobs.need[job].tolist()))
            each = f"units={units} of need=({need}) and watts={self._given.unlike.admitted_w[job]:g}"
            return f"job {job} with {each} has no room on the nodes, or under a cap until it may end{others}"
        return f"job {job} {then._lacks_watts(job, level)}{others}"

    def _lacks_watts(self, job: int, level: int | None) -> str:
        watts = self._watts("start")
        at = watts.lowest_start(job) if level is None else level
        row, mhz = lib.scheduler_row(self._scheduler), watts.machine.node.frequency_mhz[at]
        needed_w = int(self.jobs.width[job]) * lib.scheduler_extra_uw(self._scheduler, job, at) / UW
        left_w = row.cap_uw / UW - self.drawn_w
        if row.cap_uw != NO_CAP and needed_w > left_w:
            return f"needs {needed_w:,.0f} W above idle at {mhz} MHz, and {left_w:,.0f} W are left under the cap"
        return f"may run at {mhz} MHz into a cap, or into nodes going off, that leave no room for it"


def _listed(what: str, given: Any) -> list[Any]:
    """``StepError`` if it is no list, or has truths: a mask over the queue would name the first two of it."""
    try:
        found: Any = given.tolist() if isinstance(given, np.ndarray) else list(given)
        if bool not in map(type, found):
            return found  # type: ignore[no-any-return]
    except TypeError:
        pass
    raise StepError(f"{what}: give a list of whole numbers, not {type(given).__name__} {given!r:.60}")


_NOBODY: Final = np.empty(0, np.int32)


def _check(world: World, policy: Composition, stops: str) -> None:
    """``StepError`` unless it can be stepped and forked."""
    if not isinstance(policy, Composition):
        raise StepError(f"a policy is a Composition here, such as policy('easy').composition, not {policy!r:.60}")
    if stops not in _WHERE:
        raise StepError(f"stops={stops!r}: give one of {', '.join(_WHERE)}")
    if reason := clash([*policy.declared, *world.declared, STEPPED]):
        raise StepError(reason)
