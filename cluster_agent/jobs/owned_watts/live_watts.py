"""Watts of a live partition for a policy that owns them: what nodes may draw together, and each node's cap.

The engine counts a node as a processor. A level is a cap: the watts of a busy node at a frequency, as the machine file
has them. So a job is slowed by a lower cap on its nodes, and a node without a job has the cap of an idle one. Nothing
else enforces a decision: caps go through the ledger, which raises one only once others have come down.

A job's walltime is wall-clock time, at whatever level it runs. So the engine plans without slowdowns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any, Final

import msgspec
import numpy as np

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.cluster import UW, Machine, Topology
from cluster_agent.jobs.job import Job
from cluster_agent.jobs.job_runs import Run
from cluster_agent.prediction.job_power import PowerPredictor, Submission
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power

UW_PER_MW: Final = UW // 1000

CAPPED: Final = "killed for a power cap"
"""The reason of a job that the policy ends."""

PAUSE_S: Final = 30.0
"""Ours: how long no job is started while jobs that were killed for a cap end: their nodes and their place in the queue
are theirs. After that the others do not wait for a job that does not end, or a node that does not report it."""


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """What the nodes together may draw, as the keeper of the budget says: ``steps`` are (when, watts), the first one in
    force, of the partition's clock. ``aside_w`` of that is not the policy's: reserves, and what nodes may draw beyond
    what is planned for them."""

    steps: tuple[tuple[float, float], ...]
    aside_w: float = 0.0

    def caps(self, now_s: int) -> list[Cap]:
        """For the engine, in whole seconds: a lower cap begins early, a higher one late."""
        begins_s = [now_s]
        for (_, before_w), (at_s, watts) in zip(self.steps, self.steps[1:], strict=False):
            begins_s.append(max(floor(at_s) if watts < before_w else ceil(at_s), begins_s[-1]))
        ends_s = [*begins_s[1:], FOREVER_S]
        return [
            Cap(from_s, to_s, max(watts - self.aside_w, 0.0))
            for from_s, to_s, (_, watts) in zip(begins_s, ends_s, self.steps, strict=True)
            if from_s < to_s and watts < float("inf")
        ]


class Budgeted:
    """The part of all owners of watts that has the budget, and the one that the scheduler knows."""

    _budget: NodeBudget | None = None
    _announced: NodeBudget | None = None

    def set_budget(self, budget: NodeBudget) -> bool:
        """Whether this is another budget than before."""
        is_new, self._budget = budget != self._budget, budget
        return is_new


class OwnedWatts(Budgeted):
    """The watts of a partition. ``machine``: its first group of nodes says what a node draws at each level."""

    def __init__(self, machine: Machine, power: Power) -> None:
        self.power = power
        self._machine = machine
        self._lowest = np.zeros(0, np.int32)
        self._planned_uw = np.zeros(0, np.int64)
        self._of = self._watts(1)
        self._predictor = self._new_predictor()
        self._ended: list[Job] = []

    @property
    def requeues(self) -> bool:
        """Whether a job that was killed for a cap waits again."""
        return self.power.requeue

    # --- for the engine

    def begin(self, nodes: int, rows: int) -> Watts:
        """For a new table of jobs."""
        self._lowest = np.zeros(rows, np.int32)
        self._planned_uw = np.full(rows, self._of.plan_uw[0], np.int64)
        self._predictor = self._new_predictor()
        self._ended.clear()
        self._of = self._watts(nodes)
        self._announced = None
        return self._of

    def add(self, row: int, job: Job) -> None:
        """The job has this row of the table. A volunteer's may be slowed, others' not. Its watts are predicted once."""
        if self.power.admitted is not None:
            job.planned_uw = job.planned_uw or self._predicted_uw(job)
            self._planned_uw[row] = job.planned_uw
        self._lowest[row] = self._of.lowest if job.spec.eco else 0
        job.level = min(job.level, len(self._of.plan_uw) - 1)  # the machine file may have changed

    def adopted(self, row: int, job: Job, now_s: int) -> dict[str, Any]:
        """What the scheduler has to know more of a job that runs already."""
        return {}

    def occupy(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """The same of a row that takes these nodes, and draws no more than idle ones."""
        return {}

    def width(self, row: int, job: Job) -> int:
        """How many nodes a job that starts gets."""
        return job.spec.nodes

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

    def announce(self, scheduler: NativeScheduler, now_s: int) -> bool:
        """Put a new budget in force. The policy reacts to a budget that changed, not to what is set aside: a node that
        falls silent kills no job. Whether a pass is due."""
        budget, before = self._budget, self._announced
        if budget is None or budget == before:
            return False
        is_reacting = before is not None and budget.steps != before.steps
        self._announced = budget
        scheduler.announce(budget.caps(now_s), now_s, is_reacting)
        return True

    # --- for the keeper of the budget

    @property
    def idle_mw(self) -> int:
        """The cap of a node without a job."""
        return self._of.idle_uw // UW_PER_MW

    def idle_caps_mw(self) -> dict[str, int]:
        """Of the nodes without a job, those whose caps are not ``idle_mw``."""
        return {}

    def caps_mw(self, runs: Iterable[Run]) -> dict[str, int]:
        """The caps of nodes with a job. One that is being killed has that of an idle node."""
        return {
            name: self.idle_mw
            if one.is_killed
            else (one.job.planned_uw or self._of.plan_uw[one.job.level]) // UW_PER_MW
            for one in runs
            for name, part in one.parts.items()
            if not part.is_over
        }

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


class LiveScheduler(NativeScheduler):
    """The engine of a live partition; ``is_paused`` says whether passes have to wait."""

    def __init__(
        self, composition: Composition, jobs: Jobs, nodes: int, watts: Watts | None, is_paused: Callable[[], bool],
        **given: Any,
    ) -> None:  # fmt: skip
        super().__init__(composition, jobs, nodes, watts, **given)
        self.is_pass_due = False
        """Whether a pass had to wait."""
        self._is_paused = is_paused

    def submit(self, now_s: int, job: int) -> bool:
        """It has waited since it joined the queue, which may be before a restart."""
        return super().submit(min(int(self._jobs.jobs.submit_s[job]), now_s), job)

    def decide(self, now_s: int) -> list[int]:
        """One pass, or none for now."""
        self.is_pass_due = self._is_paused()
        return [] if self.is_pass_due else super().decide(now_s)
