"""One node: its layout, and one sweep of all its instruments."""

from __future__ import annotations

import numpy as np

from pmu import topology
from pmu.findings import Finding, absent
from pmu.instruments import busy, cpufreq, gpu, hwmon, rapl
from pmu.instruments.busy import BusyTime
from pmu.instruments.counters import EVENTS, TellsHow
from pmu.instruments.gpu import Gpus
from pmu.instruments.job_progress import Told, nobody_tells
from pmu.instruments.kept import keep_integers
from pmu.layout import FrequencyDomain, Layout
from pmu.ports import Ports
from pmu.readings import GPU_FIELDS, RAW_MISSING, RawSweep, Reading, type_i64

__all__ = ["Finding", "Instruments", "discover"]

REFERENCE = "reference-cycles"

ANY_KHZ = 1_000_000
"""Ours: a rate of estimated reference cycles where not even a clock range is known."""


def discover(ports: Ports) -> tuple[Layout, list[Finding]]:
    """The layout of this node, and a finding for everything found or missing; a missing instrument is no error."""
    machine = topology.find(ports.files)
    domains, frequency_findings = cpufreq.find(ports.files, machine.cpus)
    reference_khz, rate_source = cpufreq.reference_khz(ports.files, domains)
    counted, missing = _ask_events(ports, machine.cpus)
    estimated = _estimated_events(ports, machine.cpus, counted)
    if estimated and not reference_khz:
        # we make these cycles up, so any rate will do: core cycles over them still give the true clock
        reference_khz = max((domain.max_khz for domain in domains), default=ANY_KHZ)
        rate_source = "the highest clock"
    events = tuple(event for event in EVENTS if event in (*counted, *estimated))
    counter_findings = _event_findings(ports, machine.cpus, counted, missing, estimated, reference_khz, rate_source)
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
    """Every instrument of a layout, open, and the progress that the application reports. PmuError if the counters
    cannot be opened any more."""

    def __init__(self, ports: Ports, layout: Layout, told: Told = nobody_tells) -> None:
        self._ports = ports
        self._told = told
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
        """Read everything once. RAW_MISSING where a sensor gives no value; one that vanishes raises nothing."""
        layout = self._layout
        sweep = RawSweep(
            time_ns=self._ports.clock.now_ns(),
            counters=np.full((len(layout.cpus), len(layout.events)), RAW_MISSING, np.int64),
            energy_uj=np.empty(len(layout.zones), np.int64),
            gpu=np.empty((len(layout.gpus), len(GPU_FIELDS)), np.int64),
            progress=self._told(),
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


def _ask_events(ports: Ports, cpus: tuple[int, ...]) -> tuple[list[str], dict[str, str]]:
    """Events that can be counted, and why each of the others cannot."""
    if not cpus:
        return [], dict.fromkeys(EVENTS, f"{topology.CPU}/online cannot be read: no list of CPUs")
    why_not = {event: ports.counters.why_not(event) for event in EVENTS}
    return [event for event in EVENTS if why_not[event] is None], {
        event: why for event, why in why_not.items() if why is not None
    }


def _estimated_events(ports: Ports, cpus: tuple[int, ...], counted: list[str]) -> tuple[str, ...]:
    """Reference cycles estimated from busy time, where instructions are counted, which they are needed for."""
    if REFERENCE in counted or "instructions" not in counted or busy.why_not(ports.files, cpus):
        return ()
    return (REFERENCE,)


def _event_findings(
    ports: Ports,
    cpus: tuple[int, ...],
    counted: list[str],
    missing: dict[str, str],
    estimated: tuple[str, ...],
    reference_khz: int,
    rate_source: str,
) -> list[Finding]:
    """One line per event, missing ones first."""
    findings = [absent(event, "counter", why) for event, why in missing.items() if event not in estimated]
    rate = f"{reference_khz / 1e6:g} GHz by {rate_source}" if reference_khz else rate_source
    for event in counted:
        how = ports.counters.how(event) if isinstance(ports.counters, TellsHow) else event
        remarks = [] if how == event else [f"counted by {how}"]
        remarks += [rate] if event == REFERENCE else []
        findings.append(Finding(event, "counter", True, True, why="; ".join(remarks)))
    for event in estimated:
        why = f"{missing[event]}; estimated from {busy.source(ports.files, cpus)} x {rate}"
        findings.append(Finding(event, "counter", True, True, why=why))
    return findings


def _lowest_khz(cpus: tuple[int, ...], domains: tuple[FrequencyDomain, ...]) -> type_i64:
    lowest = np.zeros(len(cpus), np.int64)
    for domain in domains:
        lowest[list(domain.cpus)] = domain.min_khz
    return lowest
