"""What policies take from a table: parameters in place of defaults that are the same for every machine.

``bdpo-cpu`` lowers clocks where few instructions are retired per reference cycle; REGALE D2.3 (section 3.4) leaves its
thresholds to calibration. Counters err from program to program by up to 30 %, so that Linpack may show the IPC of
GROMACS: no threshold separates them. So it says whose clock is worth a look, and how far IPC falls with a first lower
clock decides (``loss``). All cores, from the kernels between ``stream`` (waits) and ``fma`` (computes):

    low_ipc    ``ABOVE`` times the highest IPC of a kernel: nothing that may wait for memory is left out
    high_ipc   above it by three deviations of an IPC that is read over ``READ_S``
    dwell_s    over which an IPC below ``low_ipc`` by ``LEAST_GAP`` is no chance
               (``uncore-bounded``: over which the share of waiting, by instructions, errs by less than ``WAIT_GAP``)
    floor      the clock at which ``stream`` costs the fewest joules: below it the slower work costs more than it saves
    loss       ``LOSS``

``bdpo-cpu-bounded`` measures its phases by itself; what it cannot know is ``rest_w``, the watts that no zone shows.
``uncore-bounded`` has ``uncore_values``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from calibration.measure.node_session import WINDOW_S
from calibration.table.least_energy import joules_w
from calibration.table.pstate_table import Point
from calibration.table.uncore_values import uncore_values
from foundation.student import Z95
from nodectl.policies import bdpo_cpu_bounded, uncore_bounded

LEVEL: Final = "all"

ABOVE: Final = 1.3
"""Ours: counters err by up to 30 % from program to program."""

LOSS: Final = 0.04
"""Ours: share of time that a lower clock may cost, by counters; first looked at on node 11 of
``benchmarks/calibrated_policies``."""

FEWEST: Final = 2
"""Ours: kernels whose IPC must be known."""

READ_S: Final = 0.1
"""The agent's default period, over which a policy reads an IPC."""

LEAST_GAP: Final = 0.03
"""Ours: of ``high_ipc`` above ``low_ipc``; an IPC moves by so much within a phase."""

WAIT_GAP: Final = 0.02
"""Ours: a wrong share of waiting by so much costs ``uncore-bounded`` some 1 % of time at half of the uncore's clock."""

DWELL_S: Final = (0.1, 1.0)
"""Ours: a dwell of less than a period is none, one above a second misses short phases."""

type_values = dict[str, dict[str, float]]


def policy_values(
    points: Sequence[Point], has_meter: bool, uncore: Sequence[Point] = ()
) -> tuple[type_values, list[str]]:
    """Parameters by policy, and a remark for each that cannot be said. ``uncore``: rows under limits of its clock."""
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
    noise = np.array([_seen(one)[1] for one in points if one.level == LEVEL and one.is_measured])
    if uncore and np.isfinite(noise).any():
        gap = WAIT_GAP * uncore_bounded.Params().width
        dwell_s = _steady_s(float(np.nanmedian(noise)), gap)
        rest = {"rest_w": found["bdpo-cpu-bounded"]["rest_w"]} if has_meter else {}
        found["uncore-bounded"] = {**uncore_values(points, uncore), **rest, "dwell_s": dwell_s}
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
        return {}, "stream saves no energy at a lower clock"
    rows = np.array([_seen(own[-1]) for own in kernels.values()])
    rows = rows[np.isfinite(rows).all(1)]
    if len(rows) < FEWEST:
        return {}, f"only {len(rows)} kernels have an IPC, {FEWEST} are needed: give more time"
    ipc, noise = rows.T
    low = ABOVE * float(ipc.max())
    gap = max(3.0 * float(np.median(noise)) * math.sqrt(WINDOW_S / READ_S), LEAST_GAP * low)
    return {
        "low_ipc": _digits(low),
        "high_ipc": _digits(low + gap),
        "dwell_s": _steady_s(float(np.median(noise)), LEAST_GAP * low),
        "floor": math.floor(1e4 * floor_khz / top_khz) / 1e4,
        "loss": LOSS,
    }, ""


def _steady_s(noise: float, gap: float) -> float:
    """Over which three deviations of an IPC are below ``gap``. ``noise``: the deviation over a window."""
    return _digits(float(np.clip(WINDOW_S * (3.0 * noise / gap) ** 2, *DWELL_S)))


def _floor_khz(stream: Sequence[Point], has_meter: bool) -> int:
    """The clock of the fewest joules."""
    more_w = 0.0 if has_meter else bdpo_cpu_bounded.Params().rest_w
    return min(stream, key=lambda one: (joules_w(one, has_meter) + more_w) / one.speed).khz


def _seen(top: Point) -> tuple[float, float]:
    """Of a kernel: its IPC at the highest clock, and a window's deviation of it."""
    deviation = top.ipc_half / Z95 * math.sqrt(max(top.windows, 1)) if math.isfinite(top.ipc_half) else math.nan
    return top.ipc, deviation


def _digits(value: float) -> float:
    """Four digits: no meter here is better."""
    return float(f"{value:.4g}")
