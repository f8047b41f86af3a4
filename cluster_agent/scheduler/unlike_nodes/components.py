"""Heterogeneous jobs: several components, each of so many equal units, which start together or not at all.

As Slurm's heterogeneous jobs: a component of two nodes with GPUs and one of eight without, for example. An ordinary job
is a list of one. The job has one walltime and one number of watts, the sum over its components; all of them have their
nodes from its start to its end.

The engine looks for the nodes of one component after the other, each next to those before it, so what the first ones
take may be what a later one needs. Therefore the scarcest comes first: that which could be on the fewest nodes; of
those that could be on equally many, that of whose units the machine has room for the fewest, as a share of those
requested. Where jobs have nodes alone, and each component can be on all nodes that a scarcer one can be on, this finds
nodes wherever there are any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

if TYPE_CHECKING:
    from cluster_agent.scheduler.job_columns import Bools, Int32s, Int64s
    from cluster_agent.scheduler.unlike_nodes.node_aware import Placed

MOST_COMPONENTS: Final = 16
"""Ours: of a job."""


class Components(msgspec.Struct, frozen=True):
    """Of all jobs of a table, job after job. ``first[job]``: the row of its first component; it has ``count[job]``."""

    first: Int32s
    count: Int32s
    # per row
    number: Int64s  # of the component in its job, from 0, as the job was described
    units: Int64s
    need: Int64s  # need[row, resource], of one unit
    within: Int64s  # the groups of nodes that it may be on, as bits; 0: all

    @classmethod
    def of(cls, count: Sequence[int], units: Int64s, need: Int64s) -> Components:
        """So many components of each job; ``units`` and ``need`` of all of them, job after job."""
        counts = np.array(count, np.int32)
        first = (np.cumsum(counts) - counts).astype(np.int32)
        number = np.arange(len(units)) - np.repeat(first, counts)
        return cls(first, counts, number, units, need, np.zeros(len(units), np.int64))

    @classmethod
    def growing(cls, jobs: int, kinds: int) -> Components:
        """Of a table that is filled in job by job. The first ``jobs`` rows are of jobs with one component, each at its
        own number, and those of the others follow; memory is taken only where a row is written."""
        rows = jobs * (1 + MOST_COMPONENTS)
        units, within, number = (np.zeros(rows, np.int64) for _ in range(3))
        first, count = np.arange(jobs, dtype=np.int32), np.ones(jobs, np.int32)
        return cls(first, count, number, units, np.zeros((rows, kinds), np.int64), within)

    def fill(self, job: int, requests: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Of ``growing``: (units, need of one) of each component of the job, which may be filled in again."""
        first = job if len(requests) == 1 else len(self.count) + MOST_COMPONENTS * job
        self.first[job], self.count[job] = first, len(requests)
        for row, (units, need) in enumerate(requests, first):
            self.units[row], self.need[row] = units, need

    @property
    def job(self) -> Int64s:
        """Of each row."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @property
    def most(self) -> int:
        """Components of a job; of a table that grows, as many as one may have."""
        return MOST_COMPONENTS if self._is_growing else int(self.count.max(initial=1))

    @property
    def _is_growing(self) -> bool:
        return len(self.units) > int(self.count.sum())

    def rows(self, job: int) -> slice:
        """Of this job."""
        return slice(int(self.first[job]), int(self.first[job] + self.count[job]))

    def only(self, jobs: Int64s | Bools) -> Components:
        """Those of these jobs, in that order."""
        count = self.count[jobs]
        first = (np.cumsum(count) - count).astype(np.int32)
        rows = np.repeat(self.first[jobs] - first, count) + np.arange(int(count.sum()))
        return replace(
            self, first=first, count=count, number=self.number[rows], units=self.units[rows], need=self.need[rows],
            within=self.within[rows],
        )  # fmt: skip

    def total(self) -> Int64s:
        """``total[job, resource]`` over all components; 0 of a table that grows."""
        found = np.zeros((len(self.count), self.need.shape[1]), np.int64)
        if self._is_growing:
            return found
        np.add.at(found, self.job, self.need * self.units[:, None])
        return found

    def scarcest_first(self, has: Int64s, group_bit: Int64s) -> Components:
        """With the components of each job in the order in which nodes are looked for, on nodes that have this."""
        job, (nodes, shares) = self.job, np.zeros((2, len(self.units)))
        for row in np.flatnonzero(self.count[job] > 1).tolist():  # most jobs have one
            nodes[row], shares[row] = self._scarcity(row, has, group_bit)
        rows = np.lexsort((self.number, shares, nodes, job))
        return replace(
            self, number=self.number[rows], units=self.units[rows], need=self.need[rows], within=self.within[rows]
        )

    def _scarcity(self, row: int, has: Int64s, group_bit: Int64s) -> tuple[float, float]:
        fits = room_for(has, self.need[row], group_bit, int(self.within[row]))
        return float((fits > 0).sum()), float(fits.sum()) / int(self.units[row])

    def apart(self, job: int, placed: Placed) -> Iterator[tuple[int, Placed]]:
        """Of each component of the job, its row and its nodes, of those of the job."""
        at, left = 0, 0
        for row in range(*self.rows(job).indices(len(self.units))):
            begin, left = at, int(self.units[row])
            while left > 0 and at < len(placed.node):
                left -= int(placed.count[at])
                at += 1
            yield row, replace(placed, node=placed.node[begin:at], count=placed.count[begin:at])


def room_for(has: Int64s, need: Int64s, group_bit: Int64s, within: int) -> Int64s:
    """How many units of this ``need`` have room on each of the nodes that have this; many where it needs nothing."""
    is_needed = need > 0
    if not is_needed.any():
        return np.full(len(has), 1 << 31, np.int64)
    fits: Int64s = (has[:, is_needed] // need[is_needed]).min(axis=1)
    return fits if not within else np.where(group_bit & within, fits, 0)
