"""What policies take from a table: parameters in place of defaults that are the same for every machine.

``bdpo-cpu`` lowers clocks where few instructions are retired per reference cycle; REGALE D2.3 (section 3.4) leaves its
thresholds to calibration. All cores, from the kernels between ``stream`` (waits) and ``fma`` (computes):

    floor      the lowest clock at which ``stream`` loses no more than ``BOUND`` and saves energy, and what is just
               below ``low_ipc`` loses no more than ``MOST_LOSS``
    low_ipc    the IPC of a kernel of whose time ``CLOCK_BOUND`` follows the clock. Counters err from program to
               program, so a line through all kernels says it: IPC over the square root of that share, which rises as
               quickly at first as IPC does. Never above ``BELOW_BOUND`` of what is all clock-bound
    high_ipc   above it by three deviations of an IPC that is read over ``READ_S``
    dwell_s    over which an IPC below ``low_ipc`` by that much is no chance

``bdpo-cpu-bounded`` measures its phases by itself; what it cannot know is ``rest_w``, the watts that no zone shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from calibration.measure.batch_means import Z95
from calibration.measure.node_session import WINDOW_S
from calibration.table.least_energy import joules_w
from calibration.table.pstate_table import Point
from nodectl.policies import bdpo_cpu_bounded

LEVEL: Final = "all"

BOUND: Final = bdpo_cpu_bounded.Params().bound
"""The slowdown that ``bdpo-cpu-bounded`` may cost."""

CLOCK_BOUND: Final = 0.4
"""Ours. By counters that err by up to 30 %, Linpack may look as ``gromacs`` does; a lower threshold misses some of what
could be saved, a higher one slows Linpack down. Chosen on nodes 11 to 13 of ``benchmarks/calibrated_policies``."""

BELOW_BOUND: Final = 0.7
"""Ours: of the IPC of work that is all clock-bound, by that line. Linpack may look 30 % below it."""

MOST_LOSS: Final = 3 * BOUND
"""Ours: what a kernel at ``low_ipc`` may lose at the floor."""

FEWEST: Final = 4
"""Ours: kernels that the line needs."""

READ_S: Final = 0.1
"""The agent's default period, over which a policy reads an IPC."""

LEAST_GAP: Final = 0.03
"""Ours: of ``high_ipc`` above ``low_ipc``; an IPC moves by so much within a phase."""

DWELL_S: Final = (0.1, 1.0)
"""Ours: a dwell of less than a period is none, one above a second misses short phases."""

type_values = dict[str, dict[str, float]]


def policy_values(points: Sequence[Point], has_meter: bool) -> tuple[type_values, list[str]]:
    """Parameters by policy, and a remark for each that cannot be said."""
    found: type_values = {}
    remarks: list[str] = []
    reactive, why = _reactive([one for one in points if one.level == LEVEL], has_meter)
    if reactive:
        found["bdpo-cpu"] = reactive
    else:
        remarks.append(f"bdpo-cpu keeps its defaults: {why}")
    if has_meter:
        found["bdpo-cpu-bounded"] = {"rest_w": _digits(rest_w(points))}
    else:
        remarks.append("bdpo-cpu-bounded keeps its default rest_w: there is no meter of the node")
    return found, remarks


def rest_w(points: Sequence[Point]) -> float:
    """Watts outside packages and DRAM: the median over all points."""
    return float(np.median([max(one.node_w - joules_w(one, False), 0.0) for one in points]))


def _reactive(points: Sequence[Point], has_meter: bool) -> tuple[dict[str, float], str]:
    kernels = {name: [one for one in points if one.kernel == name] for name in dict.fromkeys(p.kernel for p in points)}
    stream = kernels.get("stream")
    if not stream or "fma" not in kernels:
        return {}, "fma and stream were not both measured on all cores"
    top_khz, floor_khz = stream[-1].khz, _floor_khz(stream, has_meter)
    if floor_khz == top_khz:
        return {}, f"stream loses more than {BOUND:.0%} at each lower clock, or saves no energy there"
    rows = np.array([_seen(own, floor_khz) for own in kernels.values()])
    rows = rows[np.isfinite(rows).all(1)]
    if len(rows) < FEWEST:
        return {}, f"only {len(rows)} kernels have an IPC, {FEWEST} are needed: give more time"
    beta, ipc, noise = rows.T
    slope, at_none = np.polyfit(np.sqrt(np.clip(beta, 0.0, 1.0)), ipc, 1)
    low = float(min(at_none + slope * math.sqrt(CLOCK_BOUND), BELOW_BOUND * (at_none + slope)))
    if not (slope > 0 and low > 0):
        return {}, "the IPC of its kernels does not rise with the time that follows the clock"
    gap = max(3.0 * float(np.median(noise)) * math.sqrt(WINDOW_S / READ_S), LEAST_GAP * low)
    dwell_s = WINDOW_S * (3.0 * float(np.median(noise)) / (LEAST_GAP * low)) ** 2
    return {
        "low_ipc": _digits(low),
        "high_ipc": _digits(low + gap),
        "dwell_s": _digits(float(np.clip(dwell_s, *DWELL_S))),
        "floor": math.floor(1e4 * floor_khz / top_khz) / 1e4,
    }, ""


def _floor_khz(stream: Sequence[Point], has_meter: bool) -> int:
    """See above; the highest clock where there is no such one."""
    top, more_w = stream[-1], 0.0 if has_meter else bdpo_cpu_bounded.Params().rest_w
    allowed = [
        one.khz
        for one in stream
        if top.speed / one.speed - 1.0 <= BOUND
        and CLOCK_BOUND * (top.clock_khz / one.clock_khz - 1.0) <= MOST_LOSS
        and (joules_w(one, has_meter) + more_w) / one.speed <= (joules_w(top, has_meter) + more_w) / top.speed
    ]
    return min(allowed)


def _seen(points: Sequence[Point], floor_khz: int) -> tuple[float, float, float]:
    """Of a kernel: the share of its time that follows the clock, its IPC at the top, a window's deviation of it."""
    top, low = points[-1], next(one for one in points if one.khz == floor_khz)
    beta = (top.speed / low.speed - 1.0) / max(top.clock_khz / low.clock_khz - 1.0, 1e-9)
    deviation = top.ipc_half / Z95 * math.sqrt(max(top.windows, 1)) if math.isfinite(top.ipc_half) else math.nan
    return beta, top.ipc, deviation


def _digits(value: float) -> float:
    """Four digits: no meter here is better."""
    return float(f"{value:.4g}")
