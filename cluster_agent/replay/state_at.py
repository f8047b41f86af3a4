"""The state of a replayed machine at an instant (``workloads.state_file``), as the replay went."""

from __future__ import annotations

from msgspec.structs import replace

from cluster_agent.replay.log_run import Result
from cluster_agent.replay.measures import joules_between
from cluster_agent.scheduler.native.moment import Moment
from cluster_agent.workloads.state_file import VERSION, MachineState, StateJob
from cluster_agent.workloads.swf import EXECUTABLE, USER

ROUNDING_S = 1.5
"""Ours: ends are whole seconds, so what a job has done is known to about one."""


def state_at(at_s: int, result: Result, policy: str, zero_unix_s: int | None) -> MachineState:
    """All that happened before ``at_s``, one of the result's moments. For how long jobs would run that had not ended is
    left out."""
    workload, moment = result.workload, result.moments[at_s]
    user, application = workload.log.columns[[USER, EXECUTABLE]][:, workload.row]
    found = [
        replace(
            _job(result, moment, job),
            user=int(user[job]),
            application=str(application[job]) if application[job] >= 0 else "",
        )
        for job in range(moment.submitted)
    ]
    stored_j = _stored_j(at_s, result)
    return MachineState(VERSION, "replay", policy, at_s, workload.processors, found, zero_unix_s, stored_j=stored_j)


def departure(state: MachineState, result: Result) -> int | None:
    """The first job, by its number, to which something else happened in the replay before the state; None: it is the
    state's past."""
    moment = result.moments[state.t0_s]
    for index in range(max(moment.submitted, len(state.jobs))):
        ours = _job(result, moment, index) if index < moment.submitted else None
        theirs = state.jobs[index] if index < len(state.jobs) else None
        if ours is None or theirs is None or _past(ours) != _past(theirs):
            return (theirs or ours or state.jobs[0]).job
    return None


def _past(job: StateJob) -> tuple[int | float | None, ...]:
    level = job.level if job.what == "running" else 0
    return job.job, job.submit_s, job.width, job.start_s, job.end_s, job.is_killed, level, job.done_s


def _job(result: Result, moment: Moment, job: int) -> StateJob:
    workload, schedule = result.workload, result.schedule
    jobs, start_s, end_s = workload.jobs, int(moment.start_s[job]), int(moment.end_s[job])
    run_s, has_ended = int(jobs.run_s[job]), end_s >= 0
    is_killed = has_ended and moment.kills is not None and not schedule.requeues and moment.kills[job] > 0
    level = int(moment.level[job]) if moment.level is not None and start_s >= 0 else 0
    done_s = moment.done_s.get(job)
    if done_s is not None and schedule.watts is not None:
        straight_s = (moment.at_s - start_s) / schedule.watts.slowdown[level]
        done_s = None if abs(straight_s - done_s) < ROUNDING_S else round(done_s, 3)
    is_known = run_s != end_s - start_s and not is_killed if has_ended else not workload.has_requests
    return StateJob(
        job=int(jobs.number[job]),
        submit_s=int(jobs.submit_s[job]),
        width=int(jobs.width[job]),
        request_s=int(jobs.request_s[job]) if workload.has_requests else None,
        start_s=start_s if start_s >= 0 else None,
        end_s=end_s if has_ended else None,
        run_s=run_s if is_known else None,
        level=level,
        done_s=done_s,
        is_killed=bool(is_killed),
    )


def _stored_j(at_s: int, result: Result) -> float | None:
    """Of a budget whose window is open."""
    budget = result.schedule.watts.budget if result.schedule.watts is not None else None
    if budget is None or budget.rule == "powercap" or not budget.from_s <= at_s < budget.to_s:
        return None
    from_s = max(budget.from_s, int(result.workload.jobs.submit_s[0]))
    return budget.stored_j + budget.limit_w * max(at_s - from_s, 0) - joules_between(result.schedule, from_s, at_s)
