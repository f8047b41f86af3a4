"""Machines whose resources are counted per node: cores, GPUs, accelerator cards (MICs), memory.

A job requests a number of equal units; all units start together, each on one node, several on one node if they fit
(Bridi, PhD thesis, Bologna 2018, ch. 3; PBS calls a unit a chunk).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from cluster_agent.cluster import Machine, NodeGroup
from cluster_agent.scheduler.job_columns import RESOURCES, Float64s, Int64s, Jobs

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
    def group_bit(self) -> Int64s:
        """Of each node: its group of the machine file, as a bit."""
        groups = self._groups
        return np.array([1 << groups.index(id(group)) for group in self.group], np.int64)

    def bits_of(self, names: Sequence[Sequence[str]]) -> Int64s:
        """Per job the groups of these names, as bits; 0: all."""
        groups, known = self._groups, {group.name: 1 << self._groups.index(id(group)) for group in self.group}
        bits = np.array([sum(known.get(name, 0) for name in dict.fromkeys(one)) for one in names], np.int64)
        return np.where(bits == (1 << len(groups)) - 1, 0, bits)

    @property
    def _groups(self) -> list[int]:
        return list(dict.fromkeys(id(group) for group in self.group))

    @property
    def highest_w(self) -> float | None:
        """What a node draws at most with all its cores and cards busy; None: the machine file does not say."""
        if not self.group or not all(group.busy_w for group in self.group):
            return None
        return max(
            (group.busy_max_w or group.busy_w)[0] + group.gpus * group.gpu_w + group.mics * group.mic_w
            for group in self.group
        )

    def assumed_w(self, jobs: Jobs) -> Float64s:
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


def with_places(table: Int64s, places: int) -> Int64s:
    """With the column ``PLACES``, unless the table has one."""
    if table.shape[1] > PLACES:
        return table
    return np.concatenate([table, np.full((len(table), 1), places, np.int64)], axis=1)
