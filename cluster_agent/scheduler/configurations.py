"""Configurations of a job: on so many nodes and cores, under such a cap per socket, it takes so long and draws so much.

RMAP's table (Patki et al., HPDC 2015, §4): rows of nodes, cores per node, cap per socket, time and total package watts,
measured or predicted, for each application. The caps of a row add up to more than its watts; what keeps a bound is
that the watts are right, not the caps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter

from cluster_agent.scheduler.jobs import Jobs


@dataclass(frozen=True, slots=True)
class Configuration:
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


@dataclass(frozen=True, slots=True)
class MoldableJobs:
    """``Jobs`` that can run in several ways. ``jobs.width`` is the nodes asked for, ``jobs.request_s`` the time."""

    jobs: Jobs
    rows: tuple[tuple[Configuration, ...], ...]  # of each job, in order of time

    def __post_init__(self) -> None:
        in_order: dict[int, tuple[Configuration, ...]] = {}  # jobs of one application share their rows
        for rows in self.rows:
            in_order.setdefault(id(rows), tuple(sorted(rows, key=attrgetter("time_s"))))
        object.__setattr__(self, "rows", tuple(in_order[id(rows)] for rows in self.rows))

    def __len__(self) -> int:
        return len(self.jobs)


def best(
    rows: Sequence[Configuration], bound_w: float, most_nodes: int, tolerance: float = 0.0
) -> Configuration | None:
    """The fastest row that draws no more than the bound on no more nodes; None: there is none. Rows are in order of
    time.

    With a tolerance, of those as fast up to that share the one with fewest watts, then nodes (ours).
    """
    fitting = (row for row in rows if row.watts <= bound_w and row.nodes <= most_nodes)
    fastest = next(fitting, None)
    if fastest is None or not tolerance:
        return fastest
    near = [fastest, *takewhile(lambda row: row.time_s <= (1 + tolerance) * fastest.time_s, fitting)]
    return min(near, key=lambda row: (row.watts, row.nodes, row.time_s))
