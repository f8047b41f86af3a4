"""What single jobs of a workload may be given: who volunteered to be slowed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_agent.replay.swf import QUEUE
from cluster_agent.replay.workload import Workload
from cluster_agent.scheduler.governor import Watts
from cluster_agent.scheduler.jobs import Bools
from cluster_agent.scheduler.power import Power, Volunteers


def of_jobs(watts: Watts, workload: Workload, power: Power) -> Watts:
    """``watts`` with the columns of jobs that the policy asks for; those that are there already stay."""
    if power.volunteers is None or watts.job_lowest is not None:
        return watts
    flags = volunteers(workload, power.volunteers)
    return replace(watts, job_lowest=np.where(flags, watts.lowest, 0).astype(np.int32))


def volunteers(workload: Workload, asked: Volunteers) -> Bools:
    """Which jobs may be slowed. A larger share drawn with the same seed contains a smaller one."""
    if asked.queue is not None:
        flags: Bools = workload.log.columns[QUEUE, workload.row] == asked.queue
        return flags
    drawn: Bools = np.random.default_rng(asked.seed).random(len(workload.jobs)) < asked.share
    return drawn
