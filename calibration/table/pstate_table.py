"""The P-state table: for each kernel, number of cores and clock what the node draws and how fast it is.

Watts are those at the temperature that the packages would settle at (``measure.steady_power``). Speed is relative to
the highest clock of the same kernel and level. Between measured clocks both are interpolated (``table.clock_curve``);
the interval says how far either can be trusted. It covers noise, interpolation and the temperature's correction, and
not what a meter is wrong by at every point (``Quality.bias``): that cannot be known without a second meter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from calibration.measure.node_session import LEVELS, Dwell, Setting, Window
from calibration.measure.pooled_means import Mean, means_of
from calibration.measure.steady_power import Steady, is_limited
from calibration.table.clock_curve import Curve, Given, predict
from foundation.student import Z95
from nodectl.calibrated.node_identity import Identity
from pmu.readings import type_f64

SCHEMA: Final = 3
"""3: ``uncore``."""

READ_SCHEMAS: Final = (2, SCHEMA)

POWER_OF_CLOCK: Final = 2.2
"""Ours: watts of a loaded package grow with about this power of the clock near the top, so under a power limit an
excess of 1 % costs 1 / 2.2 % of the clock."""

LEAST_POWER_OF_CLOCK: Final = 1.5
"""Ours: with about this power at the least, the other end of an interval: most of what leaks does not follow the
clock."""


AT_LIMIT: Final = 0.005
"""Ours: clocks this near to each other are one where a power limit is in force."""


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row. ``*_half``: half of the 95 % interval, infinite where nothing is known. ``clock_khz``: as found, below
    ``khz`` where turbo or a power limit ends. ``units_per_j``: by the node's meter, else by packages and DRAM. Values
    that no sensor gives are NaN. ``model_half``: watts of ``package_half`` and ``node_half`` that the temperature's
    correction has, and ``speed_model_half`` what a power limit then takes; more stays do not narrow them."""

    kernel: str
    level: str
    cores: int
    khz: int
    is_measured: bool
    windows: int
    clock_khz: float
    package_w: float
    package_half: float
    model_half: float
    dram_w: float
    dram_half: float
    node_w: float
    node_half: float
    speed: float
    speed_half: float
    speed_model_half: float
    units_per_s: float
    ipc: float
    ipc_half: float
    units_per_j: float
    units_per_j_half: float

    def relative_half(self, has_meter: bool, is_measurable: bool = False) -> float:
        """The widest relative interval of watts and speed. ``is_measurable``: only what more stays can narrow."""
        model, speed_model = (self.model_half, self.speed_model_half) if is_measurable else (0.0, 0.0)
        halves = [
            _without(self.package_half, model) / self.package_w,
            _without(self.speed_half, speed_model) / self.speed,
        ]
        if has_meter:
            halves.append(_without(self.node_half, model) / self.node_w)
        return max(math.inf if math.isnan(one) else one for one in halves)


def _without(half: float, part: float) -> float:
    return math.sqrt(max(half**2 - part**2, 0.0)) if math.isfinite(half) else half


class Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How it was measured. ``celsius``: lowest and highest of a package; empty without a sensor. ``air_c``: of each
    package, and ``k_per_w``: die and sink, as fitted."""

    is_emulated: bool
    measured_at: str
    seconds: float
    has_meter: bool
    idle_package_w: float
    idle_dram_w: float
    idle_node_w: float
    limits_w: tuple[float, ...] = ()
    celsius: tuple[float, ...] = ()
    air_c: tuple[float, ...] = ()
    k_per_w: tuple[float, ...] = ()


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How good it is. ``share_of_full``: time, of what measuring every clock takes."""

    windows: int
    disturbed: int
    measured_points: int
    widest_pct: float
    share_of_full: float
    bias: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as its file has it. ``expires_at``: when it should be measured again (UTC). ``policies``: parameters that
    follow from the rows (``policy_values``), which the agent takes. ``uncore``: rows at the highest clock of all cores,
    whose ``khz`` are limits of the uncore's clock and whose ``speed`` is relative to its highest; empty where it cannot
    be moved."""

    schema: int
    expires_at: str
    identity: Identity
    conditions: Conditions
    quality: Quality
    units: dict[str, str]
    points: tuple[Point, ...]
    policies: dict[str, dict[str, float]] = {}
    uncore: tuple[Point, ...] = ()

    def of(self, kernel: str, level: str) -> tuple[Point, ...]:
        """The points of one kernel and level, by ascending clock."""
        return tuple(point for point in self.points if (point.kernel, point.level) == (kernel, level))

    def series(self) -> list[tuple[str, str]]:
        """Every kernel and level, in order."""
        return list(dict.fromkeys((point.kernel, point.level) for point in self.points))


class Measured(msgspec.Struct, frozen=True):
    """What one setting came to. Watts are corrected to a settled temperature and summed over packages; ``model_half``:
    half of the 95 % interval of that correction alone, ``demand_half``: were there no power limit, and ``lost_half``:
    of the share of speed that the limit then takes. The means have intervals of noise alone."""

    setting: Setting
    cores: int
    khz: float
    package: Mean
    dram: Mean
    node: Mean
    units: Mean
    ipc: Mean
    model_half: float
    demand_half: float
    lost_half: float


LAST: Final = 16
"""Ours: of a long stay the last windows are its mean, as its beginning is its warming up."""

LONGEST: Final = 160
"""Of watts, which are corrected, the whole of a long stay says how windows err: errors of a meter last about as long as
other stays."""


@dataclass(frozen=True, slots=True)
class _Stay:
    """Undisturbed windows of one stay. ``change_w``: to add to each one's watts for a settled temperature; ``slower``:
    the clock that a power limit then leaves, relative; halves of the 95 % intervals of both."""

    cores: int
    windows: Sequence[Window]
    change_w: type_f64
    slower: float
    model_half: float
    demand_half: float
    lost_half: float


def measured_points(
    dwells: Sequence[Dwell], steady: Steady | None, limits_w: Sequence[float] = ()
) -> dict[Setting, Measured]:
    """The settings that were measured, from undisturbed windows."""
    limits_w = limits_w or shown_limits_w(dwells)
    stays: dict[Setting, list[_Stay]] = {}
    for dwell in dwells:
        kept = [window for window in dwell.windows if not window.is_disturbed]
        if is_limited(kept):  # short-term limits allow more at its begin
            kept = kept[-LAST:]
        if kept:
            stays.setdefault(dwell.setting, []).append(_settled(dwell, kept, steady, limits_w))

    def means(value: Callable[[Window, float, _Stay], float], longest: int = LAST) -> dict[Setting, Mean]:
        """Of a window, its change of watts and its stay; ``longest``: so many windows of a stay say how they err."""
        values = {
            setting: [
                [value(*one, stay) for one in zip(stay.windows, stay.change_w, strict=True)][-longest:] for stay in own
            ]
            for setting, own in stays.items()
        }
        return means_of(values, {setting: setting.level for setting in stays}, LAST)

    package = means(lambda one, change, _: sum(one.package_w) + change, LONGEST)
    dram = means(lambda one, change, _: sum(one.dram_w) if one.dram_w else math.nan, LONGEST)
    node = means(lambda one, change, _: _known(one.node_w) + change, LONGEST)
    units = means(lambda one, _, stay: one.units_per_s * stay.slower)
    ipc = means(lambda one, *_: _known(one.ipc))
    clock = means(lambda one, _, stay: _known(one.khz) * stay.slower)
    return {
        setting: Measured(
            setting,
            own[0].cores,
            setting.khz if math.isnan(clock[setting].value) else clock[setting].value,
            package[setting],
            dram[setting],
            node[setting],
            units[setting],
            ipc[setting],
            float(np.mean([stay.model_half for stay in own])),
            float(np.mean([stay.demand_half for stay in own])),
            float(np.mean([stay.lost_half for stay in own])),
        )
        for setting, own in stays.items()
    }


def shown_limits_w(dwells: Sequence[Dwell]) -> tuple[float, ...]:
    """A power limit that no file names shows as a clock below the requested one that falls further while watts stay.
    The longest such stay says it best, since short-term limits are above it. The packages are alike."""
    longest: tuple[Window, ...] = ()
    for dwell in dwells:
        if is_limited(dwell.windows) and max(window.khz or 0.0 for window in dwell.windows) < dwell.setting.khz:
            longest = max(longest, dwell.windows[-LAST:], key=len)
    watts = np.mean([window.package_w for window in longest], 0) if longest else np.array([])
    return (float(np.max(watts)),) * len(watts) if longest else ()


def _settled(dwell: Dwell, windows: Sequence[Window], steady: Steady | None, limits_w: Sequence[float]) -> _Stay:
    raw = np.array([one.package_w for one in windows[-LAST:]])  # [windows, packages]
    total, change, deviation = np.zeros(len(windows)), np.zeros(raw.shape), np.zeros(raw.shape[1])
    if steady:
        total = steady.corrections_w(dwell.setting.level, windows, limits_w)[0].sum(1)
        change, deviation = steady.corrections_w(dwell.setting.level, windows[-LAST:], limits_w)
    limit = np.array(limits_w if len(limits_w) == raw.shape[1] else [math.inf] * raw.shape[1])
    now, demand = raw.mean(0), (raw + change).mean(0)

    def at(away: float, power: float = POWER_OF_CLOCK) -> tuple[float, float]:
        """Watts and relative clock with this many deviations more."""
        wanted = demand + away * deviation
        return float(np.minimum(wanted, limit).sum()), float(np.min(np.minimum(limit / wanted, 1)) ** (1 / power))

    (low_w, fast), (middle_w, slower), (high_w, slow) = at(-Z95), at(0.0), at(Z95)
    total += middle_w - float(now.sum()) - float(total[-LAST:].mean())  # what the limit does not allow is not drawn
    by_form = slower - at(0.0, LEAST_POWER_OF_CLOCK)[1]
    lost_half = math.hypot((fast - slow) / 2, by_form)
    return _Stay(dwell.cores, windows, total, slower, (high_w - low_w) / 2, Z95 * float(deviation.sum()), lost_half)


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def all_points(clocks: Sequence[int], measured: Mapping[Setting, Measured]) -> tuple[Point, ...]:
    """A row for every clock of each kernel and level that was measured, in the order of their first measurement; what
    was measured under a limit of the uncore is left out (``uncore_series``)."""
    series: dict[tuple[str, str], dict[int, Measured]] = {}
    for setting, one in measured.items():
        if setting.uncore_khz:
            continue
        series.setdefault((setting.kernel, setting.level), {})[setting.khz] = one
    ordered = sorted(
        series, key=lambda key: (list(dict.fromkeys(k for k, _ in series)).index(key[0]), LEVELS.index(key[1]))
    )
    curves = _curves(clocks, {key: series[key] for key in ordered})
    return tuple(
        _point(Setting(*key, khz), row, series[key], curves[key]) for key in ordered for row, khz in enumerate(clocks)
    )


@dataclass(frozen=True, slots=True)
class _Curves:
    """One kernel and level over all clocks. ``goal``: the clock that each request leads to."""

    goal: Sequence[float]
    package: Curve
    dram: Curve
    node: Curve
    speed: Curve
    ipc: Curve
    top_units: float
    model: type_f64
    lost: type_f64


def _curves(
    clocks: Sequence[int], series: Mapping[tuple[str, str], Mapping[int, Measured]]
) -> dict[tuple[str, str], _Curves]:
    found = {key: [own[khz] for khz in sorted(own)] for key, own in series.items()}
    goals = {
        key: [own[khz].khz if khz in own else min(float(khz), max(one.khz for one in own.values())) for khz in clocks]
        for key, own in series.items()
    }

    def predicted(shape: str, value: Callable[[Measured], Mean]) -> dict[tuple[str, str], Curve]:
        def given(key: tuple[str, str]) -> Given:
            means = [value(one) for one in found[key]]
            values, deviations = [one.value for one in means], [one.deviation for one in means]
            return Given([one.khz for one in found[key]], values, deviations, goals[key])

        return predict(shape, {key: given(key) for key in found})

    package, dram, node = (
        predicted("watts", value) for value in (lambda one: one.package, lambda one: one.dram, lambda one: one.node)
    )
    time, ipc = (predicted("time", value) for value in (lambda one: _inverse(one.units), lambda one: _inverse(one.ipc)))
    curves = {}
    for key, own in found.items():
        top_units = 1.0 / float(time[key].value[-1])
        curves[key] = _Curves(
            goals[key],
            package[key],
            dram[key],
            node[key],
            _inverted(time[key], Mean(top_units, own[-1].units.half)),
            _inverted(ipc[key], Mean(1.0, 0.0)),
            top_units,
            _model_between(goals[key], own),
            _between(goals[key], own, lambda one: one.lost_half),
        )
    return curves


def _model_between(goal: Sequence[float], found: Sequence[Measured]) -> type_f64:
    """Half of the correction's interval at each clock. At a power limit watts are certain, and a little below it they
    are not: there the interval is that without a limit."""
    without: type_f64 = _between(goal, found, lambda one: one.demand_half)
    for one in found:
        without[np.abs(np.asarray(goal) / one.khz - 1) <= AT_LIMIT] = one.model_half
    return without


def _between(goal: Sequence[float], found: Sequence[Measured], value: Callable[[Measured], float]) -> type_f64:
    """A value of measured clocks at others, on straight lines."""
    by_clock = sorted(found, key=lambda one: one.khz)
    line: type_f64 = np.interp(goal, [one.khz for one in by_clock], [value(one) for one in by_clock])
    return line


def _point(setting: Setting, row: int, own: Mapping[int, Measured], curves: _Curves) -> Point:
    package, dram, node, speed = curves.package, curves.dram, curves.node, curves.speed
    if math.isnan(node.value[row]):
        watts = float(package.value[row] + np.nan_to_num(dram.value[row]))
        watts_half = math.hypot(package.half[row], _finite(float(dram.half[row])))
    else:
        watts, watts_half = float(node.value[row]), float(node.half[row])
    model = float(curves.model[row])
    watts_half = math.hypot(watts_half, model)
    one = own.get(setting.khz)
    units_per_s = float(speed.value[row]) * curves.top_units
    is_top = row == len(curves.goal) - 1
    lost = 0.0 if is_top else float(speed.value[row]) * math.hypot(curves.lost[row], curves.lost[-1])
    relative = math.hypot(watts_half / watts, float(speed.half[row] / speed.value[row]))
    return Point(
        kernel=setting.kernel,
        level=setting.level,
        cores=next(iter(own.values())).cores,
        khz=setting.khz,
        is_measured=one is not None,
        windows=one.package.n if one else 0,
        clock_khz=curves.goal[row],
        package_w=float(package.value[row]),
        package_half=math.hypot(package.half[row], model),
        model_half=model,
        dram_w=float(dram.value[row]),
        dram_half=float(dram.half[row]),
        node_w=float(node.value[row]),
        node_half=math.hypot(node.half[row], model),
        speed=float(speed.value[row]),
        speed_half=0.0 if is_top else math.hypot(speed.half[row], lost),
        speed_model_half=lost,
        units_per_s=units_per_s,
        ipc=float(curves.ipc.value[row]),
        ipc_half=float(curves.ipc.half[row]),
        units_per_j=units_per_s / watts,
        units_per_j_half=units_per_s / watts * relative,
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _inverse(mean: Mean) -> Mean:
    if not mean.value > 0:
        return Mean(math.nan, math.inf)
    return Mean(1.0 / mean.value, mean.half / mean.value**2, mean.n)


def _inverted(curve: Curve, by: Mean) -> Curve:
    """``1 / (curve x by)`` with its interval."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = 1.0 / (curve.value * by.value)
        half = np.abs(value) * np.hypot(curve.half / curve.value, _finite(by.half) / by.value)
    return Curve(value, half)
