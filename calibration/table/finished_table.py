"""A table from a finished sweep: its rows, and all that must be known of how they were measured."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from calibration.measure.node_session import Window, label
from calibration.table.adaptive_sweep import Sweep
from calibration.table.least_energy import WARNING
from calibration.table.policy_values import policy_values
from calibration.table.pstate_table import SCHEMA, Conditions, Point, Quality, Table
from calibration.table.tag_shares import tag_shares
from calibration.table.uncore_series import uncore_points
from nodectl.calibrated.node_calibration import expiry
from nodectl.calibrated.node_identity import Identity
from pmu.instruments import rapl
from pmu.ports import Files

BIAS: Final = (
    "RAPL: its own error is the same at every point and no repetition shows it; published comparisons with meters find"
    " some per cent. Not in the intervals; only a second meter can tell",
)
METER_BIAS: Final = "node meter: its class is not known here. Not in the intervals"

CLOCK_AS_REQUESTED: Final = 0.02


def package_limits_w(files: Files, packages: Sequence[str]) -> tuple[float, ...]:
    """The long-term limit of each package; empty unless each has one that is enabled."""
    found = {
        limit.zone: limit.limit_uw * 1e-6
        for limit in rapl.find(files).limits
        if limit.name == "long_term" and limit.enabled is not False and limit.limit_uw
    }
    limits = [found.get(package, 0.0) for package in packages]
    return tuple(limits) if all(limits) else ()


def finished_table(sweep: Sweep, identity: Identity, now: datetime.datetime) -> Table:
    """The table of a sweep that has run, with what policies take from it."""
    now = now.replace(microsecond=0)
    points, has_meter = sweep.all_measured(), sweep.session.has_meter
    uncore = uncore_points(sweep)
    policies, unsaid = policy_values(points, has_meter, uncore)
    if shares := tag_shares(points, has_meter):
        policies["aapc"] = shares
    units = {label(kernel): kernel.unit for kernel in sweep.kernels}
    units |= {one.kernel: "flops" for one in points if one.kernel not in units}  # mixes
    return Table(
        schema=SCHEMA,
        expires_at=expiry(now),
        identity=identity,
        conditions=_conditions(sweep, now),
        quality=_quality(sweep, points, unsaid),
        units=units,
        points=points,
        policies=policies,
        uncore=uncore,
    )


def _conditions(sweep: Sweep, now: datetime.datetime) -> Conditions:
    heat = sweep.steady.heat if sweep.steady else None
    celsius = [one for window in _windows(sweep) for one in window.celsius]
    return Conditions(
        is_emulated=sweep.session.kernels.is_emulated,
        measured_at=now.isoformat(),
        seconds=sweep.spent_s,
        has_meter=sweep.session.has_meter,
        idle_package_w=_mean([sum(one.package_w) for one in sweep.idle]),
        idle_dram_w=_mean([sum(one.dram_w) for one in sweep.idle if one.dram_w]),
        idle_node_w=_mean([one.node_w for one in sweep.idle if one.node_w is not None]),
        limits_w=tuple(sweep.limits_w),
        celsius=(min(celsius), max(celsius)) if celsius else (),
        air_c=heat.air_c if heat else (),
        k_per_w=heat.k_per_w if heat else (),
    )


def _quality(sweep: Sweep, points: Sequence[Point], unsaid: Sequence[str]) -> Quality:
    windows, has_meter = _windows(sweep), sweep.session.has_meter
    return Quality(
        windows=len(windows),
        disturbed=sum(one.is_disturbed for one in windows),
        measured_points=sum(point.is_measured for point in points),
        widest_pct=100 * max((point.relative_half(has_meter) for point in sweep.points), default=math.inf),
        share_of_full=sweep.spent_s / sweep.full_s,
        bias=(*BIAS, METER_BIAS) if has_meter else BIAS,
        remarks=(*_remarks(sweep, windows), *unsaid),
    )


def _windows(sweep: Sweep) -> list[Window]:
    return [*sweep.idle, *(window for dwell in sweep.dwells for window in dwell.windows)]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _remarks(sweep: Sweep, windows: Sequence[Window]) -> list[str]:
    found = []
    if not sweep.session.has_meter:
        found.append(WARNING)
    if sweep.steady is None:
        found.append("watts are those of packages as warm as they were: no temperature was read, or the time was short")
    slow = [one for one in sweep.points if one.is_measured and one.clock_khz < (1 - CLOCK_AS_REQUESTED) * one.khz]
    if slow:
        first = max(slow, key=lambda one: one.khz / one.clock_khz)
        found.append(
            f"{len(slow)} points ran below the requested clock (turbo, vector or power limit), such as {first.kernel}"
            f" on {first.level}: {first.clock_khz / 1e6:.2f} of {first.khz / 1e6:.2f} GHz"
        )
    if disturbed := sum(window.is_disturbed for window in windows):
        found.append(f"{disturbed} of {len(windows)} windows were left out: other work ran")
    return found
