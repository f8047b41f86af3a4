"""The state of a replayed machine at an instant (``workloads.state_file``), as the replay went."""

from __future__ import annotations

import numpy as np

from cluster_agent.replay.log_run import Result
from cluster_agent.workloads.state_file import VERSION, MachineState, StateJob
from cluster_agent.workloads.swf import EXECUTABLE, USER


def state_at(at_s: int, result: Result, policy: str, zero_unix_s: int | None) -> MachineState:
    """All that happened before ``at_s``. For how long jobs would run that had not ended is left out."""
    workload, schedule = result.workload, result.schedule
    jobs, start_s, end_s = workload.jobs, schedule.start_s, schedule.end_s
    user, application = workload.log.columns[[USER, EXECUTABLE]][:, workload.row]
    found = [
        StateJob(
            job=int(jobs.number[job]),
            submit_s=int(jobs.submit_s[job]),
            width=int(jobs.width[job]),
            request_s=int(jobs.request_s[job]) if workload.has_requests else None,
            user=int(user[job]),
            start_s=int(start_s[job]) if 0 <= start_s[job] < at_s else None,
            end_s=int(end_s[job]) if 0 <= end_s[job] < at_s else None,
            run_s=None if workload.has_requests or 0 <= end_s[job] < at_s else int(jobs.run_s[job]),
            application=str(application[job]) if application[job] >= 0 else "",
        )
        for job in np.flatnonzero(jobs.submit_s < at_s)
    ]
    return MachineState(VERSION, "replay", policy, at_s, workload.processors, found, zero_unix_s)
