"""Which point is measured next, until the table is precise enough or the time is over.

First a long stay of the hottest kernel, hot and then cooling, and the idle node (``measure.steady_power``). Then the
highest, the lowest and the middle clock of every kernel and level. From then on always the point whose watts or speed
have the widest relative interval: a clock that is not measured yet where interpolation is uncertain, another stay
where noise is. What the temperature's correction leaves open no further stay narrows, so it is not aimed at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from calibration.kernels.port import Kernel
from calibration.measure import steady_power
from calibration.measure.node_session import LEVELS, WINDOW_S, Dwell, NodeSession, SessionError, Setting, Window, label
from calibration.measure.partial_file import PartialFile
from calibration.measure.steady_power import PROBE, Steady
from calibration.table.pstate_table import Measured, Point, all_points, measured_points

SETTLE_S: Final = 0.5
WINDOWS: Final = 8
"""Ours: a stay is half a second of settling and two seconds of windows, unless the time given is short."""

FEWEST_WINDOWS: Final = 4
SHORT_SETTLE_S: Final = 0.25

FIRST_SHARE: Final = 0.75
"""Ours: of a short time, what the first three clocks of every kernel and level may take."""

MOST_STAYS: Final = 3
"""Ours: a point that is still uncertain after so many stays is left: something there varies by itself."""


@dataclass(frozen=True, slots=True)
class Aim:
    """When to stop: ``budget_s`` (0: none), or when every relative half interval is below ``precision``."""

    precision: float = 0.02
    budget_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a sweep is: stays done, the widest relative half interval, where, and seconds left (NaN: not known)."""

    stays: int
    widest: float
    where: str
    left_s: float


@dataclass(slots=True)
class Sweep:
    """One measurement of a node. ``limits_w``: the long-term power limit of each package, none if there is any that
    has none."""

    session: NodeSession
    kernels: Sequence[Kernel]
    aim: Aim
    kept: PartialFile | None = None
    limits_w: Sequence[float] = ()
    report: Callable[[Progress], None] = lambda progress: None
    dwells: list[Dwell] = field(default_factory=list)
    idle: tuple[Window, ...] = ()
    points: tuple[Point, ...] = ()
    steady: Steady | None = None
    _settle_s: float = SETTLE_S
    _windows: int = WINDOWS
    _done_s: float = 0.0

    def run(self) -> tuple[Point, ...]:
        """Measure until the aim is reached; the table's rows. Stays of an earlier run are taken over."""
        if self.kept:
            self.dwells, self.idle = list(self.kept.dwells), self.kept.idle
        self._done_s = sum(dwell.seconds for dwell in self.dwells) + sum(one.seconds for one in self.idle)
        self._fit_to_budget()
        self._probe()
        for setting in self._first():
            self._stay(setting)
        self._look()
        while (widest := self._next()) is not None:
            self._stay(widest)
            self._look()
        return self.points

    @property
    def full_s(self) -> float:
        """What measuring every clock once takes, probe included."""
        stays = len(self.kernels) * len(LEVELS) * len(self.session.clocks)
        probe = sum(seconds for _, seconds in PROBE) if self._has_probe else 0.0
        return stays * (SETTLE_S + WINDOWS * WINDOW_S) + probe

    @property
    def spent_s(self) -> float:
        """Seconds measured, in this run and the ones it continues."""
        return self._done_s

    @property
    def _has_probe(self) -> bool:
        return bool(self.session.celsius()) and (not self.aim.budget_s or self.aim.budget_s >= LONG_BUDGET_S)

    def _fit_to_budget(self) -> None:
        """Shorten the stays of a short budget. ``SessionError`` if even those do not fit."""
        if not self.aim.budget_s:
            return
        stays = len(self.kernels) * len(LEVELS) * len(_three(self.session.clocks))
        left_s = self.aim.budget_s - (sum(seconds for _, seconds in PROBE) if self._has_probe else 1.0)
        each_s = FIRST_SHARE * left_s / stays
        if each_s >= SETTLE_S + WINDOWS * WINDOW_S:
            return
        self._settle_s = SHORT_SETTLE_S
        self._windows = max(int((each_s - SHORT_SETTLE_S) / WINDOW_S), FEWEST_WINDOWS)
        needed_s = stays * (SHORT_SETTLE_S + FEWEST_WINDOWS * WINDOW_S) + 1.0
        if self.aim.budget_s < needed_s:
            raise SessionError(
                f"--time-budget: three clocks of {len(self.kernels)} kernels need {needed_s:.0f} s at least: give more"
                " time or fewer kernels"
            )

    def _probe(self) -> None:
        """Idle, hot, cooling, idle; of a run that goes on only what is missing."""
        hottest, clocks = self.kernels[0], self.session.clocks
        for number, (what, seconds) in enumerate(PROBE if self._has_probe else PROBE[:1]):
            windows = round(seconds / WINDOW_S)
            khz = clocks[-1] if what == "top" else clocks[0]
            if what != "idle" and not self._has(Setting(label(hottest), "all", khz)):
                self._measure(hottest, "all", khz, windows)
            elif what == "idle" and len(self.idle) < (windows if number == 0 else _IDLE_WINDOWS):
                self._rest(windows)

    def _rest(self, windows: int) -> None:
        found = self.session.idle(self._settle_s, windows)
        self.idle = (*self.idle, *found)
        self._done_s += self._settle_s + windows * WINDOW_S
        if self.kept:
            self.kept.rested(found)

    def _has(self, setting: Setting) -> bool:
        return any(dwell.setting == setting for dwell in self.dwells)

    def _first(self) -> Iterator[Setting]:
        """Top, bottom and middle of every kernel and level, by level: a kernel is started once for its three."""
        done = {dwell.setting for dwell in self.dwells}
        for kernel in self.kernels:
            for level in LEVELS:
                for khz in _three(self.session.clocks):
                    if (setting := Setting(label(kernel), level, khz)) not in done:
                        yield setting

    def _next(self) -> Setting | None:
        """The point with the widest interval; None when the aim is reached."""
        if self.aim.budget_s and self._done_s + self.stay_s > self.aim.budget_s:
            return None
        stays: dict[Setting, int] = {}
        for dwell in self.dwells:
            stays[dwell.setting] = stays.get(dwell.setting, 0) + 1
        open_points = [one for one in self.points if stays.get(_setting(one), 0) < MOST_STAYS]
        widest = max(open_points, key=self._width, default=None)
        wanted = 0.0 if self.aim.budget_s else self.aim.precision
        return None if widest is None or self._width(widest) <= wanted else _setting(widest)

    def _width(self, point: Point) -> float:
        return point.relative_half(self.session.has_meter, is_measurable=True)

    def _stay(self, setting: Setting) -> None:
        kernel = next(one for one in self.kernels if label(one) == setting.kernel)
        self._measure(kernel, setting.level, setting.khz, self._windows)

    def also(self, kernel: Kernel, level: str) -> None:
        """Measure this too, at three clocks, whatever the aim; not again what an earlier run has measured."""
        for khz in _three(self.session.clocks):
            if not self._has(Setting(label(kernel), level, khz)):
                self._measure(kernel, level, khz, self._windows)
        self._look()

    def stay_at(self, kernel: Kernel, level: str, khz: int, uncore_khz: int) -> None:
        """One more stay, under a limit of the uncore."""
        self._measure(kernel, level, khz, self._windows, uncore_khz)
        self._look()

    def stays_at(self, setting: Setting) -> int:
        """How often it was measured."""
        return sum(dwell.setting == setting for dwell in self.dwells)

    @property
    def stay_s(self) -> float:
        """Seconds of one stay."""
        return self._settle_s + self._windows * WINDOW_S

    def _measure(self, kernel: Kernel, level: str, khz: int, windows: int, uncore_khz: int = 0) -> None:
        dwell = self.session.dwell(kernel, level, khz, self._settle_s, windows, uncore_khz)
        self.dwells.append(dwell)
        self._done_s += dwell.seconds
        if self.kept:
            self.kept.stay(dwell)
        self.report(self._progress())

    def _look(self) -> None:
        self.steady = steady_power.fit(self.idle, self.dwells, self.session.awake())
        names = {label(kernel) for kernel in self.kernels}
        self.points = tuple(point for point in self.all_measured() if point.kernel in names)

    def all_measured(self) -> tuple[Point, ...]:
        """The rows of all kernels that have been measured."""
        return all_points(self.session.clocks, self.measured())

    def measured(self) -> dict[Setting, Measured]:
        """What every setting came to."""
        return measured_points(self.dwells, self.steady, self.limits_w)

    def _progress(self) -> Progress:
        if not self.points:
            first = len(self.kernels) * len(LEVELS) * len(_three(self.session.clocks))
            done = len({dwell.setting for dwell in self.dwells})
            left_s = max(first - done, 0) * (self._settle_s + self._windows * WINDOW_S)
            return Progress(len(self.dwells), math.inf, "", max(left_s, self.aim.budget_s - self._done_s))
        widest = max(self.points, key=self._width)
        wide = sum(self._width(point) > self.aim.precision for point in self.points)
        series = len(self.kernels) * len(LEVELS)
        # a stay that narrows one point narrows its neighbours too: about a third of the wide ones are measured
        left_s = (wide / 3 + 0.1 * series * (wide > 0)) * (self._settle_s + self._windows * WINDOW_S)
        if self.aim.budget_s:
            left_s = self.aim.budget_s - self._done_s
        where = f"{widest.kernel}, {widest.level} cores, {widest.khz / 1e6:g} GHz"
        return Progress(len(self.dwells), self._width(widest), where, max(left_s, 0.0))


_IDLE_WINDOWS: Final = round(sum(seconds for what, seconds in PROBE if what == "idle") / WINDOW_S)

LONG_BUDGET_S: Final = 150.0
"""Ours: a shorter budget has no time for the probe; watts are then those of a package as warm as it was."""


def _three(clocks: Sequence[int]) -> tuple[int, ...]:
    """The highest, the lowest and the middle clock."""
    return tuple(dict.fromkeys((clocks[-1], clocks[0], clocks[len(clocks) // 2])))


def _setting(point: Point) -> Setting:
    return Setting(point.kernel, point.level, point.khz)
