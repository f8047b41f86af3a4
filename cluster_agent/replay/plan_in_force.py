"""The plan in force at an instant of a replay, and how often its policy keeps the starts that it promises.

A job's *promised* start is the one in the first plan that has it. It is kept if the job starts then, or before. Jobs
that come later, and a better order, may put off a start; ends before the requested time bring it forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay.output_columns import intervals
from cluster_agent.replay.world_run import Result, run
from cluster_agent.scheduler.plans.plan_phase import Plan, PlanBudget, Planner, Situation
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World


class Line(NamedTuple):
    """A job that runs, or is planned to. Times in seconds of the replay; the end is by the requested time."""

    job: str
    state: Literal["runs", "planned"]
    start_s: int
    end_s: int
    promised_s: int | None  # None: it was in no plan
    nodes: str  # intervals of their numbers


class Promises(msgspec.Struct, frozen=True):
    """Of all jobs that were in a plan: how many started, how many of these by the promised start, and how late the
    others were."""

    jobs: int
    on_time: int
    late_mean_s: float
    late_max_s: int


class PlanInForce(msgspec.Struct, frozen=True):
    """At ``at_s``; made at ``made_s``, None: nobody had waited by then."""

    at_s: int
    made_s: int | None
    lines: tuple[Line, ...]
    promises: Promises


class _Watched:
    """A planner whose plans are looked at."""

    def __init__(self, planner: Planner, at_s: int) -> None:
        self._planner, self._at_s = planner, at_s
        self.made_s: int | None = None
        self.plan: Plan = ()
        self.promised_s: dict[int, int] = {}

    def __call__(self, situation: Situation, budget: PlanBudget) -> Plan:
        plan = self._planner(situation, budget)
        if situation.now_s <= self._at_s:
            self.made_s, self.plan = situation.now_s, plan
        for start in plan:
            self.promised_s.setdefault(start.job, start.at_s)
        return plan


def plan_at(world: World, composition: Composition, at_s: int) -> PlanInForce:
    """The world's replay is run to its end. ``WrongUseError`` if the policy makes no plan."""
    if composition.plan is None:
        raise WrongUseError("this policy makes no plan: choose planned, or another one with a planner")
    watched = _Watched(composition.plan, at_s)
    result = run(world, msgspec.structs.replace(composition, plan=watched))
    if at_s > (last_s := int(result.schedule.end_s.max(initial=0))):
        raise ClusterError(f"--at {at_s}: the replay is over at {last_s} s; give an earlier second")
    return PlanInForce(at_s, watched.made_s, tuple(_lines(result, watched, at_s)), _promises(result, watched))


def _lines(result: Result, watched: _Watched, at_s: int) -> Sequence[Line]:
    jobs, promised_s = result.jobs, watched.promised_s
    names = jobs.name or tuple(map(str, jobs.number.tolist()))
    found = []
    for job, (start_s, end_s) in enumerate(zip(result.start_s.tolist(), result.schedule.end_s.tolist(), strict=True)):
        if 0 <= start_s <= at_s < end_s:
            nodes = intervals(result.schedule.placed(job).node)
            until_s = start_s + int(jobs.request_s[job])
            found.append(Line(names[job], "runs", start_s, until_s, promised_s.get(job), nodes))
    for job, start_s, placed in watched.plan:
        if int(result.start_s[job]) > at_s:
            nodes = "" if placed is None else intervals(placed.node)
            until_s = start_s + int(jobs.request_s[job])
            found.append(Line(names[job], "planned", start_s, until_s, promised_s[job], nodes))
    return sorted(found, key=lambda line: (line.state == "planned", line.start_s))


def _promises(result: Result, watched: _Watched) -> Promises:
    start_s = result.start_s
    late_s = [max(int(start_s[job]) - at_s, 0) for job, at_s in watched.promised_s.items() if start_s[job] >= 0]
    broken_s = [one for one in late_s if one]
    mean_s = sum(broken_s) / len(broken_s) if broken_s else 0.0
    return Promises(len(late_s), len(late_s) - len(broken_s), mean_s, max(broken_s, default=0))
