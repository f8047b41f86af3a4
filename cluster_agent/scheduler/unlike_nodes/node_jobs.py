"""Jobs and machines whose resources are counted per node: cores, GPUs, accelerator cards (MICs), memory.

A job requests a number of equal units; all units start together, each on one node, several on one node if they fit
(Bridi, PhD thesis, Bologna 2018, ch. 3; PBS calls a unit a chunk).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.cluster import Machine, NodeGroup
from cluster_agent.scheduler.job_columns import Bools, Float64s, Int64s, Jobs

RESOURCES: Final = ("cores", "gpus", "mics", "memory_kib")
CORES, GPUS, MICS, MEMORY = range(len(RESOURCES))
"""The columns of every table of resources."""

PLACES: Final = len(RESOURCES)
"""A column more of the engine: each node has one place, which a job takes that has its nodes alone (live ones do)."""

KIB_PER_GIB: Final = 1 << 20


class Nodes(msgspec.Struct, frozen=True):
    """What each node has, ``has[node, resource]``, and the assumed power of jobs of unknown power."""

    has: Int64s
    unit_w: float = 0.0  # per unit
    gpu_w: float = 0.0  # per GPU requested
    mic_w: float = 0.0
    group: tuple[NodeGroup, ...] = ()
    """Of each node: what it draws idle and off, and what switching takes; empty: nothing."""

    def __len__(self) -> int:
        return len(self.has)

    @property
    def highest_w(self) -> float | None:
        """What a node draws at most with all its cores and cards busy; None: the machine file does not say."""
        if not self.group or not all(group.busy_w for group in self.group):
            return None
        return max(
            (group.busy_max_w or group.busy_w)[0] + group.gpus * group.gpu_w + group.mics * group.mic_w
            for group in self.group
        )

    def assumed_w(self, jobs: NodeJobs) -> Float64s:
        """Per job, as if only its request were known."""
        total = jobs.total()
        watts: Float64s = self.unit_w * jobs.units + self.gpu_w * total[:, GPUS] + self.mic_w * total[:, MICS]
        return watts


def nodes_of(machine: Machine) -> Nodes:
    """The nodes of a machine file, group after group.

    A unit of unknown power is assumed to draw the highest watts of a busy node, or if the file does not have these, of
    an idle one; GPUs and MICs are added.
    """
    groups = machine.groups
    has = [[group.cores, group.gpus, group.mics, round(group.memory_gb * KIB_PER_GIB)] for group in groups]
    return Nodes(
        np.repeat(np.array(has, np.int64), [group.count for group in groups], axis=0),
        max(max(group.busy_max_w or group.busy_w or (group.idle_w,)) for group in groups),
        max(group.gpu_w for group in groups),
        max(group.mic_w for group in groups),
        tuple(group for group in groups for _ in range(group.count)),
    )


@dataclass(frozen=True, slots=True)
class NodeJobs:
    """``Jobs`` with what they request of nodes. ``jobs.width`` is the number of cores over all units."""

    jobs: Jobs
    name: tuple[str, ...]  # as in the trace, which need not be a number
    units: Int64s
    need: Int64s  # need[job, resource], of one unit
    watts: Float64s  # of the whole job while it runs; NaN: unknown, and not assumed yet
    knows_watts: Bools
    queue: tuple[str, ...]
    max_wait_s: Int64s  # the wait that the job's queue promises; 0: none

    def __len__(self) -> int:
        return len(self.jobs)

    def total(self) -> Int64s:
        """``total[job, resource]`` over all units."""
        whole: Int64s = self.need * self.units[:, None]
        return whole

    def filled(self, jobs: Jobs, table: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> NodeJobs:
        """With columns that a closed loop fills in as the jobs come: ``jobs``, and what ``table`` makes of the others.
        Names and queues stay as they are."""
        columns = {name: table(getattr(self, name)) for name in COLUMNS}
        return NodeJobs(jobs, name=self.name, queue=self.queue, **columns)

    def only(self, rows: Int64s) -> NodeJobs:
        """The jobs ``rows``, in that order."""
        return NodeJobs(
            self.jobs.only(rows),
            name=tuple(self.name[row] for row in rows),
            queue=tuple(self.queue[row] for row in rows),
            **{name: getattr(self, name)[rows] for name in COLUMNS},
        )


COLUMNS: Final = ("units", "need", "watts", "knows_watts", "max_wait_s")


def with_places(table: Int64s, places: int) -> Int64s:
    """With the column ``PLACES``, unless the table has one."""
    if table.shape[1] > PLACES:
        return table
    return np.concatenate([table, np.full((len(table), 1), places, np.int64)], axis=1)
