"""A replay on unlike nodes under a power cap: one trace, one policy, from start to end.

Watts are the power of jobs, and of nodes that boot for them; idle nodes are not counted, as in the published
comparisons. What they draw is measured apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cluster_agent.cluster import NodeGroup
from cluster_agent.errors import ClusterError
from cluster_agent.replay.log_run import run_to_end
from cluster_agent.replay.measures import bounded_slowdown, running_w
from cluster_agent.scheduler.idle_off import switch_s
from cluster_agent.scheduler.job_columns import Float64s, Int64s
from cluster_agent.scheduler.native.moment import Moment
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_unlike import CUnlike
from cluster_agent.scheduler.plans.planning import Outcome, equal
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.unlike_nodes.node_aware import PowerSource
from cluster_agent.scheduler.unlike_nodes.node_jobs import RESOURCES, Nodes
from cluster_agent.workloads.node_trace import NodeTrace
from cluster_agent.workloads.warm_nodes import NodeStart

if TYPE_CHECKING:
    from cluster_agent.replay.closed_loop import ClosedLoop

TAU_S: Final = 60
"""The tau of bounded slowdown in the published figures for Eurora, not the usual 10 s."""

NEVER_S: Final = float("inf")

ROUNDING_W: Final = 1e-6
"""Ours: sums of watts in another order differ by less."""


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What came of a replay. ``start_s`` is -1 for a job that never started."""

    trace: NodeTrace  # as submitted: in a closed loop in another order, at other times
    nodes: Nodes
    cap: PowerCap
    start_s: Int64s
    schedule: NativeReplay
    admitted_w: Float64s
    outcomes: Sequence[Outcome] = ()
    """Of each pass of a policy with a planner."""
    plan_s: Sequence[float] = ()
    """Seconds of each of its plans."""
    moments: Mapping[int, Moment] = field(default_factory=dict)
    """Those that were requested, by time."""
    from_s: int = 0
    """When it starts."""
    idle_off_s: int | None = None
    empty: EmptyNodes | None = None
    """From there on, if jobs that ended before are no longer in it."""

    @property
    def unstarted(self) -> int:
        """Jobs that never started."""
        return int((self.start_s < 0).sum())

    def since(self, from_s: int) -> NodeResult:
        """Without the jobs that had ended before."""
        is_over = (self.schedule.end_s >= 0) & (self.schedule.end_s < from_s)
        if is_over.all():
            raise ClusterError(f"{self.trace.path}: all its jobs had ended before: give a trace of later ones")
        empty = empty_nodes(self, from_s)  # what goes by jobs that have ended
        self.schedule.since(self.moments[from_s], is_over)
        left, kept = self.trace.only(np.flatnonzero(~is_over)), ~is_over
        admitted_w = self.admitted_w[kept]
        return replace(self, trace=left, start_s=self.start_s[kept], admitted_w=admitted_w, from_s=from_s, empty=empty)


def replay_nodes(
    trace: NodeTrace,
    composition: Composition,
    nodes: Nodes,
    cap: PowerCap,
    power: PowerSource | None = None,
    advance: Callable[[int], None] = lambda ended: None,
    recorded: Sequence[Outcome] | None = None,
    loop: ClosedLoop | None = None,
    at_s: Sequence[int] = (),
    start: NodeStart | None = None,
) -> NodeResult:
    """Replay ``trace``; ``advance`` is called from time to time with the number of jobs that have ended. ``recorded``:
    the outcomes of the same replay, repeated without its planner; ``ClusterError`` if they are of another one.
    ``loop``: submissions follow from the schedule. ``at_s``: of these times the result has the moments.
    ``start``: a warm start, of a policy without a planner and without a closed loop."""
    if loop is None:
        unlike = CUnlike(composition, trace.jobs, nodes, cap, power, recorded, on=start.on if start else None)
        started = start.recorded if start else None
        schedule = NativeReplay(unlike.phases, trace.jobs.jobs, unlike.processors, unlike=unlike, recorded=started)
        moments = run_to_end(schedule, advance, at_s)
    else:
        trace, unlike, schedule, moments = _closed(trace, composition, nodes, cap, power, advance, recorded, loop, at_s)
    result = NodeResult(
        trace,
        nodes,
        cap,
        schedule.start_s,
        schedule,
        unlike.admitted_w,
        moments=moments,
        idle_off_s=composition.idle_off_s,
    )
    if unlike.planned is None:
        return result
    outcomes = unlike.planned.outcomes(result.start_s)
    if recorded is not None and not equal(outcomes, recorded):
        raise ClusterError(
            "the recorded plan is not of this replay: the machine refuses starts of it, or it goes on after the end;"
            " give the trace, cap, machine and policy that it was recorded with"
        )
    return replace(result, outcomes=outcomes, plan_s=unlike.planned.deciding.plan_s)


def _closed(
    trace: NodeTrace,
    composition: Composition,
    nodes: Nodes,
    cap: PowerCap,
    power: PowerSource | None,
    advance: Callable[[int], None],
    recorded: Sequence[Outcome] | None,
    loop: ClosedLoop,
    at_s: Sequence[int],
) -> tuple[NodeTrace, CUnlike, NativeReplay, dict[int, Moment]]:
    """The replay in a closed loop, and the trace as it was submitted there."""
    from cluster_agent.replay.closed_loop import never_came, submissions  # as in ``log_run``

    submitted, answers = submissions(trace.jobs.jobs, trace.wait_s, loop)
    jobs, row = trace.jobs.filled(submitted, answers.table), answers.table(np.arange(len(trace.jobs)))
    power = None if power is None else _InOrder(power, row)
    unlike = CUnlike(composition, jobs, nodes, cap, power, recorded, answers.table)
    schedule = NativeReplay(unlike.phases, submitted, unlike.processors, answering=answers, unlike=unlike)
    moments = run_to_end(schedule, advance, at_s)
    if len(never := row[schedule.submitted :]):
        trace = replace(trace, findings=(*trace.findings, never_came(trace.line[never])))
    trace = trace.only(row)
    return replace(trace, jobs=replace(trace.jobs, jobs=submitted)), unlike, schedule, moments


@dataclass(frozen=True, slots=True)
class _InOrder:
    """The predictor of a trace, for jobs in the order of submission. ``row``: their places in the trace."""

    power: PowerSource
    row: Int64s

    def predict(self, job: int) -> float:
        """Watts of the whole job."""
        return self.power.predict(int(self.row[job]))

    def learn(self, job: int, watts: float) -> None:
        """The job has ended."""
        self.power.learn(int(self.row[job]), watts)

    def metered(self, job: int) -> float | None:
        """The running job's power."""
        return self.power.metered(int(self.row[job]))


@dataclass(frozen=True, slots=True)
class PowerOverTime:
    """Watts and the cap as steps: ``watts[i]`` and ``cap_w[i]`` are those from ``time_s[i]`` to ``time_s[i + 1]``."""

    time_s: Int64s
    watts: Float64s
    cap_w: Float64s

    @property
    def over_j(self) -> float:
        """Watt-seconds above the cap."""
        over_w = np.maximum(self.watts - self.cap_w, 0.0)
        over_w[over_w < ROUNDING_W] = 0.0
        return float((over_w[:-1] * np.diff(self.time_s)).sum())


@dataclass(slots=True)
class EmptyNodes:
    """What nodes without a job drew from ``begin_s`` to the last end. ``boots``: (from, to, watts)."""

    begin_s: int
    idle_j: float = 0.0
    off_j: float = 0.0
    switching_j: float = 0.0
    boots: list[tuple[int, int, float]] = field(default_factory=list)

    def add(self, group: NodeGroup, from_s: int, to_s: int, goes_s: float, taken_s: float) -> None:
        """A node of this group runs no job from ``from_s`` to ``to_s``; it goes off at ``goes_s``, if no job has taken
        it by then."""
        if min(taken_s, to_s) <= goes_s:
            self.idle_j += group.idle_w * self._lasts_s(from_s, to_s)
            return
        switch_off_s, boot_s = switch_s(group)
        off_s = goes_s + switch_off_s
        on_s = max(off_s, taken_s) + boot_s
        self.idle_j += group.idle_w * self._lasts_s(from_s, goes_s)
        self.switching_j += group.switch_off_j * self._lasts_s(goes_s, min(off_s, to_s)) / max(switch_off_s, 1)
        self.off_j += group.off_w * self._lasts_s(off_s, min(on_s - boot_s, to_s))
        if taken_s < NEVER_S:
            boot_w = group.boot_j / max(boot_s, 1)
            self.switching_j += boot_w * self._lasts_s(on_s - boot_s, on_s)
            self.idle_j += group.idle_w * self._lasts_s(on_s, to_s)
            if on_s > self.begin_s:
                self.boots.append((max(int(on_s) - boot_s, self.begin_s), int(on_s), boot_w))

    def _lasts_s(self, from_s: float, to_s: float) -> float:
        return max(to_s - max(from_s, self.begin_s), 0)


def empty_nodes(result: NodeResult, from_s: int = 0) -> EmptyNodes:
    """Of a machine whose file says what its nodes draw; else nothing."""
    if result.empty is not None:
        return result.empty
    found, jobs = EmptyNodes(from_s), result.trace.jobs.jobs
    started, groups = np.flatnonzero(result.start_s >= 0), result.nodes.group
    end_s, decided_s = result.start_s + jobs.run_s, result.schedule.decided_s
    last_s = int(end_s[started].max(initial=0))
    runs: list[list[tuple[int, int, float]]] = [[] for _ in groups]
    for job in started.tolist() if groups else ():
        for node in result.schedule.placed(job).node.tolist():
            runs[node].append((int(result.start_s[job]), int(end_s[job]), float(decided_s[job])))
    for group, on_node in zip(groups, runs, strict=True):
        on_node = [*sorted(on_node), (last_s, last_s, NEVER_S)]
        taken = accumulate((taken_s for *_, taken_s in reversed(on_node)), min)  # by this job or a later one
        empty_s = 0
        for (begins_s, ends_s, _), taken_s in zip(on_node, reversed(list(taken)), strict=True):
            if begins_s > empty_s:
                goes_s = NEVER_S if result.idle_off_s is None else empty_s + result.idle_off_s
                found.add(group, empty_s, begins_s, goes_s, taken_s)
            empty_s = max(empty_s, ends_s)
    return found


def power_over_time(result: NodeResult) -> PowerOverTime:
    """The power of the running jobs, and of nodes that boot for them."""
    jobs, has_started = result.trace.jobs, result.start_s >= 0
    found = empty_nodes(result).boots if result.idle_off_s is not None else []
    boots = np.array(found, np.float64).reshape(-1, 3)
    ends_s = (result.start_s + jobs.jobs.run_s)[has_started]
    start_s = np.concatenate([result.start_s[has_started], boots[:, 0].astype(np.int64)])
    start_s = np.maximum(start_s, result.from_s)
    end_s = np.concatenate([ends_s, boots[:, 1].astype(np.int64)])
    watts = np.concatenate([jobs.watts[has_started], boots[:, 2]])
    at_s = np.concatenate([start_s, end_s])
    last_s = int(end_s.max(initial=0))
    change_s = [result.from_s, *(time_s for time_s in result.cap.time_s if result.from_s < time_s <= last_s)]
    time_s = np.unique(np.concatenate([at_s, np.array(change_s, np.int64)]))
    cap_w = result.cap.at_times(time_s)
    return PowerOverTime(time_s, running_w(time_s, start_s, end_s, watts), cap_w)


def measure_nodes(result: NodeResult) -> dict[str, Any]:
    """The content of ``metrics.json``. Waits in units of the queues' promises are as in Bridi ch. 4."""
    jobs, nodes = result.trace.jobs, result.nodes
    has_started = result.start_s >= 0
    start_s, run_s = result.start_s[has_started], jobs.jobs.run_s[has_started]
    wait_s = start_s - jobs.jobs.submit_s[has_started]
    bsld = bounded_slowdown(wait_s, run_s, TAU_S)
    power, empty = power_over_time(result), empty_nodes(result)
    span_s = max(int((start_s + run_s).max(initial=1)) - result.from_s, 1)
    lasts_s = start_s + run_s - np.maximum(start_s, result.from_s)
    busy = (jobs.total()[has_started] * lasts_s[:, None]).sum(axis=0)
    has = nodes.has.sum(axis=0)
    known = jobs.knows_watts
    return {
        "jobs": len(jobs),
        "ended": int(has_started.sum()),
        "unstarted": result.unstarted,
        "dropped": result.trace.dropped,
        "ended_at_request": int(result.trace.is_cut.sum()),
        "AVEbsld": float(bsld.mean()),
        "max_bsld": float(bsld.max(initial=0.0)),
        "bsld_tau_s": TAU_S,
        "wait_s": {"mean": float(wait_s.mean()), "median": float(np.median(wait_s)), "max": float(wait_s.max())},
        "waits_by_promise": promised_waits(wait_s, jobs.max_wait_s[has_started]),
        "makespan_s": span_s,
        "utilisation": {
            name: float(busy[kind] / (has[kind] * span_s)) if has[kind] else None for kind, name in enumerate(RESOURCES)
        },
        "energy_j": float((jobs.watts[has_started] * lasts_s).sum()),
        "idle_j": empty.idle_j,
        "off_j": empty.off_j,
        "switching_j": empty.switching_j,
        "boots": len(empty.boots),
        "highest_w": float(power.watts.max()),
        "above_cap_ws": power.over_j,
        "watts_known": float(known.mean()),
        "passes": result.schedule.passes,
        "longest_queue": result.schedule.longest_queue,
        **({"plans": plans_of(result)} if result.outcomes else {}),
    }


def plans_of(result: NodeResult) -> dict[str, Any]:
    """How many passes the planner decided, and how many the list schedule: it raised, was late, or invalid."""
    reasons = Counter(one.reason.split(":")[0].split()[0] for one in result.outcomes if one.decided_by == "list")
    return {"planner": len(result.outcomes) - reasons.total(), "list": reasons.total(), "reasons": dict(reasons)}


def pass_times(result: NodeResult) -> dict[str, float]:
    """How long deciding took, in seconds of processor time: AO and MO of Bridi ch. 4. Not the same from run to run."""
    pass_s = np.array(result.schedule.pass_s)
    found = {"pass_mean_s": float(pass_s.mean()), "pass_max_s": float(pass_s.max())}
    if result.outcomes:  # none of these if the plan was repeated
        found |= {"plan_mean_s": float(np.mean(result.plan_s or 0.0)), "plan_max_s": max(result.plan_s, default=0.0)}
    return found


def promised_waits(wait_s: Int64s, max_wait_s: Int64s) -> dict[str, float]:
    """Bridi ch. 4 over jobs whose queue promises a wait: WQT, NL, TR and WT."""
    has_promise = max_wait_s > 0
    wait_s, max_wait_s = wait_s[has_promise], max_wait_s[has_promise]
    late_s = np.maximum(wait_s - max_wait_s, 0)
    return {
        "WQT": float((wait_s / max_wait_s).sum()),
        "NL": int((late_s > 0).sum()),
        "TR": float(late_s.sum()),
        "WT": float((late_s / max_wait_s).sum()),
    }
