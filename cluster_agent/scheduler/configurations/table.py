"""Configurations of a job: nodes, cores and cap per socket, with the run time and the watts that they lead to.

RMAP's table (Patki et al., HPDC 2015, §4): rows of nodes, cores per node, cap per socket, time and total package watts,
measured or predicted, for each application. The caps of a row add up to more than its watts; a bound is kept since
the watts are right, not by the caps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from cluster_agent.cluster import NodeGroup
from cluster_agent.scheduler.power_cap import drawn_uw

COLUMNS: Final = ("application", "nodes", "cores", "cap_w", "time_s", "watts")
"""Of a file of rows."""


class Configuration(msgspec.Struct, frozen=True, gc=False):
    """One row."""

    nodes: int
    cores: int  # per node
    cap_w: float  # per socket
    time_s: float
    watts: float  # of all sockets together, on average

    @property
    def energy_j(self) -> float:
        """Joules of a run."""
        return self.time_s * self.watts

    @property
    def uw(self) -> int:
        """The watts as schedulers add them up."""
        return drawn_uw(self.watts)


Rows: TypeAlias = tuple[Configuration, ...]


class ScaledRows:
    """Per job the rows of a table with scaled times. They are computed when needed, since hundreds of rows for each of
    many thousands of jobs would fill the memory."""

    def __init__(self, tables: Sequence[Rows], table: Sequence[int], scale: Sequence[float]) -> None:
        self.tables = [by_time(rows) for rows in tables]
        self.table = table  # of each job
        self.scale = scale

        @lru_cache(maxsize=1024)  # usually more than the waiting jobs
        def rows_of(at: int, times: float) -> Rows:
            return tuple(replace(row, time_s=row.time_s * times) for row in self.tables[at])

        self._rows = rows_of

    @classmethod
    def of(cls, rows: Sequence[Rows]) -> ScaledRows:
        """Tables that some jobs share, each with its own times."""
        tables: dict[int, int] = {}
        place = [tables.setdefault(id(one), len(tables)) for one in rows]
        of_place = dict(zip(place, rows, strict=True))
        return cls([of_place[at] for at in range(len(tables))], place, [1.0] * len(rows))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, job: int) -> Rows:
        """In order of time."""
        return self._rows(self.table[job], self.scale[job])

    def at(self, table: int, scale: float) -> Rows:
        """The rows of one table for a job of this scale, in order of time."""
        return self._rows(table, scale)

    def only(self, kept: Sequence[int]) -> ScaledRows:
        """Those of the jobs ``kept``."""
        return ScaledRows(self.tables, [self.table[job] for job in kept], [self.scale[job] for job in kept])


def by_time(rows: Rows) -> Rows:
    """Fastest first."""
    return tuple(sorted(rows, key=attrgetter("time_s")))


def place_of(one: Configuration) -> tuple[int, int, float]:
    """By which a row of one table is found in another: its nodes, cores and cap."""
    return one.nodes, one.cores, one.cap_w


def above_idle(row: Configuration, node: NodeGroup) -> Configuration:
    """The row with the watts that its nodes draw above idle, in whole milliwatts of a node."""
    node_mw = int(1000 * (row.watts / row.nodes + node.rest_w))
    return replace(row, watts=row.nodes * max(node_mw - round(node.idle_w * 1000), 0) / 1000)


def full_row(rows: Sequence[Configuration], nodes: int) -> Configuration | None:
    """The row for the requested nodes, or the most below that, with all cores at the highest cap; None: all rows have
    more nodes."""
    cores, cap_w = max((row.cores, row.cap_w) for row in rows)
    fitting = [row for row in rows if (row.cores, row.cap_w) == (cores, cap_w) and row.nodes <= nodes]
    return max(fitting, key=lambda row: row.nodes, default=None)


def best(
    rows: Sequence[Configuration], bound_w: float, most_nodes: int, tolerance: float = 0.0
) -> Configuration | None:
    """The fastest row within the bound and the nodes; None: no such row. Rows are in order of time.

    With a tolerance, of those as fast up to that share the one with fewest watts, then nodes (ours).
    """
    fitting = (row for row in rows if row.watts <= bound_w and row.nodes <= most_nodes)
    fastest = next(fitting, None)
    if fastest is None or not tolerance:
        return fastest
    near = [fastest, *takewhile(lambda row: row.time_s <= (1 + tolerance) * fastest.time_s, fitting)]
    return min(near, key=lambda row: (row.watts, row.nodes, row.time_s))
