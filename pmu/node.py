"""One node: what it is made of, and all its instruments read at one instant."""

from __future__ import annotations

import numpy as np

from pmu import busy, cpufreq, gpu, hwmon, rapl, topology
from pmu.busy import BusyTime
from pmu.counters import EVENTS, TellsHow
from pmu.findings import Finding, absent
from pmu.gpu import Gpus
from pmu.kept import keep_integers
from pmu.layout import FrequencyDomain, Layout
from pmu.ports import Ports
from pmu.readings import GPU_FIELDS, RAW_MISSING, RawSweep, Reading, type_i64

__all__ = ["Finding", "Instruments", "discover"]

REFERENCE = "reference-cycles"


def discover(ports: Ports) -> tuple[Layout, list[Finding]]:
    """The layout of this node and a line for everything found or missing; never fails for want of an instrument."""
    machine = topology.find(ports.files)
    domains, frequency_findings = cpufreq.find(ports.files, machine.cpus)
    reference_khz, rate_source = cpufreq.reference_khz(ports.files, domains)
    events, estimated, counter_findings = _find_events(ports, machine.cpus, reference_khz, rate_source)
    energy = rapl.find(ports.files)
    gpus, gpu_findings = gpu.find(ports.nvml, ports.nvml_why)
    sensors = hwmon.Sensors(ports.files)
    sensors.close()
    layout = Layout(
        cpus=machine.cpus,
        core_of=machine.core_of,
        package_of=machine.package_of,
        events=events,
        reference_khz=reference_khz,
        domains=domains,
        zones=energy.zones,
        gpus=gpus,
        estimated_events=estimated,
    )
    return layout, [*counter_findings, *energy.findings, *frequency_findings, *sensors.findings, *gpu_findings]


class Instruments:
    """Every instrument of a layout, open. PmuError if the counters cannot be opened any more."""

    def __init__(self, ports: Ports, layout: Layout) -> None:
        self._ports = ports
        self._layout = layout
        self._counted = tuple(event for event in layout.events if event not in layout.estimated_events)
        self._counters = ports.counters.open(layout.cpus, self._counted) if self._counted else None
        self._columns = [layout.events.index(event) for event in self._counted]
        self._busy = self._open_busy_time()
        paths = [f"{rapl.POWERCAP}/{zone.path}/energy_uj" for zone in layout.zones]
        self._energy = keep_integers(ports.files, paths)
        self._gpus = Gpus(ports.nvml, layout.gpus)
        self._sensors = hwmon.Sensors(ports.files)
        self._clocks = cpufreq.Clocks(ports.files, layout.domains)

    def sweep(self) -> RawSweep:
        """Read everything once. What gives no value is RAW_MISSING; no sensor that vanishes raises."""
        layout = self._layout
        sweep = RawSweep(
            time_ns=self._ports.clock.now_ns(),
            counters=np.full((len(layout.cpus), len(layout.events)), RAW_MISSING, np.int64),
            energy_uj=np.empty(len(layout.zones), np.int64),
            gpu=np.empty((len(layout.gpus), len(GPU_FIELDS)), np.int64),
        )
        self._sweep_counters(sweep.time_ns, sweep.counters)
        self._energy.sweep(sweep.energy_uj)
        self._gpus.sweep(sweep.time_ns, sweep.gpu)
        return sweep

    def readings(self) -> list[Reading]:
        """Temperatures, sensors' powers and present clocks: for people and slow loops, not part of the sweep."""
        now_ns = self._ports.clock.now_ns()
        return self._sensors.read(now_ns) + self._clocks.read(now_ns)

    def close(self) -> None:
        """Close every descriptor."""
        if self._counters is not None:
            self._counters.close()
        if self._busy is not None:
            self._busy.close()
        self._energy.close()
        self._gpus.close()
        self._sensors.close()

    def _sweep_counters(self, time_ns: int, out: type_i64) -> None:
        if self._counters is not None and self._busy is None:
            self._counters.sweep(out)
            return
        if self._counters is not None:
            counted = np.empty((len(out), len(self._counted)), np.int64)
            self._counters.sweep(counted)
            out[:, self._columns] = counted
        if self._busy is not None:
            events = self._layout.events
            cycles = out[:, events.index("cycles")] if "cycles" in events else np.full(len(out), RAW_MISSING, np.int64)
            self._busy.sweep(time_ns, cycles, out[:, events.index(REFERENCE)])

    def _open_busy_time(self) -> BusyTime | None:
        layout = self._layout
        if REFERENCE not in layout.estimated_events:
            return None
        return BusyTime(self._ports.files, layout.cpus, layout.reference_khz, _lowest_khz(layout.cpus, layout.domains))


def _find_events(
    ports: Ports, cpus: tuple[int, ...], reference_khz: int, rate_source: str
) -> tuple[tuple[str, ...], tuple[str, ...], list[Finding]]:
    """Columns, those of them that are estimated, and the findings, missing events first."""
    if not cpus:
        why = f"{topology.CPU}/online cannot be read: no list of CPUs"
        return (), (), [absent(event, "counter", why) for event in EVENTS]
    counted: list[str] = []
    missing: list[Finding] = []
    present: list[Finding] = []
    for event in EVENTS:
        why_not = ports.counters.why_not(event)
        if why_not is not None:
            missing.append(absent(event, "counter", why_not))
            continue
        counted.append(event)
        how = ports.counters.how(event) if isinstance(ports.counters, TellsHow) else event
        why = "" if how == event else f"counted by {how}"
        if event == REFERENCE:
            rate = f"{reference_khz / 1e6:g} GHz by {rate_source}" if reference_khz else rate_source
            why = "; ".join(part for part in (why, rate) if part)
        present.append(Finding(event, "counter", True, True, why=why))
    estimated: tuple[str, ...] = ()
    if "instructions" in counted and REFERENCE not in counted and reference_khz:
        why_not = busy.why_not(ports.files, cpus)
        if why_not is None:
            estimated = (REFERENCE,)
            counted.append(REFERENCE)
            missing = [finding for finding in missing if finding.name != REFERENCE]
            why = f"estimated from {busy.source(ports.files, cpus)} x {reference_khz / 1e6:g} GHz ({rate_source})"
            present.append(Finding(REFERENCE, "counter", True, True, why=why))
    events = tuple(event for event in EVENTS if event in counted)
    return events, estimated, missing + present


def _lowest_khz(cpus: tuple[int, ...], domains: tuple[FrequencyDomain, ...]) -> type_i64:
    lowest = np.zeros(len(cpus), np.int64)
    for domain in domains:
        lowest[list(domain.cpus)] = domain.min_khz
    return lowest
