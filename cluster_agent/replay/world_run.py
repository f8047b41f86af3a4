"""A replay: one world under one policy, from start to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from time import perf_counter
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.interfaces import Meter, unmetered
from cluster_agent.scheduler.job_columns import NEVER_S, Bools, Float64s, Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.moment import Moment
from cluster_agent.scheduler.native.native_replay import Engine, NativeReplay
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.swf import TraceError

if TYPE_CHECKING:  # a short replay is as long as its imports
    from cluster_agent.replay.drawn import EmptyNodes
    from cluster_agent.replay.simulated import SimulatedMachine
    from cluster_agent.scheduler.configurations.table import Configuration
    from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
    from cluster_agent.scheduler.native.native_unlike import CUnlike
    from cluster_agent.scheduler.plans.looks import Look
    from cluster_agent.scheduler.plans.planning import Outcome


SLICES: Final = 200
"""Ours: how often a replay reports its progress. The cost is not measurable."""
SLICE_S: Final = 0.05
"""Ours: a slice that takes longer is halved, so that Ctrl-C, which counts between two of them, ends a slow replay, too.
A pass by itself cannot be divided."""


class Decided(msgspec.Struct, frozen=True):
    """What a scheduler in another process has decided in addition to starts. The intervals of processors of all jobs,
    (first, last), both included; where those of each job begin, and how many they are; which jobs it has killed."""

    intervals: Int32s
    first: Int64s
    count: Int32s
    is_killed: Bools


class Result(msgspec.Struct, frozen=True):
    """The results of a replay. Every job has ended, except those in ``unstarted``."""

    world: World  # as submitted: in a closed loop its jobs are in another order, at other times
    schedule: NativeReplay
    moments: Mapping[int, Moment] = {}
    """Those that were requested, by time."""
    from_s: int | None = None
    """When it starts, if not with its first job."""
    idle_off_s: int | None = None
    admitted_w: Float64s | None = None
    """On nodes, of each job."""
    chosen: Sequence[Configuration | None] = ()
    """With configurations: that of each job, with true times and watts; None: it was not started."""
    outcomes: Sequence[Outcome] = ()
    """Of each pass of a policy with a planner."""
    looks: Sequence[Look] = ()
    """Of a portfolio,"""
    looked: Mapping[str, object] | None = None
    """and how often each member was chosen."""
    plan_s: Sequence[float] = ()
    """Seconds of each of its plans."""
    switches: Mapping[str, int] = {}
    """What of the site is modelled, and how often each changed anything (``docs/replay.md``)."""
    empty: EmptyNodes | None = None
    """From ``from_s`` on, if jobs that ended before are no longer in it."""
    decided: Decided | None = None
    """By a scheduler in another process."""

    @property
    def jobs(self) -> Jobs:
        """As submitted."""
        return self.world.jobs

    @property
    def start_s(self) -> Int64s:
        """When each job was started, -1: never."""
        return self.schedule.start_s

    @property
    def run_s(self) -> Int64s:
        """How long each job ran here: longer than in the log at a lower frequency, shorter if it was killed at last, as
        long as its configuration takes."""
        end_s = self.schedule.end_s
        return np.where(end_s < 0, self.jobs.run_s, end_s - self.start_s)

    @property
    def is_killed(self) -> Bools:
        """Which jobs were killed and not requeued."""
        if self.decided is not None:
            return self.decided.is_killed
        if self.schedule.requeues:
            return np.zeros(len(self.jobs), np.bool_)
        return self.schedule.kills > 0

    @property
    def unstarted(self) -> int:
        """Jobs that never started; 0 if every job fits the machine."""
        return len(self.jobs) - self.schedule.ended

    def since(self, from_s: int) -> Result:
        """Of a warm start: without the jobs that had ended before, which were no longer the policy's."""
        is_over = (self.schedule.end_s >= 0) & (self.schedule.end_s < from_s)
        if is_over.all():
            raise TraceError(f"{self.world.trace.path}: all its jobs had ended before: give a log of later ones")
        empty, kept = None, np.flatnonzero(~is_over)
        if self.world.nodes is not None:
            from cluster_agent.replay.drawn import empty_nodes  # only here: a short replay is as long as its imports

            empty = empty_nodes(self, from_s)  # what goes by jobs that have ended
        schedule = copy(self.schedule)
        schedule.since(self.moments[from_s], is_over)
        left = self.world.only(kept)
        admitted_w = None if self.admitted_w is None else self.admitted_w[kept]
        chosen = [self.chosen[job] for job in kept.tolist()] if self.chosen else ()
        return msgspec.structs.replace(
            self, world=left, schedule=schedule, from_s=from_s, admitted_w=admitted_w, chosen=chosen, empty=empty
        )


def with_job_watts(world: World, composition: Composition) -> World:
    """With the columns of watts that the policy needs of a log of processors."""
    if world.watts is None or composition.power is None:
        return world
    from cluster_agent.workloads.job_watts import of_jobs  # as above

    return msgspec.structs.replace(world, watts=of_jobs(world.watts, world.workload, composition.power))


def _nobody(ended: int) -> None:
    """Progress that nobody sees."""


def run(
    world: World, composition: Composition, advance: Callable[[int], None] = _nobody, at_s: Sequence[int] = ()
) -> Result:
    """Replay. ``advance`` is called from time to time with the number of jobs that have ended. ``at_s``: of these times
    the result has the moments. ``ClusterError`` if a plan to be repeated is of another replay."""
    world, looped = with_job_watts(world, composition), None
    if world.loop is not None:
        from cluster_agent.replay.closed_loop import Looped  # as above

        looped = Looped(world, world.loop)
        world = looped.world
    answers = None if looped is None else looped.answers
    engine = Engine(world, composition, looped)
    failures = None
    if world.failures is not None:
        from cluster_agent.scheduler.switches.failures import CFailures  # as above

        failures = CFailures(world.failures.failures)
    given = engine.given | {"answering": answers, "failures": failures}
    schedule = NativeReplay(engine.composition, engine.jobs, engine.processors, **given)
    moments = run_to_end(schedule, advance, at_s)
    if looped is not None:
        world = looped.came(schedule.submitted)
    result = Result(
        world,
        schedule,
        moments,
        idle_off_s=composition.idle_off_s,
        admitted_w=None if engine.unlike is None else engine.unlike.admitted_w,
        chosen=engine.moldable.chosen() if engine.moldable is not None else (),
        switches=engine.switches | ({} if failures is None else failures.switches) | _preempted(schedule),
    )
    if composition.portfolio is not None:
        from cluster_agent.scheduler.plans.looks import looks_of  # as above

        looks = schedule.looks
        looked, world = looks_of(looks, composition.portfolio.names), msgspec.structs.replace(world, looks=looks)
        return msgspec.structs.replace(result, world=world, looks=looks, looked=looked)
    return result if engine.unlike is None or engine.unlike.planned is None else _planned(result, engine.unlike)


def _preempted(schedule: NativeReplay) -> dict[str, int]:
    """How many best-effort jobs waited, were preempted, or ran while another job waited, so that without the switch
    nothing else happens if it is 0; nothing where there are none."""
    jobs, start_s = schedule.jobs, schedule.start_s
    if jobs.best_effort is None:
        return {}
    others = ~jobs.best_effort & (start_s != jobs.submit_s)
    began_s, ended_s = np.sort(jobs.submit_s[others]), np.sort(np.where(start_s < 0, NEVER_S, start_s)[others])
    another_waits = np.searchsorted(began_s, schedule.end_s, "left") > np.searchsorted(ended_s, start_s, "right")
    changed = (schedule.kills > 0) | (start_s != jobs.submit_s) | another_waits
    return {"best_effort": int((changed & jobs.best_effort).sum())}


def _planned(result: Result, unlike: CUnlike) -> Result:
    """With the outcomes of its plans; a replay of its world repeats them."""
    from cluster_agent.scheduler.plans.planning import equal  # as above

    assert unlike.planned is not None
    outcomes, recorded = unlike.planned.outcomes(result.start_s), result.world.plan
    if recorded is not None and not equal(outcomes, recorded):
        raise ClusterError(
            "the recorded plan is not of this replay: the machine refuses starts of it, or it goes on after the end;"
            " give the trace, cap, machine and policy that it was recorded with"
        )
    world = msgspec.structs.replace(result.world, plan=outcomes)
    return msgspec.structs.replace(result, world=world, outcomes=outcomes, plan_s=unlike.planned.deciding.plan_s)


def stepped(
    world: World,
    composition: Composition,
    meter: Meter = unmetered,
    made: Callable[..., SimulatedMachine] | None = None,
) -> tuple[NativeScheduler, SimulatedMachine]:
    """For the loop in Python, with a predictor that has learned nothing yet. ``world``: as submitted; ``made``: makes
    another machine."""
    from cluster_agent.replay.simulated import SimulatedMachine  # as above
    from cluster_agent.scheduler.native.native_scheduler import NativeScheduler

    world = with_job_watts(world, composition)
    engine, watts = Engine(world, composition), world.watts
    scheduler = NativeScheduler(engine.composition, engine.jobs, engine.processors, meter=meter, **engine.given)
    slowdown, requeues = (watts.slowdown, watts.requeues) if watts else ((1.0,), True)
    machine = (made or SimulatedMachine)(engine.jobs, composition.ties, slowdown, requeues, world.recorded)
    return scheduler, machine


def impossible(world: World, composition: Composition) -> Int64s:
    """The jobs that the policy would start in none of their configurations, even on an empty cluster under the last
    cap."""
    from cluster_agent.scheduler.power_cap import constant

    engine = Engine(msgspec.structs.replace(world, caps=constant(world.caps.watts[-1])), composition)
    schedule = NativeReplay(engine.composition, engine.jobs, engine.processors, **engine.given)
    return np.flatnonzero(schedule.impossible())


def run_to_end(schedule: NativeReplay, advance: Callable[[int], None], at_s: Sequence[int] = ()) -> dict[int, Moment]:
    """Run until no event is left; ``advance`` is called from time to time with the number of jobs that have ended.
    Returns the moments ``at_s``."""
    most, step = max(len(schedule.jobs) // SLICES, 1), 1
    moments = {}
    for pause_s in [*sorted({*at_s}), NEVER_S]:
        schedule.pause_at(pause_s)
        goal, began_s = schedule.ended + step, perf_counter()
        while schedule.run(goal) and schedule.ended >= goal:
            advance(schedule.ended)
            step = min(2 * step, most) if perf_counter() - began_s < SLICE_S / 2 else max(step // 2, 1)
            goal, began_s = schedule.ended + step, perf_counter()
        if pause_s < NEVER_S:
            moments[pause_s] = schedule.moment(pause_s)
    advance(schedule.ended)
    return moments
