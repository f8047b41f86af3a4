"""Jobs and machines whose resources are counted per node: cores, GPUs, accelerator cards (MICs), memory.

A job asks for a number of equal units; all units start together, each on one node, several on one node if they fit
(Bridi, PhD thesis, Bologna 2018, §2; PBS calls a unit a chunk).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster_agent.scheduler.jobs import Bools, Int64s, Jobs

Float64s: TypeAlias = npt.NDArray[np.float64]

RESOURCES: Final = ("cores", "gpus", "mics", "memory_kib")
CORES, GPUS, MICS, MEMORY = range(len(RESOURCES))
"""The columns of every table of resources."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """What each node has: ``has[node, resource]``."""

    has: Int64s

    def __len__(self) -> int:
        return len(self.has)


@dataclass(frozen=True, slots=True)
class NodeJobs:
    """``Jobs`` with what they ask of nodes. ``jobs.width`` is the number of cores over all units."""

    jobs: Jobs
    name: tuple[str, ...]  # as in the trace, which need not be a number
    units: Int64s
    need: Int64s  # need[job, resource], of one unit
    watts: Float64s  # of the whole job while it runs; assumed (``assumed_watts``) where not known
    knows_watts: Bools
    queue: tuple[str, ...]
    max_wait_s: Int64s  # the wait that the job's queue promises; 0: none

    def __len__(self) -> int:
        return len(self.jobs)

    def total(self) -> Int64s:
        """``total[job, resource]`` over all units."""
        whole: Int64s = self.need * self.units[:, None]
        return whole

    def only(self, rows: Int64s) -> NodeJobs:
        """The jobs ``rows``, in that order."""
        jobs, index = self.jobs, [int(row) for row in rows]
        _, user = np.unique(jobs.user[rows], return_inverse=True)
        return NodeJobs(
            Jobs(
                number=jobs.number[rows],
                submit_s=jobs.submit_s[rows],
                run_s=jobs.run_s[rows],
                request_s=jobs.request_s[rows],
                width=jobs.width[rows],
                user=user.astype(np.int32),
            ),
            name=tuple(self.name[row] for row in index),
            units=self.units[rows],
            need=self.need[rows],
            watts=self.watts[rows],
            knows_watts=self.knows_watts[rows],
            queue=tuple(self.queue[row] for row in index),
            max_wait_s=self.max_wait_s[rows],
        )


NODE_W: Final = 40.0
GPU_W: Final = 62.0
MIC_W: Final = 115.0
"""What a job of unknown power is taken to draw, as in the simulator of Borghesi et al. (PA-HPC-SIM): two idle sockets
of 20 W per node, an idle and active GPU of 12 + 50 W, a MIC of 115 W."""


def assumed_watts(units: Int64s, gpus: Int64s, mics: Int64s) -> Float64s:
    """The draw of jobs whose power nobody knows; ``gpus`` and ``mics`` over all units."""
    watts: Float64s = NODE_W * units + GPU_W * gpus + MIC_W * mics
    return watts
