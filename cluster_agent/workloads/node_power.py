"""A trace's jobs as inputs of the power predictor, for policies that admit by predicted watts."""

from __future__ import annotations

from typing import Final

from cluster_agent.prediction.admitted_power import AdmittedPower, Guard
from cluster_agent.prediction.job_power import Submission
from cluster_agent.prediction.models import Model
from cluster_agent.scheduler.power_phases import Admitted
from cluster_agent.scheduler.unlike_nodes.node_jobs import CORES, GPUS, MEMORY, MICS, Nodes
from cluster_agent.workloads.node_trace import NodeTrace
from foundation.shell.extension import Extension

LEAST_W: Final = 1.0
"""Ours: the least watts with which a job is admitted."""


def submission(trace: NodeTrace, job: int) -> Submission:
    """What was known of ``job`` when it was submitted."""
    jobs = trace.jobs
    units, need = int(jobs.units[job]), jobs.total_of(job)
    return Submission(
        user=trace.user[job],
        text=trace.text[job],
        units=units,
        cores=int(need[CORES]),
        gpus=int(need[GPUS]),
        mics=int(need[MICS]),
        memory_kib=int(need[MEMORY]),
        request_s=int(jobs.request_s[job]),
    )


def tdp_w(nodes: Nodes, job: Submission) -> float:
    """The assumed power of a job of which only the request is known."""
    return nodes.unit_w * job.units + nodes.gpu_w * job.gpus + nodes.mic_w * job.mics


class PredictedPower:
    """``PowerSource`` of a replay."""

    def __init__(
        self, trace: NodeTrace, nodes: Nodes, of: Admitted, guard: Guard | None = None,
        model: Extension[Model] | None = None,
    ) -> None:  # fmt: skip
        self._submissions = [submission(trace, job) for job in range(len(trace.jobs))]
        self._power_w = trace.jobs.watts
        self._admitted = AdmittedPower(
            lambda job: nodes.unit_w * job.units,
            lambda job: nodes.gpu_w * job.gpus + nodes.mic_w * job.mics,
            of,
            guard,
            model,
        )

    def predict(self, job: int) -> float:
        """Watts of the whole job."""
        return max(self._admitted.admit(job, self._submissions[job]), LEAST_W)

    def learn(self, job: int, watts: float) -> None:
        """A trace has one figure per job, taken as both mean and maximum."""
        self._admitted.learn(job, self._submissions[job], watts)

    def metered(self, job: int) -> float | None:
        """The job's power in a replay: what the trace measured or assumed."""
        return float(self._power_w[job])
