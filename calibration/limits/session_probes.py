"""The probes of a node: its knobs through the writer, its energy and clocks through ``pmu``.

What differs between a node, a served emulated one and one in virtual time is given: the ports, the writer, how to wait,
and how long files that answer late have taken in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np

from calibration.limits.probes import LimitsError, type_shows
from calibration.measure.node_session import HOT_C
from nodectl.knobs import Outcome, uncore_limit
from nodectl.knobs.package_power_limit import PackageLimit
from nodectl.knobs.uncore_limit import UncoreLimit
from nodectl.loop.survey import Survey
from pmu.instruments import rapl
from pmu.instruments.kept import keep_integers
from pmu.layout import Layout
from pmu.ports import Ports
from pmu.readings import RAW_MISSING

RENEW_NS: Final = 200_000_000
"""Ours: knobs are on leases of at least a second; whoever moves them renews them in time."""

LOWEST_SHARE: Final = 0.2
"""Ours: where the kernel names no lowest limit, the search ends at this share of the highest."""

LONGEST_S: Final = 10.0
"""Ours: power settles within two of a limit's windows; steps are small, so where that takes longer one is enough."""

BAD: Final = ("refused", "foreign", "vanished")


class KnobWriter(Protocol):
    """``nodectl.write.writer.Writer``, or its remote end."""

    def apply(self, settings: Mapping[str, int]) -> list[Outcome]:
        """Bring knobs to these values."""


class Knobs:
    """The knobs that a measurement moves, and the clock in which it waits: while time passes, leases are renewed.

    ``wait`` sleeps until an instant and may raise ``KeyboardInterrupt``; ``delayed_s``: the sum of delays of files so
    far that the clock does not show.
    """

    def __init__(
        self,
        ports: Ports,
        writer: KnobWriter,
        wait: Callable[[int], None] | None = None,
        delayed_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._clock, self._writer = ports.clock, writer
        self._wait = wait or ports.clock.sleep_until_ns
        self._delayed_s = delayed_s
        self._settings: dict[str, int] = {}
        self._renew_ns = 0

    def now_ns(self) -> int:
        """The node's clock."""
        return self._clock.now_ns()

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Let time pass."""
        while (now_ns := self._clock.now_ns()) < deadline_ns:
            self._wait(min(deadline_ns, now_ns + RENEW_NS))
            if self._settings and self._clock.now_ns() >= self._renew_ns:
                self._apply(self._settings)

    def set(self, settings: Mapping[str, int]) -> float:
        """Move these knobs, 0 puts one back; returns the seconds until the writer had answered. ``LimitsError`` when it
        refuses."""
        before_ns, before_s = self._clock.now_ns(), self._delayed_s()
        self._settings.update(settings)
        try:
            self._apply(settings)
        finally:
            self._settings = {name: value for name, value in self._settings.items() if value}
        return (self._clock.now_ns() - before_ns) / 1e9 + self._delayed_s() - before_s

    def _apply(self, settings: Mapping[str, int]) -> None:
        self._renew_ns = self._clock.now_ns() + RENEW_NS
        bad = next((one for one in self._writer.apply(settings) if one.status in BAD), None)
        if bad:
            raise LimitsError(f"{bad.knob}: {bad.status}: {bad.detail or 'no reason given'}")


class PackageEnergy:
    """Mean power of the packages, by their energy counters."""

    def __init__(self, ports: Ports, layout: Layout, package: int = -1, with_dram: bool = False) -> None:
        """``package``: -1 for all of them. ``with_dram``: their DRAM too."""
        kinds = ("package", "dram") if with_dram else ("package",)
        zones = [zone for zone in layout.zones if zone.kind in kinds and package in (-1, zone.package)]
        self._clock = ports.clock
        self._kept = keep_integers(ports.files, [rapl.column(zone).source for zone in zones])
        self._range = np.array([zone.max_energy_uj + 1 for zone in zones], np.int64)
        self._before_ns, self._before = self._now()
        self._moved_ns, self._moved = self._before_ns, self._before

    def watts(self) -> float:
        """Since the call before; NaN where a counter gave nothing."""
        self._moved_ns, self._moved = self._now()
        return self._watts()

    def watts_of_steps(self) -> float:
        """From the last step of each counter to a later one; NaN while one has not moved since. Called often, it knows
        when a step was."""
        now_ns, now = self._now()
        has_moved = (self._moved == self._before) & (now != self._before)
        self._moved_ns = np.where(has_moved, now_ns, self._moved_ns)
        self._moved = np.where(has_moved, now, self._moved)
        return math.nan if (self._moved == self._before).any() else self._watts()

    def close(self) -> None:
        """Close the files."""
        self._kept.close()

    def _watts(self) -> float:
        elapsed_ns, joules = self._moved_ns - self._before_ns, (self._moved - self._before) % self._range / 1e6
        is_sound = elapsed_ns.all() and RAW_MISSING not in self._moved and RAW_MISSING not in self._before
        self._before_ns, self._before = self._moved_ns, self._moved
        return float((joules * 1e9 / elapsed_ns).sum()) if is_sound else math.nan

    def _now(self) -> tuple[np.ndarray, np.ndarray]:
        raw = np.empty(len(self._range), np.int64)
        self._kept.sweep(raw)
        return np.full(len(raw), self._clock.now_ns()), raw


class PackagesCap:
    """The cap of all packages together: the same long-term RAPL limit on each. A ``CapPort``."""

    def __init__(self, knobs: Knobs, ports: Ports, found: Survey, lowest_w: float = 0.0) -> None:
        """``lowest_w``: 0: what the kernel names, or a share of the highest. ``LimitsError`` if a package has no limit
        that can be set."""
        self._limits = package_limits(found)
        self._knobs, self._ports, self._layout = knobs, ports, found.layout
        self._energy = PackageEnergy(ports, found.layout)
        self.highest_w = sum(int(limit.read()) for limit in self._limits) / 1e6
        named_w = sum(_lowest_uw(ports, limit) for limit in self._limits) / 1e6
        self.lowest_w = lowest_w or named_w or LOWEST_SHARE * self.highest_w
        latency_s = max(limit.latency_s for limit in self._limits)  # two windows
        self.settle_s = min(latency_s, max(latency_s / 2, LONGEST_S))

    def set_cap_w(self, watts: float) -> float:
        """Share it equally; seconds until the writer had answered."""
        share_uw = int(watts * 1e6 / len(self._limits))
        return self._knobs.set({limit.name: share_uw for limit in self._limits})

    def read_watts(self) -> float:
        """Of all packages, without DRAM."""
        return self._energy.watts()

    def read_watts_of_steps(self) -> float:
        """The same from one step of the counters to another; NaN while they have not moved."""
        return self._energy.watts_of_steps()

    def trouble(self) -> str:
        """A package that is too hot."""
        for column in self._layout.columns:
            if column.unit == "C" and column.part == "package":
                celsius = _read_value(self._ports, column.source) / column.per_unit
                if celsius >= HOT_C:
                    return f"the node is hot: {column.name} shows {celsius:.0f} C, {HOT_C:.0f} C is the most"
        return ""

    def release(self) -> None:
        """Put the limits back to what they were found at."""
        self._knobs.set({limit.name: 0 for limit in self._limits})


class ClockEffect:
    """A clock limit of one frequency domain, seen by the cycles of its first CPU, which must be busy. An
    ``EffectPort``; values in kHz."""

    unit = "kHz"
    shows: type_shows = "mean of a jump"

    def __init__(self, knobs: Knobs, ports: Ports, layout: Layout, domain: int = 0) -> None:
        of = layout.domains[domain]
        cpu = layout.cpus[of.cpus[0]]
        why = ports.counters.why_not("cycles")
        if why:
            raise LimitsError(f"no clock to measure: {why}")
        self.knob = "cpu/*/max_khz"
        self._names = [f"cpu/policy{policy}/max_khz" for policy in of.policies]
        self._knobs, self._clock = knobs, ports.clock
        self._counters = ports.counters.open((cpu,), ("cycles",))
        self._raw = np.empty((1, 1), np.int64)
        self._before = self._now()

    def request(self, value: float) -> None:
        """Limit the clock."""
        self._knobs.set(dict.fromkeys(self._names, round(value)))

    def observe(self) -> float:
        """Mean clock since the call before."""
        (before_ns, before), (now_ns, now) = self._before, self._now()
        self._before = now_ns, now
        is_sound = RAW_MISSING not in (before, now) and now_ns > before_ns
        return (now - before) / (now_ns - before_ns) * 1e6 if is_sound else math.nan

    def release(self) -> None:
        """Put the limits back."""
        self._knobs.set(dict.fromkeys(self._names, 0))

    def close(self) -> None:
        """Close the counter."""
        self._counters.close()

    def _now(self) -> tuple[int, int]:
        self._counters.sweep(self._raw)
        return self._clock.now_ns(), int(self._raw[0, 0])


class UncoreEffect:
    """The highest clock of one part of the uncore, seen by its present clock. An ``EffectPort``; values in kHz."""

    unit = "kHz"
    shows: type_shows = "level"

    def __init__(self, knobs: Knobs, ports: Ports, found: Survey) -> None:
        """The first one; ``LimitsError`` with the reason if there is none."""
        limits = [knob for knob in found.knobs if isinstance(knob, UncoreLimit)]
        if not limits:
            why = next((row.why for row in found.knob_rows if row.name.startswith("uncore/") and row.why), "none found")
            raise LimitsError(why)
        self.knob = uncore_limit.KIND.name
        self._name, self._path = limits[0].name, limits[0].clock_path
        self._knobs, self._ports = knobs, ports
        row = limits[0].range(found.layout)
        self.values = float(row.low), float(row.high)

    def request(self, value: float) -> None:
        """Limit it."""
        self._knobs.set({self._name: round(value)})

    def observe(self) -> float:
        """The clock now."""
        return _read_value(self._ports, self._path)

    def release(self) -> None:
        """Put the limit back."""
        self._knobs.set({self._name: 0})


class PackagePower:
    """The long-term limit of every package, seen by their energy. An ``EffectPort``; values in watts of all."""

    unit = "W"
    shows: type_shows = "mean of a ramp"
    knob = "rapl/*/long_term_uw"

    def __init__(self, cap: PackagesCap) -> None:
        self._cap = cap

    def request(self, value: float) -> None:
        """Set the cap."""
        self._cap.set_cap_w(value)

    def observe(self) -> float:
        """Watts from one step of the counters to another; NaN until then."""
        return self._cap.read_watts_of_steps()

    def release(self) -> None:
        """Put the limits back."""
        self._cap.release()


class GpuEffect:
    """A GPU's clock lock (MHz) or its board's power limit (mW), seen by its SM clock, which shows both at once; the
    power reading averages. The GPU must be busy. An ``EffectPort``."""

    unit = "MHz"
    shows: type_shows = "level"

    def __init__(self, knobs: Knobs, ports: Ports, index: int, knob: str) -> None:
        """``knob``: "sm_clock_mhz" or "power_limit_mw"."""
        if ports.nvml is None:
            raise LimitsError(f"no GPU to measure: {ports.nvml_why}")
        self.knob = f"gpu/*/{knob}"
        self._name, self._knobs, self._nvml = f"gpu/{index}/{knob}", knobs, ports.nvml
        try:
            ports.nvml.nvmlInit()
            self._device: Any = ports.nvml.nvmlDeviceGetHandleByIndex(index)
        except ports.nvml.NVMLError as error:
            raise LimitsError(f"GPU {index} cannot be measured: {error}") from None

    def request(self, value: float) -> None:
        """Lock the clock, or limit the board."""
        self._knobs.set({self._name: round(value)})

    def observe(self) -> float:
        """The SM clock now."""
        try:
            return float(self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM))
        except self._nvml.NVMLError:
            return math.nan

    def release(self) -> None:
        """Put the lock or limit back."""
        self._knobs.set({self._name: 0})

    def watts(self) -> float:
        """The board's power as the driver shows it."""
        try:
            return float(self._nvml.nvmlDeviceGetPowerUsage(self._device)) / 1e3
        except self._nvml.NVMLError:
            return math.nan


def package_limits(found: Survey) -> list[PackageLimit]:
    """The long-term limit of each package. ``LimitsError`` with the reason if one cannot be set."""
    by_name = {knob.name: knob for knob in found.knobs if isinstance(knob, PackageLimit)}
    names = [f"rapl/{zone.name}/long_term_uw" for zone in found.layout.zones if zone.kind == "package"]
    if not names or not by_name.keys() >= set(names):
        reasons = [row.why for row in found.knob_rows if row.name.startswith("rapl/") and row.why]
        why = next(iter(reasons), "none found")
        raise LimitsError(f"the packages' power limits cannot be set: {why} (see `nodectl doctor`)")
    return [by_name[name] for name in names]


def _lowest_uw(ports: Ports, limit: PackageLimit) -> int:
    value = _read_value(ports, limit.path.replace("_power_limit_uw", "_min_power_uw"))
    return 0 if math.isnan(value) else int(value)


def _read_value(ports: Ports, path: str) -> float:
    try:
        return float(ports.files.read(path))
    except (OSError, ValueError):
        return math.nan
