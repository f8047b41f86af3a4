"""Policies for machines of unlike nodes under a power cap, and which jobs could never run there.

A job starts if all its units find room and if, at every instant of its span, the watts of the jobs expected to run then
and its own stay within the cap then in force. So a cap that will fall is kept before it falls, and no job need be
killed, as long as no job runs longer than requested and none draws more than it was admitted with. The engine is that
of processors, with other resources (``csrc/resources/nodes.c``).

The queue is served in the order of a *rule*. What happens behind a job that cannot start is the *backfill*:

none     no job overtakes                                   } Bridi, PhD thesis, Bologna 2018, ch. 6: rule-based,
list     the next ones are tried, which may delay it for ever } strict and non-strict
easy     it gets a reservation of nodes and watts, at the earliest time at which the expected ends leave room for it;
         others start if they leave it that (after Lifka 1995; with watts as in Borghesi et al., SUSCOM 2018)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, get_args

import msgspec
import numpy as np

from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.policy_phases import Placing
from cluster_agent.scheduler.power_cap import PowerCap, drawn_uw, whole_uw
from cluster_agent.scheduler.power_phases import Predictor
from cluster_agent.scheduler.unlike_nodes.components import room_for
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes


class PowerSource(Predictor, Protocol):
    """A predictor that also measures running jobs."""

    def metered(self, job: int) -> float | None:
        """The running job's power; None: not known before it ends."""
        ...


class Placed(msgspec.Struct, frozen=True):
    """Units of a job on nodes: ``count[i]`` on ``node[i]``."""

    node: Int64s
    count: Int64s


def allowed_w(jobs: Jobs, job: int, cap: PowerCap) -> float:
    """The most that the job could draw if it ran alone, at the best time for it."""
    submit_s, span_s = int(jobs.submit_s[job]), int(jobs.request_s[job])
    starts_s = (submit_s, *(time_s for time_s in cap.time_s if time_s > submit_s))
    return max(cap.least(start_s, start_s + span_s) for start_s in starts_s)


def impossible(jobs: Jobs, nodes: Nodes, cap: PowerCap) -> Sequence[tuple[int, str]]:
    """The jobs that could not run even alone, and why."""
    found, group_bit = [], nodes.group_bit
    for job in range(len(jobs)):
        if jobs.components is not None and jobs.components.count[job] > 1:
            fits = _fit_together(jobs, nodes, job)
        else:
            room = room_for(nodes.has, jobs.need[job], group_bit, int(jobs.within[job]))
            fits = bool(room.sum() >= jobs.units[job])
        if not fits:
            found.append((job, "jobs too large for the machine's nodes"))
        elif drawn_uw(float(jobs.watts[job])) > whole_uw(allowed_w(jobs, job, cap)):
            found.append((job, "jobs that draw more than the cap ever allows"))
    return found


def _fit_together(jobs: Jobs, nodes: Nodes, job: int) -> bool:
    """Whether the engine finds nodes for all components of the job if nobody else runs, however it places them."""
    from cluster_agent.scheduler.native.native_unlike import alone  # only here: few jobs have several components

    return all(alone(jobs.only(np.array([job])), nodes, placing) for placing in get_args(Placing))
