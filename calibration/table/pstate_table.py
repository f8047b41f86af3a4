"""The P-state table: for each kernel, number of cores and clock what the node draws and how fast it is.

Watts are those at the temperature that the packages would settle at (``measure.steady_power``). Speed is relative to
the highest clock of the same kernel and level. Between measured clocks both are interpolated (``table.clock_curve``);
the interval says how far either can be trusted. It covers noise, interpolation and the temperature's correction, and
not what a meter is wrong by at every point (``Quality.bias``): that cannot be known without a second meter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from calibration.measure.batch_means import Mean, mean_of
from calibration.measure.node_session import LEVELS, Dwell, Setting, Window
from calibration.measure.steady_power import UNCERTAIN, Steady
from calibration.table.clock_curve import Curve, predict
from nodectl.calibrated.node_identity import Identity
from pmu.readings import type_f64

SCHEMA: Final = 2

POWER_OF_CLOCK: Final = 2.2
"""Ours: watts of a loaded package grow with about this power of the clock near the top, so under a power limit an
excess of 1 % costs 1 / 2.2 % of the clock."""


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
    follow from the rows (``policy_values``), which the agent takes."""

    schema: int
    expires_at: str
    identity: Identity
    conditions: Conditions
    quality: Quality
    units: dict[str, str]
    points: tuple[Point, ...]
    policies: dict[str, dict[str, float]] = {}

    def of(self, kernel: str, level: str) -> tuple[Point, ...]:
        """The points of one kernel and level, by ascending clock."""
        return tuple(point for point in self.points if (point.kernel, point.level) == (kernel, level))

    def series(self) -> list[tuple[str, str]]:
        """Every kernel and level, in order."""
        return list(dict.fromkeys((point.kernel, point.level) for point in self.points))


class Measured(msgspec.Struct, frozen=True):
    """What one setting came to. Watts are corrected to a settled temperature, by ``correction_w`` to either side, and
    summed over packages; speed is less by the share ``lost``. Intervals are of noise alone."""

    setting: Setting
    cores: int
    khz: float
    package: Mean
    dram: Mean
    node: Mean
    units: Mean
    ipc: Mean
    correction_w: float
    lost: float


def measured_points(
    dwells: Sequence[Dwell], steady: Steady | None, limits_w: Sequence[float] = ()
) -> dict[Setting, Measured]:
    """The settings that were measured, from undisturbed windows."""
    stays: dict[Setting, list[Dwell]] = {}
    for dwell in dwells:
        kept = tuple(window for window in dwell.windows if not window.is_disturbed)
        if kept:
            stays.setdefault(dwell.setting, []).append(msgspec.structs.replace(dwell, windows=kept))
    return {setting: _measured(setting, own, steady, limits_w) for setting, own in stays.items()}


LAST: Final = 16
"""Ours: of a long stay the last windows count, as its beginning is its warming up."""


def _measured(setting: Setting, stays: Sequence[Dwell], steady: Steady | None, limits_w: Sequence[float]) -> Measured:
    windows = [stay.windows[-LAST:] for stay in stays]
    change, slower = _settled(setting.level, windows, steady, limits_w)
    units = _mean_of(windows, lambda one, stay: one.units_per_s * slower[stay])
    lost = float(np.mean(1.0 - slower))
    return Measured(
        setting,
        stays[0].cores,
        _mean_of(windows, lambda one, stay: (one.khz or setting.khz) * slower[stay]).value,
        _mean_of(windows, lambda one, stay: sum(one.package_w) + change[stay]),
        _mean_of(windows, lambda one, stay: sum(one.dram_w) if one.dram_w else math.nan),
        _mean_of(windows, lambda one, stay: _known(one.node_w) + change[stay]),
        units,
        _mean_of(windows, lambda one, stay: _known(one.ipc)),
        float(np.mean(np.abs(change))),
        lost,
    )


def _settled(
    level: str, windows: Sequence[Sequence[Window]], steady: Steady | None, limits_w: Sequence[float]
) -> tuple[type_f64, type_f64]:
    """For each stay: watts to add for a settled temperature, and the clock that a power limit then leaves, relative."""
    raw = np.array([np.mean([one.package_w for one in own], 0) for own in windows])  # [stays, packages]
    settled = raw + (np.array([steady.corrections_w(level, own) for own in windows]) if steady else 0.0)
    slower = np.ones(len(windows))
    if len(limits_w) == raw.shape[1]:
        limit = np.array(limits_w)
        slower = np.min(np.minimum(limit / settled, 1.0), 1) ** (1 / POWER_OF_CLOCK)
        settled = np.minimum(settled, limit)
    return settled.sum(1) - raw.sum(1), slower


def _mean_of(windows: Sequence[Sequence[Window]], value: Callable[[Window, int], float]) -> Mean:
    """The mean of a value over the windows of all stays; it is given a window and the stay's number."""
    return mean_of([[value(one, stay) for one in own] for stay, own in enumerate(windows)])


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def series_points(
    clocks: Sequence[int], kernel: str, level: str, measured: Mapping[Setting, Measured]
) -> tuple[Point, ...]:
    """A row for every clock of one kernel and level; none where nothing was measured."""
    own = {setting.khz: one for setting, one in measured.items() if (setting.kernel, setting.level) == (kernel, level)}
    if not own:
        return ()
    curves = _Curves.of(clocks, own)
    return tuple(_point(Setting(kernel, level, khz), row, own, curves) for row, khz in enumerate(clocks))


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

    @classmethod
    def of(cls, clocks: Sequence[int], own: Mapping[int, Measured]) -> _Curves:
        found = [own[khz] for khz in sorted(own)]
        x = [one.khz for one in found]
        goal = [own[khz].khz if khz in own else min(float(khz), max(x)) for khz in clocks]

        def curve(shape: str, means: Sequence[Mean]) -> Curve:
            return predict(shape, x, [one.value for one in means], [one.deviation for one in means], goal)

        time = curve("time", [_inverse(one.units) for one in found])
        top_units = 1.0 / float(time.value[-1])
        return cls(
            goal,
            curve("watts", [one.package for one in found]),
            curve("watts", [one.dram for one in found]),
            curve("watts", [one.node for one in found]),
            _inverted(time, Mean(top_units, found[-1].units.half)),
            _inverted(curve("time", [_inverse(one.ipc) for one in found]), Mean(1.0, 0.0)),
            top_units,
            UNCERTAIN * _between(goal, found, lambda one: one.correction_w),
            _between(goal, found, lambda one: one.lost),
        )


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


def all_points(
    clocks: Sequence[int], kernels: Iterable[str], measured: Mapping[Setting, Measured]
) -> tuple[Point, ...]:
    """Every row of a table."""
    return tuple(
        point for kernel in kernels for level in LEVELS for point in series_points(clocks, kernel, level, measured)
    )
