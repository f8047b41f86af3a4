"""At which clocks a kernel costs the fewest joules per unit, by the node's meter and by RAPL alone.

What a node draws besides its packages, it draws for as long as the work takes: fans, disks, network, power supply. RAPL
does not see that, so by RAPL alone slow clocks look cheaper than they are.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from calibration.table.pstate_table import Point, Table

WITHIN: Final = 0.01

WARNING: Final = (
    "no node meter: joules are those of packages and DRAM alone. RAPL alone misleads: it does not see what the rest of"
    " the node draws while the work takes longer, so it favours clocks that are too low"
)


def joules_w(point: Point, has_meter: bool) -> float:
    """Watts that count for joules: the node's by its meter, else packages and DRAM."""
    return point.node_w if has_meter else point.package_w + (0.0 if math.isnan(point.dram_w) else point.dram_w)


class LeastEnergy(msgspec.Struct, frozen=True):
    """Clocks within 1 % of the fewest joules per unit. ``by_node``: empty without a node meter."""

    kernel: str
    level: str
    by_node: tuple[int, ...]
    by_rapl: tuple[int, ...]


def least_energy(table: Table) -> tuple[LeastEnergy, ...]:
    """For every kernel and level of a table."""
    found = []
    for kernel, level in table.series():
        points = table.of(kernel, level)
        rapl = {p.khz: joules_w(p, False) / p.speed for p in points}
        node = {p.khz: joules_w(p, True) / p.speed for p in points} if table.conditions.has_meter else {}
        found.append(LeastEnergy(kernel, level, within(node), within(rapl)))
    return tuple(found)


def within(joules: dict[int, float]) -> tuple[int, ...]:
    """The clocks within 1 % of the fewest joules, of those that are known."""
    known = {khz: value for khz, value in joules.items() if math.isfinite(value)}
    least = min(known.values(), default=0.0)
    return tuple(khz for khz, value in known.items() if value <= least * (1 + WITHIN))
