"""Which hardware events a node can count, and which event of the kernel counts each.

====================  =====================================================================================
``cycles``            PERF_COUNT_HW_CPU_CYCLES: core clocks while not halted
``reference-cycles``  PERF_COUNT_HW_REF_CPU_CYCLES (Intel; AMD from Zen 4), else ``msr/mperf/``: both count at the rate
                      of the time-stamp counter while not halted, so they do not depend on the core clock
``instructions``      PERF_COUNT_HW_INSTRUCTIONS
``stalls``            PERF_COUNT_HW_STALLED_CYCLES_BACKEND (Sandy Bridge, Zen 1), else an event that the PMU lists:
                      see ``STALL_EVENTS``
``llc-misses``        PERF_COUNT_HW_CACHE_MISSES: last-level misses on Intel, L2 misses on AMD Zen
====================  =====================================================================================

Zen 2 and 3 have neither a reference-cycle nor a back-end stall event. On a machine that counts no reference cycles they
are estimated from busy time (pmu/instruments/busy.py). Source: arch/x86/events/{intel,amd}/core.c, event maps;
arch/x86/events/msr.c.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from pmu.cpulist import format_list, parse_list
from pmu.instruments import event_source
from pmu.instruments.event_source import PERF_TYPE_HARDWARE, CorePmu
from pmu.instruments.perf_groups import PerfGroups, Source, try_open
from pmu.ports import Files
from pmu.readings import PmuError

EVENTS = ("cycles", "reference-cycles", "instructions", "stalls", "llc-misses")
"""Every counter column there is, in the order of ``Layout.events``."""

# enum perf_hw_id (include/uapi/linux/perf_event.h)
_GENERIC = {"cycles": 0, "reference-cycles": 9, "instructions": 1, "stalls": 8, "llc-misses": 3}

STALL_EVENTS = (
    "stalled-cycles-backend",
    "cycle_activity.stalls_mem_any",
    "cycle_activity.stalls_total",
    "stall_backend",
)
"""Names under ``events/`` of a core PMU that count cycles without progress; the last is Arm's (PMUv3 0x24)."""

PARANOID = "/proc/sys/kernel/perf_event_paranoid"


@runtime_checkable
class NamesEvents(Protocol):
    """``Counters`` that can name the kernel's event behind a column."""

    def how(self, event: str) -> str:
        """The kernel's event that counts ``event``, for people."""


class PerfCounters:
    """The kernel's counters (``pmu.ports.Counters``). Whether an event can be counted is tried. What could not be may
    be later, when another program has let go of the counters or an administrator of ``perf_event_paranoid``."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._pmus = event_source.core_pmus(files)
        self._online = _online(files)
        self._found: dict[tuple[str, str], Source] = {}

    def why_not(self, event: str) -> str | None:
        """None if the event can be counted on some kind of core, else why not, in one line."""
        results = [self._source(event, pmu) for pmu in self._pmus]
        if any(isinstance(result, Source) for result in results):
            return None
        return str(results[0])

    def how(self, event: str) -> str:
        """The kernel's event that counts an available event, and on which CPUs none does."""
        names, gaps = [], []
        for pmu in self._pmus:
            result = self._source(event, pmu)
            if isinstance(result, Source):
                names.append(result.name)
            else:
                gaps.append(f"not on CPUs {format_list(pmu.cpus or ())} ({pmu.name}): {result}")
        return "; ".join([*dict.fromkeys(names), *gaps])

    def open(self, cpus: tuple[int, ...], events: tuple[str, ...]) -> PerfGroups:
        """One group per CPU, counting ``events``; PmuError if one of them cannot be counted at all."""
        for event in events:
            if why := self.why_not(event):
                raise PmuError(f"cannot count {event}: {why}")
        return PerfGroups(cpus, [[self._source_on(event, cpu) for event in events] for cpu in cpus])

    def _source_on(self, event: str, cpu: int) -> Source | None:
        for pmu in self._pmus:
            if pmu.counts(cpu):
                result = self._source(event, pmu)
                return result if isinstance(result, Source) else None
        return None

    def _source(self, event: str, pmu: CorePmu) -> Source | str:
        """What counts ``event`` on this kind of core, or why nothing does."""
        key = (event, pmu.name)
        found = self._found.get(key) or self._try(event, pmu)
        if isinstance(found, Source):
            self._found[key] = found
        return found

    def _try(self, event: str, pmu: CorePmu) -> Source | str:
        cpu = next((cpu for cpu in self._online if pmu.counts(cpu)), None)
        if cpu is None:
            return f"no CPU of {pmu.name} is online"
        reasons = []
        for candidate in self._candidates(event, pmu):
            if isinstance(candidate, str):
                reasons.append(candidate)
            elif not (error := try_open(candidate, cpu)):
                return candidate
            else:
                reasons.append(self._reason(candidate.name, error, pmu))
        return "; ".join(dict.fromkeys(reasons))

    def _candidates(self, event: str, pmu: CorePmu) -> Iterator[Source | str]:
        """What could count the event, best first; a line instead where its description cannot be read."""
        if event not in _GENERIC:
            yield f"unknown event {event!r}; known: {', '.join(EVENTS)}"
            return
        yield Source(PERF_TYPE_HARDWARE, pmu.generic(_GENERIC[event]), event)
        named = {"reference-cycles": [("msr", "mperf")], "stalls": [(pmu.name, name) for name in STALL_EVENTS]}
        for device, name in named.get(event, []):
            try:
                found = event_source.named_event(self._files, device, name)
            except PmuError as error:
                yield str(error)
                continue
            if found is not None:
                yield Source(found.type_id, found.config, f"{device}/{name}/")

    def _reason(self, name: str, error: int, pmu: CorePmu) -> str:
        code = errno.errorcode.get(error, str(error))
        gives = f"perf_event_open({name}) gives {code}"
        match error:
            case errno.ENOENT | errno.EOPNOTSUPP | errno.ENODEV if pmu.type_id is None:
                return f"no hardware PMU: {gives} (virtual machine?)"
            case errno.ENOENT | errno.EOPNOTSUPP | errno.ENODEV:
                return f"this processor has no such event: {gives}"
            case errno.EACCES | errno.EPERM:
                paranoid = _paranoid(self._files)
                return f"{gives} with perf_event_paranoid {paranoid}: needs root or CAP_PERFMON, or a value of 0 there"
            case errno.EBUSY:
                return f"{gives}: another program uses the counters"
            case errno.EMFILE | errno.ENFILE:
                return f"{gives}: no file descriptor is left, raise LimitNOFILE"
            case errno.ENOSYS:
                return f"{gives}: this kernel is built without perf events"
        return gives


def _online(files: Files) -> tuple[int, ...]:
    try:
        return parse_list(files.read("/sys/devices/system/cpu/online"))
    except (OSError, ValueError):
        return (0,)


def _paranoid(files: Files) -> str:
    try:
        return files.read(PARANOID).strip()
    except OSError:
        return "unknown"
