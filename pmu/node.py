"""One node: its layout, and one sweep of all its instruments."""

from __future__ import annotations

import errno

import numpy as np

from pmu import topology
from pmu.findings import Finding, absent
from pmu.instruments import busy, cpufreq, gpu, pci_gpus, rapl
from pmu.instruments.busy import BusyTime
from pmu.instruments.counters import EVENTS, NamesEvents
from pmu.instruments.gpu import Gpus
from pmu.instruments.instrument import ForPeople
from pmu.instruments.job_hints import HintSource, NoHints
from pmu.instruments.job_progress import ProgressSource, no_progress
from pmu.instruments.kept import keep_integers
from pmu.instruments.registered import INSTRUMENTS
from pmu.layout import FrequencyDomain, Layout
from pmu.ports import Ports
from pmu.readings import GPU_FIELDS, RAW_MISSING, RawSweep, Reading, type_i64

__all__ = ["Finding", "Instruments", "discover"]

REFERENCE = "reference-cycles"

GONE = frozenset({errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.ESTALE})
"""What an open attribute of a device that is gone answers (fs/kernfs/file.c: ENODEV)."""

ANY_KHZ = 1_000_000
"""Ours: a rate of estimated reference cycles where not even a clock range is known."""


def discover(ports: Ports) -> tuple[Layout, list[Finding]]:
    """The layout of this node, and a finding for everything found or missing; a missing instrument is no error."""
    machine = topology.find(ports.files)
    domains, frequency_findings = cpufreq.find(ports.files, machine.cpus, machine.core_of)
    reference_khz, rate_source = cpufreq.reference_khz(ports.files, domains)
    counted, missing = _try_events(ports, machine.cpus)
    estimated = _estimated_events(ports, machine.cpus, counted)
    if estimated and not reference_khz:
        # we make these cycles up, so any rate will do: core cycles over them still give the true clock
        reference_khz = max((domain.max_khz for domain in domains), default=ANY_KHZ)
        rate_source = "the highest clock"
    events = tuple(event for event in EVENTS if event in (*counted, *estimated))
    counter_findings = _event_findings(ports, machine.cpus, counted, missing, estimated, reference_khz, rate_source)
    energy = rapl.find(ports.files)
    gpus, gpu_findings = gpu.find(ports.nvml, ports.nvml_why)
    on_bus = pci_gpus.unseen(pci_gpus.look(ports.files).cards, [card.pci for card in gpus])
    gpu_findings += pci_gpus.findings(ports.files, on_bus)
    registered = [ForPeople(instrument, ports) for instrument in INSTRUMENTS]
    sensor_findings = [finding for each in registered for finding in each.findings()]
    for each in registered:
        each.close()
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
        columns=tuple(column for each in registered for column in each.found.columns),
    )
    return layout, [*counter_findings, *energy.findings, *frequency_findings, *sensor_findings, *gpu_findings]


class Instruments:
    """Every instrument of a layout, open, and the progress and hints that the application reports. PmuError if the
    counters cannot be opened any more."""

    def __init__(
        self, ports: Ports, layout: Layout, progress: ProgressSource = no_progress, hints: HintSource | None = None
    ) -> None:
        self._ports = ports
        self._progress, self._hints = progress, hints or NoHints()
        self._layout = self.layout = layout
        self._counted = tuple(event for event in layout.events if event not in layout.estimated_events)
        self._counters = ports.counters.open(layout.cpus, self._counted) if self._counted else None
        self._columns = [layout.events.index(event) for event in self._counted]
        self._busy = self._open_busy_time()
        self._energy = keep_integers(ports.files, [rapl.column(zone).source for zone in layout.zones])
        self._gpus = Gpus(ports.nvml, layout.gpus)
        self._registered = [
            (rows, instrument.open(ports, layout.columns[rows]))
            for instrument in INSTRUMENTS
            if (rows := _rows_of(instrument.name, layout))
        ]
        self._for_people = [ForPeople(instrument, ports) for instrument in INSTRUMENTS]
        self._clocks = cpufreq.Clocks(ports.files, layout.domains)

    def sweep(self) -> RawSweep:
        """Read everything once. RAW_MISSING where a sensor gives no value; one that vanishes raises nothing."""
        layout = self._layout
        sweep = RawSweep(
            time_ns=self._ports.clock.now_ns(),
            counters=np.full((len(layout.cpus), len(layout.events)), RAW_MISSING, np.int64),
            energy_uj=np.empty(len(layout.zones), np.int64),
            gpu=np.empty((len(layout.gpus), len(GPU_FIELDS)), np.int64),
            progress=self._progress(),
            columns=np.full(len(layout.columns), RAW_MISSING, np.int64),
            hints=self._hints.read(),
        )
        self._sweep_counters(sweep.time_ns, sweep.counters)
        self._energy.sweep(sweep.energy_uj)
        self._gpus.sweep(sweep.time_ns, sweep.gpu)
        for rows, opened in self._registered:
            opened.sweep(sweep.time_ns, sweep.columns[rows])
        return sweep

    def readings(self) -> list[Reading]:
        """For people: all columns of registered instruments, also what the sweep leaves out, and present clocks."""
        now_ns = self._ports.clock.now_ns()
        sensors = [reading for each in self._for_people for reading in each.read(now_ns)]
        return sensors + self._clocks.read(now_ns)

    def vanished(self) -> list[str]:
        """Files of the last sweep whose device is gone. One that is there again must be opened again."""
        layout = self._layout
        sources = [rapl.column(zone).source for zone in layout.zones]
        errors = self._energy.errors()
        for rows, opened in self._registered:
            sources += [column.source for column in layout.columns[rows]]
            errors += opened.errors()
        return [source for source, error in zip(sources, errors, strict=True) if source and error in GONE]

    def close(self) -> None:
        """Close every descriptor."""
        if self._counters is not None:
            self._counters.close()
        if self._busy is not None:
            self._busy.close()
        self._energy.close()
        self._gpus.close()
        for _, opened in self._registered:
            opened.close()
        for each in self._for_people:
            each.close()

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


def _rows_of(instrument: str, layout: Layout) -> slice | None:
    """Where an instrument's columns lie, which are together; None if it has none here."""
    rows = [row for row, column in enumerate(layout.columns) if column.instrument == instrument]
    return slice(rows[0], rows[-1] + 1) if rows else None


def _try_events(ports: Ports, cpus: tuple[int, ...]) -> tuple[list[str], dict[str, str]]:
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
        how = ports.counters.how(event) if isinstance(ports.counters, NamesEvents) else event
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
