"""Watts of a live partition for a policy that owns them: what nodes may draw together, and each node's cap.

The engine counts a node as a processor. A level is a cap: the watts of a busy node at a frequency, as the machine file
has them. So a job is slowed by a lower cap on its nodes, and a node without a job has the cap of an idle one. Nothing
else enforces a decision: caps go through the ledger, which raises one only once others have come down.

A job's walltime is wall-clock time, at whatever level it runs. So the engine plans without slowdowns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from cluster_agent.cluster import UW, Machine, Topology
from cluster_agent.jobs.job import Job
from cluster_agent.jobs.owned_watts.live_owner import Engine, NodeBudget, Owner, Table
from cluster_agent.prediction.job_power import PowerPredictor, Submission
from cluster_agent.scheduler.interfaces import Meter, unmetered
from cluster_agent.scheduler.job_columns import Int32s
from cluster_agent.scheduler.native.governor import NO_CAP, Watts, admitted_uw
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition

UW_PER_MW: Final = UW // 1000

CAPPED: Final = "killed for a power cap"
"""The reason of a job that the policy ends."""

PAUSE_S: Final = 30.0
"""Ours: how long no job is started while jobs that were killed for a cap end: their nodes and their place in the queue
are theirs. After that the others do not wait for a job that does not end, or a node that does not report it."""


class OwnedWatts(Owner):
    """The watts of a partition. ``machine``: its first group of nodes says what a node draws at each level."""

    owns_watts = counts_every_node = True

    def __init__(self, machine: Machine, phases: Composition, meter: Meter = unmetered) -> None:
        assert phases.power is not None
        super().__init__(phases, machine.node.busy_w[0] if machine.has_watts else None, meter)
        self.power = phases.power
        self.requeues = self.power.requeue
        self._machine = machine
        self._lowest = np.zeros(0, np.int32)
        self._planned_uw = self._wanted_uw = np.zeros(0, np.int64)
        self._width = np.zeros(0, np.int32)
        self._allowed_uw = NO_CAP
        self._of = self._watts(1)
        self._predictor = self._new_predictor()
        self._ended: list[Job] = []

    # --- for the engine

    def _engine(self, table: Table) -> Engine:
        jobs = table.jobs
        self._lowest = np.zeros(len(jobs), np.int32)
        self._planned_uw = np.full(len(jobs), self._of.plan_uw[0], np.int64)
        self._wanted_uw, self._width = self._planned_uw.copy(), jobs.width
        self._allowed_uw = NO_CAP
        self._predictor = self._new_predictor()
        self._ended.clear()
        engine = super()._engine(table)
        self._of = self._watts(engine.processors)
        return engine._replace(resources={"watts": self._of})

    def add(self, row: int, job: Job) -> None:
        """The job has this row of the table. A volunteer's may be slowed, others' not. Its watts are predicted once."""
        if self.power.admitted is not None:
            job.planned_uw = job.planned_uw or self._predicted_uw(job)
            self._wanted_uw[row] = job.planned_uw
            self._admit(np.array([row], np.int32))
        self._lowest[row] = self._of.lowest if job.spec.eco else 0
        job.level = min(job.level, len(self._of.plan_uw) - 1)  # the machine file may have changed

    def adopted(self, row: int, job: Job, now_s: int) -> dict[str, Any]:
        """It counts as it was admitted."""
        self._planned_uw[row] = self._wanted_uw[row]
        return {}

    def started(self, row: int, job: Job) -> None:
        """With the watts that it was admitted with."""
        if self.power.admitted is not None:
            job.planned_uw = int(self._planned_uw[row])

    def _admit(self, rows: Int32s) -> None:
        self._planned_uw[rows] = admitted_uw(self._wanted_uw[rows], self._width[rows], self._allowed_uw, self._of)

    def ended(self, job: Job) -> None:
        """Predictions learn from what its nodes have drawn."""
        if self.power.admitted is not None and job.account.joules and job.account.covered_s > 0:
            self._ended.append(job)

    def _new_predictor(self) -> PowerPredictor:
        return PowerPredictor(lambda job: job.units * self._of.plan_uw[0] / UW)

    def _predicted_uw(self, job: Job) -> int:
        for past in sorted(self._ended, key=lambda one: one.id):
            watts = (past.account.joules or 0.0) / past.account.covered_s * past.spec.nodes
            self._predictor.learn(_submission(past), watts)
        self._ended.clear()
        predicted = self._predictor.predict(_submission(job))
        watts = predicted.maximum_w if self.power.admitted == "maximum" else predicted.average_w
        uw = round(watts * self.power.margin / job.spec.nodes * UW)
        return min(max(uw, self._of.idle_uw + 1), self._of.plan_uw[0])

    # --- for the keeper of the budget

    def _put_in_force(
        self, scheduler: NativeScheduler, budget: NodeBudget, before: NodeBudget | None, now_s: int
    ) -> None:
        """The policy reacts to a budget that changed, not to what is set aside: a node that falls silent kills no
        job."""
        is_reacting = before is not None and budget.steps != before.steps
        scheduler.announce(budget.caps(now_s), now_s, is_reacting)
        self._allowed_uw = scheduler.allowed_uw
        self._admit(np.array(scheduler.queue(), np.int32))

    @property
    def idle_mw(self) -> int:
        """The cap of a node without a job."""
        return self._of.idle_uw // UW_PER_MW

    def busy_mw(self, job: Job, name: str) -> int:
        """The cap of a node with this job."""
        return (job.planned_uw or self._of.plan_uw[job.level]) // UW_PER_MW

    # --- inside

    def _watts(self, nodes: int) -> Watts:
        node = msgspec.structs.replace(self._machine.node, count=max(nodes, 1), cores=1)
        watts = Watts.of(Machine(self._machine.name, (node,), Topology(), self._machine.degradation), self.power)
        return replace(
            watts,
            slowdown=(1.0,) * len(watts.slowdown),
            requeues=False,  # a killed job waits again once its nodes say that it has ended
            job_lowest=self._lowest if self.power.volunteers is not None else None,
            job_plan_uw=self._planned_uw if self.power.admitted is not None else None,
        )


def _submission(job: Job) -> Submission:
    """What is known at submission."""
    spec = job.spec
    text = " ".join((job.title, spec.tag, *spec.command))
    return Submission(str(job.uid), text, spec.nodes, spec.nodes, 0, 0, 0, spec.walltime_s)
