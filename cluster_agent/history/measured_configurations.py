"""Configurations of applications, from the jobs that have run: what ``rmap`` and ``moldable`` choose among.

A configuration is nodes, cores of each and the cap of a node. Its time is the median of its runs, its watts are the
mean of them by time. It is on the front if no other of the same application took as little time with as few joules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from statistics import median

import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.scheduler.configurations.table import Configuration


class MeasuredConfiguration(msgspec.Struct, frozen=True):
    """A row of the table, and ``runs``: how many jobs it is from."""

    application: str
    row: Configuration
    runs: int
    is_on_front: bool = False


class NodeParts(msgspec.Struct, frozen=True):
    """What of a node's watts is not of its packages, and how many packages it has. ``cores``, ``cap_w``: of the node,
    for jobs that have not said how many cores they use, or that ran without a cap."""

    cores: int
    cap_w: float
    rest_w: float = 0.0
    packages: int = 1


def measured_configurations(
    rows: Iterable[HistoryRow], parts: NodeParts, least_runs: int, step_w: float
) -> list[MeasuredConfiguration]:
    """By application, then fastest first. Of jobs that ended well, with metered watts, on nodes of their own; mean caps
    within ``step_w`` of a node count as one. ``ClusterError`` if packages would draw nothing."""
    runs: dict[tuple[str, int, int, float], list[HistoryRow]] = defaultdict(list)
    for row in rows:
        if row.state in ("", "done") and row.watts and row.run_s > 0.0 and row.application and not row.is_shared:
            cap_w = min(row.cap_w or parts.cap_w, parts.cap_w)
            cap_w = min(step_w * math.ceil(cap_w / step_w - 1e-9), parts.cap_w)
            runs[row.application, row.nodes, row.cores or parts.cores, cap_w].append(row)
    found = [_of(key, of_it, parts) for key, of_it in runs.items() if len(of_it) >= least_runs]
    found.sort(key=lambda one: (one.application, one.row.time_s, one.row.energy_j))
    return [
        msgspec.structs.replace(one, is_on_front=is_on_front)
        for _, of_application in groupby(found, attrgetter("application"))
        for one, is_on_front in _front(of_application)
    ]


def _of(key: tuple[str, int, int, float], of_it: list[HistoryRow], parts: NodeParts) -> MeasuredConfiguration:
    application, nodes, cores, cap_w = key
    total_s = sum(row.run_s for row in of_it)
    watts = sum((row.watts or 0.0) * row.run_s for row in of_it) / total_s - nodes * parts.rest_w
    package_w = (cap_w - parts.rest_w) / parts.packages
    if watts <= 0.0 or package_w <= 0.0:
        raise ClusterError(
            f"{application} on {nodes} nodes below {cap_w:g} W draws {watts + nodes * parts.rest_w:g} W, which leaves"
            f" nothing for its packages: rest_w = {parts.rest_w:g} of the machine file is too high"
        )
    time_s = median(row.run_s for row in of_it)
    return MeasuredConfiguration(application, Configuration(nodes, cores, package_w, time_s, watts), len(of_it))


def _front(fastest_first: Iterable[MeasuredConfiguration]) -> Iterable[tuple[MeasuredConfiguration, bool]]:
    least_j = math.inf
    for one in fastest_first:
        yield one, one.row.energy_j < least_j
        least_j = min(least_j, one.row.energy_j)
