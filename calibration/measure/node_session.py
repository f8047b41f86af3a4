"""A node while it is measured: its sensors, its clock limits through the writer, and the kernels on its CPUs.

The session is the same on a real node, on a served emulated one and in virtual time: what differs is given to it. A
real node has a writer in a process of its own below a restorer, whose leases end within a second of a ``kill -9``. Each
window renews them. In virtual time the writer is in this process.

A window is the difference of two sweeps. The energy counters move in steps of about 1 ms, so a window of 0.25 s is
uncertain by some 0.2 %, and neighbouring windows err in opposite directions. The node's own meter shows a level, which
is read every 50 ms in between.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec
import numpy as np

from calibration.kernels.port import Kernel, KernelPort
from calibration.measure.counted_clock import why_wrong
from calibration.measure.full_power import at_full_power
from foundation.shell.errors import NodectlError
from nodectl.knobs import Knob, Outcome
from nodectl.knobs.uncore_limit import UncoreLimit
from nodectl.loop.survey import Survey, survey
from nodectl.write.lock import NodeLock
from nodectl.write.places import save_places
from nodectl.write.saves import node_id
from nodectl.write.writer import Writer
from pmu.decode import decode
from pmu.instruments import hwmon
from pmu.layout import Column, FrequencyDomain
from pmu.node import Instruments
from pmu.ports import Ports
from pmu.readings import Sample, type_f64

T = TypeVar("T")

WINDOW_S: Final = 0.25
LOOK_S: Final = 0.05
"""Ours: how often the node's meter is read within a window."""

METERS: Final = ("power_meter",)
"""Drivers of hwmon whose watts are those of the whole node: acpi_power_meter (ACPI 6.5, section 10.4)."""

STEP_KHZ: Final = 100_000
"""Clocks that are measured where the driver lists none: multiples of 100 MHz, the steps of intel_pstate."""

LEVELS: Final = ("one", "half", "all")
"""How many cores a kernel runs on, one thread on each; half of every package."""

BUSY_SHARE: Final = 0.05
"""Ours: other CPUs together busy for more than this share of one CPU in a window: other work runs."""

IDLE_TICKS: Final = 0.01
"""Ours: share of an idle CPU that the kernel's own timers and daemons may take."""

HOT_C: Final = 95.0
"""Ours: processors throttle at 90 to 105 C; what they draw then says nothing about a clock."""

BAD_OUTCOMES: Final = frozenset({"refused", "foreign", "vanished"})


class SessionError(NodectlError):
    """This node cannot be measured, or not now; one line."""


class ClockWriter(Protocol):
    """``nodectl.write.writer.Writer``, its remote end, or the node's agent (``through_agent``)."""

    def apply(self, settings: Mapping[str, int]) -> list[Outcome]:
        """Bring knobs to these values. ``GrantLostError``: not while this cap is in force."""

    def restore_all(self) -> list[Outcome]:
        """Put every knob back."""

    def close(self) -> None:
        """Release the save, or hang up."""


class Setting(msgspec.Struct, frozen=True, order=True):
    """What is measured: a kernel, on how many cores, under which clock limit. ``kernel``: its label; ``uncore_khz``:
    the uncore's limit, 0: as it was found."""

    kernel: str
    level: str
    khz: int
    uncore_khz: int = 0


class Window(msgspec.Struct, frozen=True):
    """One window. Watts: of each package, of their DRAM, of the node by its meter (None: there is none). ``khz``: mean
    clock of the busy CPUs; ``ipc``: instructions per reference cycle (both None where no CPU is busy or counted);
    ``celsius``: of each package, empty without sensors; ``is_disturbed``: other work ran."""

    begin_s: float
    seconds: float
    package_w: tuple[float, ...]
    dram_w: tuple[float, ...]
    node_w: float | None
    units_per_s: float
    khz: float | None
    ipc: float | None
    celsius: tuple[float, ...]
    is_disturbed: bool = False


class Dwell(msgspec.Struct, frozen=True):
    """One stay at a setting: its windows, and the seconds that it took in all."""

    setting: Setting
    cores: int
    windows: tuple[Window, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class UncoreRange:
    """The uncore's limits: names of their knobs, and the clocks that all of them can have, ascending; no names: the
    uncore cannot be moved here."""

    names: tuple[str, ...] = ()
    clocks: tuple[int, ...] = ()


@dataclass(slots=True)
class NodeMeter:
    """The node's own meter: columns of hwmon that show watts of the whole node."""

    ports: Ports
    columns: Sequence[Column]

    def watts(self) -> float | None:
        """Their sum now; None if there is no meter or one gives no value."""
        if not self.columns:
            return None
        total = 0.0
        for column in self.columns:
            try:
                total += int(self.ports.files.read(column.source)) / column.per_unit
            except (OSError, ValueError):
                return None
        return total


def label(kernel: Kernel) -> str:
    """A kernel's name, with its intensity where it has one: ``mix-1``."""
    return f"{kernel.name}-{kernel.flops_per_byte:g}" if kernel.flops_per_byte else kernel.name


def clocks_khz(domains: Sequence[FrequencyDomain]) -> tuple[int, ...]:
    """Clock limits that every domain of the node can be given, ascending."""
    low = max(domain.min_khz for domain in domains)
    high = min(domain.max_khz for domain in domains)
    common = set(domains[0].steps_khz).intersection(*(domain.steps_khz for domain in domains))
    if not common:
        first = -(-low // STEP_KHZ) * STEP_KHZ
        common = {low, high, *range(first, high, STEP_KHZ)}
    return tuple(sorted(khz for khz in common if low <= khz <= high))


def uncore_range(found: Survey) -> UncoreRange:
    """Of a node as it was found; nothing is measured above what a limit is at now."""
    rows = [knob.range(found.layout) for knob in found.knobs if isinstance(knob, UncoreLimit)]
    common = set.intersection(*(set(row.steps) for row in rows)) if rows else set()
    return UncoreRange(tuple(row.name for row in rows), tuple(sorted(common))) if len(common) > 1 else UncoreRange()


@dataclass(slots=True)
class NodeSession:
    """``with open_session(...) as session``. Leaving the block stops the kernel and puts every knob back."""

    ports: Ports
    found: Survey
    kernels: KernelPort
    writer: ClockWriter
    wait: Callable[[int], None]
    is_over: Callable[[], bool]
    clocks: tuple[int, ...]
    uncore: UncoreRange
    release: Callable[[], None]
    paused: Callable[[str], None]
    _instruments: Instruments
    _meter: NodeMeter
    _running: tuple[str, str] = ("", "")
    _settings: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> NodeSession:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop_kernel()
        finally:
            with contextlib.ExitStack() as closing:
                closing.callback(self.release)
                closing.callback(self.writer.close)
                closing.callback(self._instruments.close)
                closing.callback(self.writer.restore_all)

    @property
    def has_meter(self) -> bool:
        """Whether the node's own meter gives watts."""
        return self._meter.watts() is not None

    @property
    def packages(self) -> tuple[str, ...]:
        """Names of the packages' energy zones."""
        return tuple(zone.name for zone in self.found.layout.zones if zone.kind == "package")

    @property
    def now_s(self) -> float:
        """The node's clock."""
        return self.ports.clock.now_ns() * 1e-9

    def cpus_of(self, level: str) -> tuple[int, ...]:
        """The logical CPUs of a level: the first thread of each core that takes part."""
        layout = self.found.layout
        first: dict[int, int] = {}
        for cpu, core in zip(layout.cpus, layout.core_of, strict=True):
            first.setdefault(core, cpu)
        if level == "one":
            return (next(iter(first.values())),)
        if level == "all":
            return tuple(first.values())
        package_of = dict(zip(layout.cpus, layout.package_of, strict=True))
        chosen: list[int] = []
        for package in sorted(set(layout.package_of)):
            members = [cpu for cpu in first.values() if package_of[cpu] == package]
            chosen += members[: max(len(members) // 2, 1)]
        return tuple(chosen)

    def awake(self) -> dict[str, tuple[float, ...]]:
        """By level: the share of each package's cores that take part."""
        layout = self.found.layout
        core_of = dict(zip(layout.cpus, layout.core_of, strict=True))
        package_of = dict(zip(layout.cpus, layout.package_of, strict=True))
        packages = sorted(set(layout.package_of))
        cores = {one: len({core_of[cpu] for cpu in layout.cpus if package_of[cpu] == one}) for one in packages}
        return {
            level: tuple(sum(package_of[cpu] == one for cpu in self.cpus_of(level)) / cores[one] for one in packages)
            for level in LEVELS
        }

    def set_clock(self, khz: int, uncore_khz: int = 0) -> None:
        """Limit every clock, and the uncore's (0: as it was found); ``SessionError`` if one limit cannot be moved."""
        names = [f"cpu/policy{policy}/max_khz" for one in self.found.layout.domains for policy in one.policies]
        moved = any(name in self._settings for name in self.uncore.names)
        self._settings = dict.fromkeys(names, khz)
        if uncore_khz or moved:
            self._settings |= dict.fromkeys(self.uncore.names, uncore_khz or self.uncore.clocks[-1])
        self._renew()

    def wait_for_power(self) -> None:
        """Until the node may draw what it likes, so that what is read of its limits is what it will be measured at."""
        self._at_full_power(lambda: self.set_clock(self.clocks[-1]))

    def start_kernel(self, kernel: Kernel, level: str) -> None:
        """Have it run on these cores alone."""
        if self._running != (label(kernel), level):
            self.stop_kernel()
            self.kernels.start(kernel, self.cpus_of(level))
            self._running = (label(kernel), level)

    def stop_kernel(self) -> None:
        """End the kernel that runs."""
        if self._running != ("", ""):
            self._running = ("", "")
            self.kernels.stop()

    def dwell(self, kernel: Kernel, level: str, khz: int, settle_s: float, windows: int, uncore_khz: int = 0) -> Dwell:
        """Run the kernel at this clock, let it settle, and measure; once more if the node lost its power meanwhile.
        ``KeyboardInterrupt`` when the run is to end."""
        return self._at_full_power(lambda: self._dwell(kernel, level, khz, settle_s, windows, uncore_khz))

    def _dwell(self, kernel: Kernel, level: str, khz: int, settle_s: float, windows: int, uncore_khz: int) -> Dwell:
        begin_s = self.now_s
        self.set_clock(khz, uncore_khz)
        self.start_kernel(kernel, level)
        self.rest(settle_s)
        measured = self._windows(self.cpus_of(level), windows)
        if khz == self.clocks[0]:
            shown = [one.khz for one in measured if one.khz and not one.is_disturbed]
            if why := why_wrong(shown, khz, self.found.layout.reference_khz):
                raise SessionError(why)
        setting = Setting(label(kernel), level, khz, uncore_khz)
        return Dwell(setting, len(self.cpus_of(level)), measured, self.now_s - begin_s)

    def idle(self, settle_s: float, windows: int) -> tuple[Window, ...]:
        """The node without a kernel."""

        def measured() -> tuple[Window, ...]:
            self.stop_kernel()
            self.rest(settle_s)
            return self._windows((), windows)

        return self._at_full_power(measured)

    def _at_full_power(self, measure: Callable[[], T]) -> T:
        return at_full_power(measure, self.stop_kernel, self._renew, self._wait, self.paused)

    def rest(self, seconds: float) -> None:
        """Let time pass; leases are renewed."""
        end_ns = self.ports.clock.now_ns() + round(seconds * 1e9)
        while (left_ns := end_ns - self.ports.clock.now_ns()) > 0:
            self._wait(min(left_ns, round(WINDOW_S * 1e9)))
            self._renew()

    def celsius(self) -> tuple[float, ...]:
        """Temperature of each package now; empty where not every package has one. The loop reads these once a second
        only, too late for a package whose watts have just changed."""
        seen: list[float] = []
        for column in self.found.layout.columns:
            if column.unit == "C" and column.part == "package":
                with contextlib.suppress(OSError, ValueError):
                    seen.append(int(self.ports.files.read(column.source)) / column.per_unit)
        return tuple(seen) if len(seen) == len(self.packages) else ()

    def _windows(self, cpus: Sequence[int], number: int) -> tuple[Window, ...]:
        found: list[Window] = []
        before, units = self._instruments.sweep(), self.kernels.units_done() if cpus else 0.0
        for _ in range(number):
            if max(self.celsius(), default=0.0) >= HOT_C:
                raise SessionError(
                    f"the node is hot: a package has {max(self.celsius()):.0f} C, {HOT_C:.0f} C is the most"
                )
            meter = self._watch_meter(before.time_ns + round(WINDOW_S * 1e9))
            now, done = self._instruments.sweep(), self.kernels.units_done() if cpus else 0.0
            sample = decode(self.found.layout, before, now)
            found.append(self._window(sample, cpus, done - units, meter))
            before, units = now, done
            self._renew()
        return tuple(found)

    def _watch_meter(self, end_ns: int) -> float | None:
        """Wait until then; mean watts of the meter meanwhile."""
        seen: list[float] = []
        while (left_ns := end_ns - self.ports.clock.now_ns()) > 0:
            self._wait(min(left_ns, round(LOOK_S * 1e9)) if self._meter.columns else left_ns)
            watts = self._meter.watts()
            if watts is not None:
                seen.append(watts)
        return statistics.fmean(seen) if seen else None

    def _window(self, sample: Sample, cpus: Sequence[int], units: float, node_w: float | None) -> Window:
        layout, elapsed_s = self.found.layout, sample.elapsed_s
        rows = [layout.cpus.index(cpu) for cpu in cpus]
        others = np.ones(len(layout.cpus), bool)
        others[rows] = False
        cores = {layout.core_of[row] for row in rows}
        others &= np.array([core not in cores for core in layout.core_of])  # threads of a busy core are seen with it
        busy = float(np.nansum(sample.cpu.busy[others]))
        watts = sample.energy_j / elapsed_s
        by_kind = {
            kind: tuple(float(w) for w, zone in zip(watts, layout.zones, strict=True) if zone.kind == kind)
            for kind in ("package", "dram")
        }
        limit = max(BUSY_SHARE, IDLE_TICKS * int(others.sum()))
        return Window(
            begin_s=sample.time_ns * 1e-9 - elapsed_s,
            seconds=elapsed_s,
            package_w=by_kind["package"],
            dram_w=by_kind["dram"],
            node_w=node_w,
            units_per_s=units / elapsed_s,
            khz=_mean(sample.cpu.frequency_khz[rows]),
            ipc=_mean(sample.cpu.ipc[rows]),
            celsius=self.celsius(),
            is_disturbed=busy > limit,
        )

    def _wait(self, duration_ns: int) -> None:
        self.wait(self.ports.clock.now_ns() + duration_ns)
        if self.is_over():
            raise KeyboardInterrupt

    def _renew(self) -> None:
        if not self._settings:
            return
        bad = next((one for one in self.writer.apply(self._settings) if one.status in BAD_OUTCOMES), None)
        if bad:
            raise SessionError(f"{bad.knob}: {bad.detail or bad.status}; the measurement stops")


def _mean(values: type_f64) -> float | None:
    return float(np.nanmean(values)) if values.size and not np.isnan(values).all() else None


def open_session(
    ports: Ports,
    kernels: KernelPort,
    state_dir: str,
    writer: ClockWriter | None = None,
    wait: Callable[[int], None] | None = None,
    is_over: Callable[[], bool] = lambda: False,
    paused: Callable[[str], None] = lambda why: None,
    others: Sequence[Knob] = (),
    moves_uncore: bool = True,
) -> NodeSession:
    """Find sensors and knobs. ``writer``: one in a process of its own, started and already locking the node, or the
    node's agent; without it this process writes. ``paused`` gets a line when the node has lost its power, and an empty
    one when it has it again. ``others``: knobs of a controller, which only a writer of this process moves.
    ``moves_uncore``: whether the writer moves more than clock limits of cores, which a node's agent does not.
    ``SessionError`` where something is missing; nothing has been written then."""
    found = survey(ports)
    _check(found)
    release: Callable[[], None] = _nothing
    if writer is None:
        lock = NodeLock(state_dir, ports.lock_path)
        lock.acquire()
        try:
            places, node = save_places(state_dir, ports.lock_path), node_id(ports.lock_path)
            own = Writer([*found.knobs, *others], places, node, ports.clock, lock.is_current)
            own.start()
        except BaseException:
            lock.release()
            raise
        writer, release = own, lock.release
    meter = [one for one in hwmon.find(ports).shown if one.unit == "W" and one.name.split("/")[1] in METERS]
    return NodeSession(
        ports=ports,
        found=found,
        kernels=kernels,
        writer=writer,
        wait=wait or ports.clock.sleep_until_ns,
        is_over=is_over,
        clocks=clocks_khz(found.layout.domains),
        uncore=uncore_range(found) if moves_uncore else UncoreRange(),
        release=release,
        paused=paused,
        _instruments=Instruments(ports, found.layout),
        _meter=NodeMeter(ports, meter),
    )


def _nothing() -> None:
    """There is no lock of ours to release."""


def _check(found: Survey) -> None:
    layout = found.layout
    if not any(zone.kind == "package" for zone in layout.zones):
        why = next((row.why for row in found.sensor_rows if row.kind == "energy" and row.why), "no zones")
        raise SessionError(f"no energy of the packages to read: {why} (see `nodectl doctor`)")
    names = {knob.name for knob in found.knobs}
    for domain in layout.domains:
        for policy in domain.policies:
            name = f"cpu/policy{policy}/max_khz"
            if name not in names:
                why = next((row.why for row in found.knob_rows if row.name == name), "not found")
                raise SessionError(f"{name} cannot be moved: {why} (see `nodectl doctor`)")
    if not layout.domains:
        why = next((row.why for row in found.knob_rows if row.why), "no cpufreq")
        raise SessionError(f"no clock limit to move: {why} (see `nodectl doctor`)")
