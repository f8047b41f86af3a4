"""The state of a replayed machine at an instant (``workloads.state_file``), as the replay went.

What happened to the jobs of a result by one of its moments is ``past_of`` it. For how long jobs would run that had not
ended is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from cluster_agent.replay.measures import joules_between
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.job_columns import Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.moment import Moment
from cluster_agent.workloads.state_file import VERSION, MachineState, StateJob
from cluster_agent.workloads.swf import EXECUTABLE, USER

ROUNDING_S = 1.5
"""Ours: ends are whole seconds, so what a job has done is known to about one."""


def state_at(at_s: int, result: Result, policy: str, zero_unix_s: int | None) -> MachineState:
    """All that happened before ``at_s``, one of the result's moments."""
    world, found = result.world, past_of(result, result.moments[at_s])
    processors = len(world.nodes) if world.nodes is not None else world.workload.processors
    if world.kind != "processors":
        return MachineState(VERSION, "replay", policy, at_s, processors, found)
    user, application = world.workload.log.columns[[USER, EXECUTABLE]][:, world.workload.row]
    found = [
        replace(one, user=int(user[job]), application=str(application[job]) if application[job] >= 0 else "")
        for job, one in enumerate(found)
    ]
    stored_j = _stored_j(at_s, result)
    return MachineState(VERSION, "replay", policy, at_s, processors, found, zero_unix_s, stored_j=stored_j)


def departure(state: MachineState, ours: Sequence[StateJob]) -> int | None:
    """The first job, by its number, to which something else happened in a replay before the state; None: its past is
    the state's."""
    for index in range(max(len(ours), len(state.jobs))):
        of_both = [_compared(jobs[index]) if index < len(jobs) else None for jobs in (state.jobs, ours)]
        if of_both[0] != of_both[1]:
            return (state.jobs if index < len(state.jobs) else ours)[index].job
    return None


def _compared(job: StateJob) -> tuple[object, ...]:
    running = (job.level, job.done_s, job.nodes) if job.what == "running" else ()
    return job.job, job.submit_s, job.width, job.start_s, job.end_s, job.is_killed, *running


def past_of(result: Result, moment: Moment) -> list[StateJob]:
    """The jobs that had come. On nodes ``width`` is units, each on one of these, component after component; with
    configurations the nodes that a job was given, else those that it requests."""
    jobs, width = result.jobs, result.jobs.width
    if result.world.kind == "nodes":
        return [_on_nodes(result, job, one) for job, one in enumerate(_past(jobs, jobs.units, moment))]
    if result.world.kind == "configurations":
        given = [0 if way is None else way.nodes for way in result.chosen]
        return _past(jobs, np.where(moment.start_s < 0, width, given), moment)
    found = _past(jobs, width, moment, result.world.workload.has_requests)
    return found if result.schedule.watts is None else _with_watts(found, result.schedule.watts, moment)


def _with_watts(found: list[StateJob], watts: Watts, moment: Moment) -> list[StateJob]:
    """With their frequencies, and whether they were killed."""
    assert moment.level is not None and moment.kills is not None
    for job, one in enumerate(found):
        level = int(moment.level[job]) if one.start_s is not None else 0
        is_killed = one.end_s is not None and not watts.requeues and bool(moment.kills[job] > 0)
        run_s, done_s = None if is_killed else one.run_s, None
        if one.start_s is not None and one.end_s is None:
            straight_s = (moment.at_s - one.start_s) / watts.slowdown[level]
            has_changed = abs(straight_s - moment.done_s[job]) > ROUNDING_S
            done_s = round(moment.done_s[job], 3) if has_changed else None
        found[job] = replace(one, level=level, is_killed=is_killed, run_s=run_s, done_s=done_s)
    return found


def _on_nodes(result: Result, job: int, one: StateJob) -> StateJob:
    if one.start_s is None:
        return one
    apart = result.jobs.apart(job, result.schedule.placed(job))
    units = [node for _, own in apart for node in np.sort(np.repeat(own.node, own.count)).tolist()]
    return replace(one, nodes=list(map(str, units)))


def _past(jobs: Jobs, width: Int64s | Int32s, moment: Moment, has_requests: bool = True) -> list[StateJob]:
    found = []
    for job in range(moment.submitted):
        start_s, end_s, run_s = int(moment.start_s[job]), int(moment.end_s[job]), int(jobs.run_s[job])
        is_known = run_s != end_s - start_s if end_s >= 0 else not has_requests
        found.append(
            StateJob(
                job=int(jobs.number[job]),
                submit_s=int(jobs.submit_s[job]),
                width=int(width[job]),
                request_s=int(jobs.request_s[job]) if has_requests else None,
                start_s=start_s if start_s >= 0 else None,
                end_s=end_s if end_s >= 0 else None,
                run_s=run_s if is_known else None,
            )
        )
    return found


def _stored_j(at_s: int, result: Result) -> float | None:
    """Of a budget whose window is open."""
    budget = result.schedule.watts.budget if result.schedule.watts is not None else None
    if budget is None or budget.rule == "powercap" or not budget.from_s <= at_s < budget.to_s:
        return None
    from_s = max(budget.from_s, int(result.jobs.submit_s[0]))
    return budget.stored_j + budget.limit_w * max(at_s - from_s, 0) - joules_between(result.schedule, from_s, at_s)
