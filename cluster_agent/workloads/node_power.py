"""A trace's jobs in the words of the power predictor, for policies that admit by predicted watts."""

from __future__ import annotations

from typing import Final

from cluster_agent.prediction.job_power import PowerPredictor, Submission
from cluster_agent.scheduler.power_phases import Admitted
from cluster_agent.scheduler.unlike_nodes.node_jobs import CORES, GPUS, MEMORY, MICS, Nodes
from cluster_agent.workloads.node_trace import NodeTrace

LEAST_W: Final = 1.0
"""Ours: no job is admitted for less."""


def submission(trace: NodeTrace, job: int) -> Submission:
    """What was known of ``job`` when it was submitted."""
    jobs = trace.jobs
    units = int(jobs.units[job])
    need = jobs.need[job] * units
    return Submission(
        user=trace.user[job],
        text=trace.text[job],
        units=units,
        cores=int(need[CORES]),
        gpus=int(need[GPUS]),
        mics=int(need[MICS]),
        memory_kib=int(need[MEMORY]),
        request_s=int(jobs.jobs.request_s[job]),
    )


def tdp_w(nodes: Nodes, job: Submission) -> float:
    """What a job is taken to draw of which nothing but its request is known."""
    return nodes.unit_w * job.units + nodes.gpu_w * job.gpus + nodes.mic_w * job.mics


class PredictedPower:
    """``PowerSource`` of a replay."""

    def __init__(self, trace: NodeTrace, nodes: Nodes, of: Admitted) -> None:
        self._submissions = [submission(trace, job) for job in range(len(trace.jobs))]
        self._drawn_w = trace.jobs.watts
        self._of = of
        self._predictor = PowerPredictor(lambda job: tdp_w(nodes, job))
        self._known_w: dict[Submission, float] = {}  # since a job has last taught: users submit the same many times

    def predict(self, job: int) -> float:
        """Watts of the whole job."""
        asked = self._submissions[job]
        if asked not in self._known_w:
            found = self._predictor.predict(asked)
            self._known_w[asked] = max(found.maximum_w if self._of == "maximum" else found.average_w, LEAST_W)
        return self._known_w[asked]

    def learn(self, job: int, watts: float) -> None:
        """A trace holds one figure for each job, which is average and maximum at once."""
        self._predictor.learn(self._submissions[job], watts)
        self._known_w.clear()

    def metered(self, job: int) -> float | None:
        """What the trace says that the job drew, or was assumed to draw: that is what it draws in a replay."""
        return float(self._drawn_w[job])
