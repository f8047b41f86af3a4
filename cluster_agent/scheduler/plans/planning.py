"""A pass with a planner: whose starts are tried, the planner's or those of the policy's own list schedule, and why.

The list schedule decides where the planner raises, is late, or returns no plan. A plan that would leave an idle machine
idle for ever is none: with nothing running, no change of the cap to come and watts for a waiting job, its first start
has to be possible now. So a replay comes to its end under any planner that returns.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.job_columns import NEVER_S, Int64s
from cluster_agent.scheduler.plans.plan_phase import Plan, PlanBudget, Planner, Situation, Start
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from foundation.shell.extension import in_one_line

DecidedBy: TypeAlias = Literal["planner", "list"]


class Outcome(msgspec.Struct, frozen=True):
    """What came of a pass: who decided, why not the planner, and the jobs that were started, in this order."""

    now_s: int
    decided_by: DecidedBy
    reason: str
    started: tuple[tuple[int, Placed], ...] = ()


def equal(some: Sequence[Outcome], others: Sequence[Outcome]) -> bool:
    """Whether these are the same decisions and starts."""
    return [*map(_plain, some)] == [*map(_plain, others)]


def _plain(one: Outcome) -> tuple[object, ...]:
    started = [(job, placed.node.tolist(), placed.count.tolist()) for job, placed in one.started]
    return one.now_s, one.decided_by, one.reason, started


class Tried(msgspec.Struct, frozen=True):
    """The waiting jobs in the order in which the engine tries them, those that it does not try last."""

    job: Int64s
    due: int
    """How many of them are tried."""
    placed: Mapping[int, Placed] = {}
    """Of those for which nodes were chosen."""
    wake_s: int = NEVER_S
    """When there has to be another pass, if no event comes before."""
    later_s: Mapping[int, int] = {}
    """The planned starts that are not due yet, by job."""


class Deciding(Protocol):
    """Who says what a pass tries."""

    outcomes: list[Outcome]
    """Without the jobs that were started."""
    plan_s: list[float]
    """Seconds of each plan. Not the same from run to run."""

    def decide(self, situation: Situation) -> Tried:
        """One pass; somebody waits."""
        ...


class Planning:
    """Asks a planner at each pass."""

    def __init__(self, planner: Planner, budget: PlanBudget) -> None:
        self._planner = planner
        self._budget = budget
        self.outcomes: list[Outcome] = []
        self.plan_s: list[float] = []

    def decide(self, situation: Situation) -> Tried:
        """The starts of the plan that are due, or if there is no plan the whole queue in the order of the rule."""
        plan, reason = self._planned(situation)
        self.outcomes.append(Outcome(situation.now_s, "list" if reason else "planner", reason))
        if reason:
            return Tried(situation.queue.job.astype(np.int64), len(situation.queue.job))
        due = [start for start in plan if start.at_s == situation.now_s]
        later_s = {start.job: int(start.at_s) for start in plan if start.at_s > situation.now_s}
        return replace(tried(situation, due, min(later_s.values(), default=NEVER_S)), later_s=later_s)

    def _planned(self, situation: Situation) -> tuple[Plan, str]:
        begun_s = time.perf_counter()
        try:
            plan = self._planner(situation, self._budget.begun())
        except Exception as error:
            return (), f"raised {in_one_line(error)}"
        finally:
            self.plan_s.append(time.perf_counter() - begun_s)
        limit_s = self._budget.time_s
        if limit_s is not None and self.plan_s[-1] > limit_s:
            return (), f"late: {self.plan_s[-1]:.3f} s of {limit_s:g} s"
        try:
            return plan, invalid(situation, plan)
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            return (), f"invalid: not a sequence of starts ({error})"


class Repeating:
    """Starts what a record says, and asks no planner."""

    def __init__(self, recorded: Sequence[Outcome]) -> None:
        self._recorded = recorded
        self.outcomes: list[Outcome] = []
        self.plan_s: list[float] = []

    def decide(self, situation: Situation) -> Tried:
        """The recorded starts of this pass; ``ClusterError`` if there is no such pass, or no such starts can be."""
        at = len(self.outcomes)
        found = self._recorded[at] if at < len(self._recorded) else None
        due = [Start(job, found.now_s, placed) for job, placed in found.started] if found is not None else []
        # a list schedule may leave an idle machine idle, if it has to; a plan may not
        reason_against = invalid if found is not None and found.decided_by == "planner" else impossible
        if found is None or found.now_s != situation.now_s or reason_against(situation, due):
            raise ClusterError(
                f"the recorded plan is not of this replay: at {situation.now_s} s it does not say what starts; give the"
                " trace, cap, machine and policy that it was recorded with"
            )
        self.outcomes.append(Outcome(found.now_s, found.decided_by, found.reason))
        wake_s = self._recorded[at + 1].now_s if at + 1 < len(self._recorded) else NEVER_S
        return tried(situation, due, wake_s)


def tried(situation: Situation, due: Sequence[Start], wake_s: int) -> Tried:
    """These starts first, and nobody else."""
    jobs = np.array([start.job for start in due], np.int64)
    others = situation.queue.job[~np.isin(situation.queue.job, jobs)]
    placed = {start.job: start.placed for start in due if start.placed is not None}
    return Tried(np.concatenate([jobs, others]), len(jobs), placed, wake_s)


def invalid(situation: Situation, plan: Plan) -> str:
    """Why this is no plan; empty: it is one."""
    if reason := impossible(situation, plan):
        return reason
    if not len(situation.running.job) and _could_start(situation):
        first = next((start for start in plan if start.at_s == situation.now_s), None)
        at = {job: position for position, job in enumerate(situation.queue.job.tolist())}
        if first is None or not _fits_alone(situation, at[first.job], first.placed):
            return "invalid: nothing runs, and no start that is possible now is planned first"
    return ""


def impossible(situation: Situation, plan: Plan) -> str:
    """Why these starts cannot be, whatever is free; empty: they can."""
    at = {job: position for position, job in enumerate(situation.queue.job.tolist())}
    seen: set[int] = set()
    for job, at_s, placed in plan:
        if job not in at or job in seen:
            return f"invalid: job {job} does not wait, or starts twice"
        seen.add(job)
        if at_s != int(at_s) or not situation.now_s <= at_s < NEVER_S:
            return f"invalid: job {job} starts at {at_s} s, which is not a second from now on"
        is_due = at_s == situation.now_s  # the nodes of others are looked at when they are
        if is_due and placed is not None and not _is_place(situation, at[job], placed):
            return f"invalid: the nodes of job {job} are not those of the machine, or not for all its units"
    return ""


def _could_start(situation: Situation) -> bool:
    """Whether there are watts for a waiting job, and no others are announced. In a replay that is so of every job once
    the cap has changed for the last time; live, watts may come that nobody has announced."""
    cap, now_s = situation.cap, situation.now_s
    return cap.next_change_s(now_s) is None and bool((situation.queue.watts <= cap.at(now_s)).any())


def _is_place(situation: Situation, position: int, placed: Placed) -> bool:
    node, count = np.asarray(placed.node), np.asarray(placed.count)
    is_whole = node.shape == count.shape and node.ndim == 1 and node.dtype.kind == count.dtype.kind == "i"
    is_known = is_whole and len(node) > 0 and node.min() >= 0 and node.max() < len(situation.free)
    is_some = is_known and (count > 0).all() and count.sum() == int(situation.queue.units[position])
    if not is_some or situation.components is None:
        return bool(is_some) and _are_once(node)
    apart = list(situation.components.apart(position, Placed(node, count)))
    units = situation.components.units
    return all(own.count.sum() == units[row] and _are_once(own.node) for row, own in apart)


def _are_once(node: Int64s) -> bool:
    return len(np.unique(node)) == len(node)


def _fits_alone(situation: Situation, position: int, placed: Placed | None) -> bool:
    """Whether the job can start on the idle machine; on nodes of the engine's choice any job finds room."""
    queue = situation.queue
    if queue.watts[position] > situation.cap.at(situation.now_s):
        return False
    if placed is None:
        return True
    if situation.components is None:
        return bool((placed.count[:, None] * situation.need[position] <= situation.free[placed.node]).all())
    free = situation.free.copy()
    for row, own in situation.components.apart(position, placed):
        free[own.node] -= own.count[:, None] * situation.components.need[row]
    return bool((free[placed.node] >= 0).all())
