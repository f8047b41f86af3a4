"""What users' jobs took in the last week, from the history of jobs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cluster_agent.history.job_history import HistoryRow
from cluster_agent.page.snapshot import UserEnergy

WEEK_S: Final = 7 * 86_400.0
J_PER_KWH: Final = 3.6e6
HOUR_S: Final = 3600.0

FEWEST_JOBS: Final = 3
"""Ours: of fewer jobs a median says little."""


def by_user(ended: Iterable[HistoryRow]) -> tuple[UserEnergy, ...]:
    """Of each user, the one with the most joules first. Jobs of unknown energy count as jobs alone."""
    rows: dict[str, list[HistoryRow]] = {}
    for row in ended:
        rows.setdefault(row.user, []).append(row)
    found = [_sum(user, theirs) for user, theirs in rows.items()]
    return tuple(sorted(found, key=lambda one: (-one.energy_j, one.user)))


def median_per_node_h_j(ended: Iterable[HistoryRow]) -> float | None:
    """Joules of a node hour, the median over jobs; None: too few are known."""
    rates = [row.energy_j / hours for row in ended if row.energy_j is not None and (hours := _node_h(row)) > 0]
    return statistics.median(rates) if len(rates) >= FEWEST_JOBS else None


def merged(energy: Sequence[UserEnergy], name_of: Mapping[str, str], rest: str) -> tuple[UserEnergy, ...]:
    """The users of ``name_of`` by the name that it gives; all others as one, called ``rest``."""
    others = [one for one in energy if one.user not in name_of]
    named = [
        UserEnergy(name_of[one.user], one.energy_j, one.kwh, one.jobs, one.unknown, one.node_h, one.per_node_h_j)
        for one in energy
        if one.user in name_of
    ]
    if others:
        named.append(
            _of(
                rest,
                sum(one.energy_j for one in others),
                sum(one.jobs for one in others),
                sum(one.unknown for one in others),
                sum(one.node_h for one in others),
            )
        )
    return tuple(named)


def _sum(user: str, rows: Sequence[HistoryRow]) -> UserEnergy:
    known = [row for row in rows if row.energy_j is not None]
    energy_j, node_h = sum(row.energy_j or 0.0 for row in known), sum(map(_node_h, known))
    return _of(user, energy_j, len(rows), len(rows) - len(known), node_h)


def _of(user: str, energy_j: float, jobs: int, unknown: int, node_h: float) -> UserEnergy:
    per_node_h_j = energy_j / node_h if node_h > 0 else None
    return UserEnergy(user, energy_j, energy_j / J_PER_KWH, jobs, unknown, node_h, per_node_h_j)


def _node_h(row: HistoryRow) -> float:
    return row.nodes * row.run_s / HOUR_S
