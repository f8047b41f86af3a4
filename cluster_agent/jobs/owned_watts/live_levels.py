"""Watts of a live partition whose nodes are alike, for a policy that owns them: each node's cap is one of its levels.

The engine counts a node as a processor. A level is a cap: the watts of a busy node at a frequency, as the machine file
has them. So a job is slowed by a lower cap on its nodes, and a node without a job has the cap of an idle one. Nothing
else enforces a decision: caps go through the ledger, which raises one only once others have come down.

A job's walltime is wall-clock time, at whatever level it runs. So the engine plans without slowdowns.
"""

from __future__ import annotations

import time
from math import floor
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from cluster_agent.cluster import UW, Machine
from cluster_agent.jobs.job import Job, in_queue
from cluster_agent.jobs.owned_watts.live_counts import Counts
from cluster_agent.prediction.admitted_power import AdmittedPower
from cluster_agent.prediction.job_power import Submission
from cluster_agent.scheduler.job_columns import Int32s
from cluster_agent.scheduler.native.governor import NO_CAP, Watts, admitted_uw
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import LiveJobs, World

UW_PER_MW: Final = UW // 1000

CAPPED: Final = "killed for a power cap"
"""The reason of a job that the policy ends."""

PAUSE_S: Final = 30.0
"""Ours: how long no job is started while jobs that were killed for a cap end: their nodes and their place in the queue
are theirs. After that the others do not wait for a job that does not end, or a node that does not report it."""


LONGEST_TEXT: Final = 1000
"""Ours: signs of a submission's text that count."""


class LevelCounts(Counts):
    """``machine``: as it is planned."""

    def __init__(self, live: LiveJobs, machine: Machine, composition: Composition) -> None:
        assert composition.power is not None
        jobs, self._power = live.jobs, composition.power
        node = Watts.of(machine, self._power)
        self._lowest = np.zeros(len(jobs), np.int32)
        self._planned_uw = np.full(len(jobs), node.plan_uw[0], np.int64)
        self._wanted_uw, self._width = self._planned_uw.copy(), jobs.width
        self._allowed_uw = NO_CAP
        self._node = replace(
            node,
            requeues=False,  # a killed job waits again once its nodes say that it has ended
            job_lowest=self._lowest if self._power.volunteers is not None else None,
            job_plan_uw=self._planned_uw if self._power.admitted is not None else None,
        )
        self._predictor = AdmittedPower(
            lambda job: job.units * node.plan_uw[0] / UW, lambda job: 0.0, self._power.admitted or "average",
            self._power.guard, self._power.model, live.say, time.monotonic,
        )  # fmt: skip
        self._ended: list[Job] = []
        super().__init__(World(live, self._node), composition)

    def add(self, row: int, job: Job) -> None:
        """A volunteer's job may be slowed, others not. Its watts are predicted once."""
        if self._power.admitted is not None:
            job.planned_uw = self._within(job.planned_uw or self._predicted_uw(job))
            self._wanted_uw[row] = job.planned_uw
            self._admit(np.array([row], np.int32))
        self._lowest[row] = self._node.lowest if job.spec.eco else 0
        job.level = min(job.level, len(self._node.plan_uw) - 1)  # the machine file may have changed

    @property
    def trouble(self) -> str:
        """Why the site's model does not predict."""
        return self._predictor.trouble

    def adopted(self, row: int, job: Job, now_s: int) -> dict[str, Any]:
        """It counts as it was admitted."""
        self._planned_uw[row] = self._wanted_uw[row]
        return {}

    def started(self, row: int, job: Job) -> None:
        """With the watts that it was admitted with."""
        if self._power.admitted is not None:
            job.planned_uw = int(self._planned_uw[row])

    def ended(self, job: Job) -> None:
        """Predictions learn from what its nodes have drawn."""
        if self._power.admitted is not None and job.account.joules and job.account.covered_s > 0:
            self._ended.append(job)

    def announced(self, scheduler: NativeScheduler) -> None:
        """Jobs that wait count no more than the caps allow."""
        self._allowed_uw = scheduler.allowed_uw
        self._admit(np.array(scheduler.queue(), np.int32))

    def busy_mw(self, job: Job, name: str) -> int:
        """The cap of a node with this job."""
        return (job.planned_uw or self._node.plan_uw[job.level]) // UW_PER_MW

    def _admit(self, rows: Int32s) -> None:
        self._planned_uw[rows] = admitted_uw(self._wanted_uw[rows], self._width[rows], self._allowed_uw, self._node)

    def _predicted_uw(self, job: Job) -> int:
        for past in sorted(self._ended, key=_in_turn):
            width = len(past.nodes) or past.spec.nodes
            drawn_w = (past.account.joules or 0.0) / past.account.covered_s * width
            each_uw = max(round(drawn_w / width * UW), self._node.idle_uw)
            self._predictor.learn(past.id, submission(past), width * each_uw / UW)
        self._ended.clear()
        watts = self._predictor.admit(job.id, submission(job))
        job.without_model = self._predictor.model_failed
        return round(watts * self._power.margin / job.spec.nodes * UW)

    def _within(self, uw: int) -> int:
        """No more than a node can draw, and something above an idle one, which may count more than before."""
        return min(max(uw, self._node.idle_uw + 1), self._node.plan_uw[0])


def _in_turn(job: Job) -> tuple[Any, ...]:
    """In which order jobs teach: by the second of their ends, then as they joined the queue, as in a replay
    (``native.governor.Predicting``)."""
    return floor(job.ended_s or 0.0), in_queue(job)


def submission(job: Job) -> Submission:
    """What is known at submission. Of a long text its beginning counts: it is read in every prediction."""
    spec = job.spec
    words = " ".join((job.title, spec.tag, *spec.command)).split()
    return Submission(
        str(job.uid), " ".join(words)[:LONGEST_TEXT], spec.nodes, spec.nodes, 0, 0, 0, spec.walltime_s,
        login=job.user, title=" ".join(job.title.split())[:LONGEST_TEXT],
    )  # fmt: skip
