"""Mixes of computing and waiting around the node's own balance: where an IPC begins to mean that work needs the clock.

``fma`` is all computing and ``stream`` all waiting; programs lie between. The balance, in flops per byte, is the one's
speed over the other's on all cores. Mixes of half to twice that intensity go from nearly the one to nearly the other.
Each is measured on all cores at three clocks, after the table's own points; they are rows of the table too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calibration.kernels.port import FINEST_FLOPS_PER_BYTE, FMA, MOST_FLOPS_PER_BYTE, STREAM, Kernel, mix
from calibration.measure.node_session import WINDOW_S, label
from calibration.table.adaptive_sweep import (
    FEWEST_WINDOWS,
    LONG_BUDGET_S,
    SETTLE_S,
    SHORT_SETTLE_S,
    WINDOWS,
    Sweep,
)
from calibration.table.pstate_table import Point

LEVEL: Final = "all"

OF_BALANCE: Final = (0.5, 0.7, 0.85, 1.0, 1.25, 1.6, 2.0)
"""Ours: closest around the balance, where the share of time that follows the clock changes most."""


FEW_OF_BALANCE: Final = (0.7, 1.0, 1.6)
SHORT_BUDGET_S: Final = 45.0
"""Ours: a shorter budget has time for none."""


def balance_mixes(points: Sequence[Point], shares: Sequence[float] = OF_BALANCE) -> tuple[Kernel, ...]:
    """The mixes of this node; none where ``fma`` or ``stream`` was not measured on all cores."""
    top = {point.kernel: point.units_per_s for point in points if point.level == LEVEL}  # the last is the highest
    if not (top.get(label(FMA)) and top.get(label(STREAM))):
        return ()
    balance = top[label(FMA)] / top[label(STREAM)]
    steps = {max(round(share * balance / FINEST_FLOPS_PER_BYTE), 1) for share in shares}
    intensities = sorted(step * FINEST_FLOPS_PER_BYTE for step in steps)
    return tuple(mix(one) for one in intensities if one <= MOST_FLOPS_PER_BYTE)


def shares_within(budget_s: float) -> tuple[float, ...]:
    """As many of ``OF_BALANCE`` as there is time for; 0: no limit."""
    if budget_s and budget_s < SHORT_BUDGET_S:
        return ()
    return FEW_OF_BALANCE if budget_s and budget_s < LONG_BUDGET_S else OF_BALANCE


def reserved_s(budget_s: float) -> float:
    """What of a budget the mixes take."""
    stay_s = SETTLE_S + WINDOWS * WINDOW_S if budget_s >= LONG_BUDGET_S else SHORT_SETTLE_S + FEWEST_WINDOWS * WINDOW_S
    return 3 * len(shares_within(budget_s)) * stay_s


def measure_balance(sweep: Sweep, shares: Sequence[float] = OF_BALANCE) -> None:
    """Add the mixes' stays to a sweep that has run."""
    for kernel in balance_mixes(sweep.points, shares):
        sweep.also(kernel, LEVEL)
