"""A state on nodes that differ, and the trace that it was taken from, for another policy that starts from it.

The trace says what each job needs; the state, when and where it was started. What the trace submits before the state
was taken and the state does not have is dropped, and counted.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.recorded import Recorded, Start
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from cluster_agent.workloads.node_trace import NodeTrace
from cluster_agent.workloads.state_file import MachineState, StateError, StateJob
from cluster_agent.workloads.warm_log import not_in_state


class NodeStart(msgspec.Struct, frozen=True):
    """``on``: the nodes of the jobs that were started."""

    recorded: Recorded
    on: dict[int, Placed]


def warm_on(nodes: Nodes, path: str, state: MachineState, trace: NodeTrace) -> tuple[NodeTrace, NodeStart]:
    """The jobs, and when and where those of the state were started; ``StateError`` if they do not fit."""
    of = {job.job: job for job in state.jobs}
    is_kept = (trace.jobs.submit_s >= state.t0_s) | np.isin(trace.jobs.number, list(of))
    findings = trace.findings
    if not is_kept.all():
        findings = (*findings, not_in_state(trace.line[~is_kept]))
    trace = trace.only(np.flatnonzero(is_kept))
    jobs = trace.jobs
    index = {number: job for job, number in enumerate(jobs.number.tolist())}
    run_s, request_s = jobs.run_s.copy(), jobs.request_s.copy()
    starts, on = [], dict[int, Placed]()
    for job in state.jobs:
        row = index.get(job.job)
        if row is None or (int(jobs.submit_s[row]), int(trace.jobs.units[row])) != (job.submit_s, job.width):
            raise StateError(
                f"{path}: job {job.job} is not in {trace.path} with its submit_s and width: give its trace"
            )
        if job.start_s is None:
            continue
        lasted_s = max((state.t0_s if job.end_s is None else job.end_s) - job.start_s, 1)
        run_s[row] = lasted_s if job.end_s is not None else max(int(run_s[row]), lasted_s)
        request_s[row] = max(int(request_s[row]), lasted_s)
        starts.append(Start(job.start_s, row))
        on[row] = _placed(path, job, len(nodes), _units(jobs, row))
    jobs = replace(jobs, run_s=run_s, request_s=request_s)
    trace = replace(trace, jobs=jobs, findings=findings)
    start = NodeStart(Recorded(sorted(starts), state.t0_s), on)
    if reason := _without_room(nodes, trace, start):
        raise StateError(f"{path}: {reason}")
    return trace, start


def _units(jobs: Jobs, row: int) -> list[int]:
    """Of each component of the job."""
    units = jobs.units[[row]] if jobs.components is None else jobs.components.units[jobs.components.rows(row)]
    return list(map(int, units))


def _placed(path: str, job: StateJob, nodes: int, units: list[int]) -> Placed:
    """``units``: of each component, whose nodes follow one another."""
    names = [int(name) if name.isdecimal() and int(name) < nodes else -1 for name in job.nodes]
    if len(names) != job.width or -1 in names:
        raise StateError(f"{path}: job {job.job} has {job.width} units: give nodes, from 0 to {nodes - 1}, for each")
    ends = np.cumsum(units).tolist()
    of = [sorted(Counter(names[end - own : end]).items()) for own, end in zip(units, ends, strict=True)]
    rows = [row for own in of for row in own]
    return Placed(np.array([node for node, _ in rows]), np.array([count for _, count in rows]))


def _without_room(nodes: Nodes, trace: NodeTrace, start: NodeStart) -> str | None:
    """The first job that was started where there was no room."""
    jobs = trace.jobs
    free = nodes.has.copy()
    steps = [(one.start_s, 1, one.job) for one in start.recorded.starts]
    steps += [(one.start_s + int(jobs.run_s[one.job]), 0, one.job) for one in start.recorded.starts]
    for at_s, is_start, job in sorted(steps):
        on = start.on[job]
        for need, own in jobs.apart(job, on):
            free[own.node] += (-1 if is_start else 1) * own.count[:, None] * need[: free.shape[1]]
        if is_start and (free[on.node] < 0).any():
            node = int(on.node[(free[on.node] < 0).any(axis=1)][0])
            return f"job {jobs.number[job]} has no room on node {node} at {at_s} s: correct its nodes or times"
    return None
