"""The kernel's PMUs and their events, from /sys/bus/event_source/devices.

Each PMU has a ``type`` for perf_event_open. It may have ``events/NAME`` ("event=0xb1,umask=0x01,inv=1,cmask=1") and
``format/TERM``, which gives the bits of the configuration word that a term fills ("config:0-7,32-35").

A processor with one kind of core has the PMU ``cpu``. One with several kinds has a PMU for each, with the CPUs it
belongs to in ``cpus``: ``cpu_core`` and ``cpu_atom`` on Intel, ``armv8_cortex_a76`` and its kin on Arm. Their generic
events carry the PMU's type in the upper half of the configuration word.
Sources: Documentation/ABI/testing/sysfs-bus-event_source-devices-{events,format}; tools/perf/Documentation/
intel-hybrid.txt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pmu.cpulist import parse_list
from pmu.driver_values import digits, whole
from pmu.ports import Files
from pmu.readings import PmuError

DEVICES = "/sys/bus/event_source/devices"

PERF_TYPE_HARDWARE = 0
PERF_TYPE_SOFTWARE = 1
PERF_TYPE_RAW = 4

CONFIG_BITS = 64
MOST_TYPE = 2**31 - 1
"""Of ``struct perf_event_attr``: ``config`` and ``type``."""


@dataclass(frozen=True, slots=True)
class CorePmu:
    """The counters of one kind of core. ``cpus`` is None for the only kind; ``type_id`` None if sysfs has none."""

    name: str
    type_id: int | None
    cpus: frozenset[int] | None

    def counts(self, cpu: int) -> bool:
        """Whether this PMU belongs to that CPU."""
        return self.cpus is None or cpu in self.cpus

    def generic(self, event: int) -> int:
        """The configuration word of a generic hardware event on this kind of core."""
        return event if self.cpus is None or self.type_id is None else self.type_id << 32 | event


@dataclass(frozen=True, slots=True)
class NamedEvent:
    """An event that a PMU lists by name, ready for perf_event_open."""

    type_id: int
    config: int


def core_pmus(files: Files) -> tuple[CorePmu, ...]:
    """The kinds of core of this machine; one without details where sysfs shows none (a virtual machine)."""
    found = []
    for name in _names(files, DEVICES):
        cpus = _text(files, f"{DEVICES}/{name}/cpus")  # uncore PMUs have ``cpumask`` instead
        if cpus is not None and (numbers := _cpus(cpus)):
            found.append(CorePmu(name, _number(files, f"{DEVICES}/{name}/type"), numbers))
    if len(found) > 1:
        return tuple(found)
    name = found[0].name if found else "cpu"
    return (CorePmu(name, _number(files, f"{DEVICES}/{name}/type"), None),)


def named_event(files: Files, pmu: str, name: str) -> NamedEvent | None:
    """The event ``pmu/name/``; None if there is no such PMU or event. PmuError if its description makes no sense."""
    type_id = _number(files, f"{DEVICES}/{pmu}/type")
    text = _text(files, f"{DEVICES}/{pmu}/events/{name}")
    if type_id is None or text is None:
        return None
    config = 0
    for term in text.strip().split(","):
        key, _, value = term.partition("=")
        try:
            config |= _placed(files, pmu, key, int(value, 0) if value else 1)
        except ValueError:
            raise PmuError(f"{DEVICES}/{pmu}/events/{name}: cannot read the term {term[:40]!r}") from None
    if not 0 <= config < 1 << CONFIG_BITS:
        raise PmuError(f"{DEVICES}/{pmu}/events/{name}: its configuration needs more than {CONFIG_BITS} bits")
    return NamedEvent(type_id, config)


def _placed(files: Files, pmu: str, term: str, value: int) -> int:
    """``value`` in the bits of the configuration word that ``format/TERM`` gives it, lowest bits first."""
    if term == "config":
        return value
    text = _text(files, f"{DEVICES}/{pmu}/format/{term}")
    if text is None:
        raise ValueError(term)
    word, _, bits = text.strip().partition(":")
    if word != "config" or not re.fullmatch(r"[\d,-]+", bits):
        raise ValueError(text)  # config1 and config2 belong to events that are none of ours
    config = 0
    for bit in parse_list(bits):
        if bit >= CONFIG_BITS:
            raise ValueError(text)
        config |= (value & 1) << bit
        value >>= 1
    if value:
        raise ValueError(term)
    return config


def _cpus(text: str) -> frozenset[int]:
    """The CPUs of a PMU; none where the list makes no sense."""
    try:
        return frozenset(parse_list(text))
    except ValueError:
        return frozenset()


def _names(files: Files, path: str) -> list[str]:
    try:
        return sorted(files.listdir(path))
    except OSError:
        return []


def _text(files: Files, path: str) -> str | None:
    try:
        return files.read(path)
    except OSError:
        return None


def _number(files: Files, path: str) -> int | None:
    text = _text(files, path)
    return None if text is None else whole(digits(text.strip()), (0, MOST_TYPE))
