"""The discovered domains and sensors of a platform, with names, ranges and units."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from firmware_bridge.errors import RequestError
from firmware_bridge.scmi.protocols.power_capping import ROOT

_UNITS_PER_WATT: Final = {"uW": 1_000_000, "mW": 1_000}


class CapDomain(msgspec.Struct, frozen=True):
    """A power-capping domain; caps and powers are integers in ``unit``."""

    number: int
    name: str
    unit: str
    parent: int
    min_cap: int
    max_cap: int
    cap_step: int
    sustainable_power: int
    accuracy_percent: int
    min_pai_us: int
    max_pai_us: int
    pai_step_us: int
    can_set_cap: bool
    can_set_pai: bool
    has_monitoring: bool
    notifies_caps: bool
    notifies_measurements: bool
    has_fast_channels: bool

    @property
    def is_root(self) -> bool:
        """Whether it has no parent."""
        return self.parent == ROOT

    def range_in_words(self) -> str:
        """The range of caps, for a person."""
        step = f" in steps of {self.in_words(self.cap_step)}" if self.cap_step else ""
        return f"{self.in_words(self.min_cap)} to {self.in_words(self.max_cap)}{step}"

    def in_words(self, value: int) -> str:
        """A power of this domain for a person."""
        if self.unit not in _UNITS_PER_WATT:
            return f"{value} (abstract)"
        return f"{self.watts(value):.10g} W"

    def watts(self, value: int) -> float:
        """A power of this domain in watts."""
        return value / self._per_watt()

    def rounded_down(self, power_w: float) -> int:
        """Watts in this domain's unit, rounded down."""
        scaled = power_w * self._per_watt()
        return int(scaled + 1e-6)  # 0.3 W is a float just below 0.3: take the decimal as written

    def quantised(self, cap: int) -> int:
        """The cap rounded down to a step of the range; a cap below the range stays unchanged."""
        if cap < self.min_cap or not self.cap_step:
            return cap
        return max(cap - cap % self.cap_step, self.min_cap)

    def _per_watt(self) -> int:
        if self.unit not in _UNITS_PER_WATT:
            raise RequestError(f"power domain {self.number} ({self.name}) counts in abstract units, not in watts")
        return _UNITS_PER_WATT[self.unit]


class PerformanceLevel(msgspec.Struct, frozen=True):
    """A level with its frequency; ``number`` is what LEVEL messages carry."""

    number: int
    khz: int
    power_cost: int
    latency_us: int


class SpeedDomain(msgspec.Struct, frozen=True):
    """A performance domain."""

    number: int
    name: str
    power_unit: str
    rate_limit_us: int
    sustained_khz: int
    levels: tuple[PerformanceLevel, ...]
    uses_indices: bool
    can_set_level: bool
    can_set_limits: bool
    notifies_level: bool
    notifies_limits: bool
    has_fast_channels: bool

    def khz(self, number: int) -> int | None:
        """The frequency of a level, if the platform described it."""
        return next((level.khz for level in self.levels if level.number == number), None)

    def in_words(self, number: int) -> str:
        """A level for a person."""
        khz = self.khz(number)
        return f"level {number}" if khz is None else f"{khz / 1e3:.10g} MHz"

    def range_in_words(self) -> str:
        """The range of levels, for a person."""
        if not self.levels:
            return "no levels were described"
        lowest, highest = self.levels[0].khz / 1e3, self.levels[-1].khz / 1e3
        return f"{lowest:.10g} to {highest:.10g} MHz, {len(self.levels)} levels"

    def level_at_or_below(self, khz: float) -> int:
        """The number of the fastest level that is no faster than ``khz``."""
        fitting = [level.number for level in self.levels if level.khz <= khz]
        if not fitting:
            raise RequestError(f"performance domain {self.number} ({self.name}): {khz / 1e3:.10g} MHz is below "
                               f"{self.range_in_words()}")  # fmt: skip
        return fitting[-1]


class SensorInfo(msgspec.Struct, frozen=True):
    """A sensor; its value is the reading times ten to ``scale``, in ``unit``."""

    number: int
    name: str
    unit: str
    scale: int
    reads_asynchronously: bool
    notifies_updates: bool
    trip_points: int

    def value(self, reading: int) -> float:
        """A reading in the sensor's unit."""
        return float(reading * 10**self.scale) if self.scale >= 0 else float(reading / 10**-self.scale)


class Named(Protocol):
    """A domain or sensor."""

    @property
    def number(self) -> int:
        """Its number on the wire."""

    @property
    def name(self) -> str:
        """Its name."""


N = TypeVar("N", bound=Named)


def find(known: Sequence[N], wanted: str, what: str) -> N:
    """The domain or sensor with this number or name; ``RequestError`` lists the existing ones."""
    for one in known:
        if wanted == one.name or (wanted.isdecimal() and int(wanted) == one.number):
            return one
    near = difflib.get_close_matches(wanted, [one.name for one in known], 1)
    there = ", ".join(f"{one.number} ({one.name})" for one in known) or "none"
    raise RequestError(f"no {what} {wanted!r}; {f'nearest: {near[0]}; ' if near else ''}there are {there}")
