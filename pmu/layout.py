"""What a node is made of, found once at start: logical CPUs, frequency domains, RAPL zones, GPUs,
and the columns of other instruments.

The layout names the rows of every sample array and is stored at the head of each journal, so that a recorded
run can be replayed on another machine.
"""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import msgspec


class FrequencyDomain(msgspec.Struct, frozen=True):
    """CPUs that share one clock, and the cpufreq policies that limit it. Kilohertz, as cpufreq writes them.

    Most drivers give each CPU a policy, also the threads of one core. The hardware runs at the highest clock that any
    of them requests, so they have an effect only together.
    """

    policy: int  # number in /sys/devices/system/cpu/cpufreq/policyN: the lowest of them
    cpus: tuple[int, ...]  # indices into Layout.cpus, not CPU numbers
    min_khz: int
    max_khz: int
    base_khz: int  # nominal (reference) clock; 0 unknown
    steps_khz: tuple[int, ...] = ()  # ascending; empty = any value between min and max
    other_policies: tuple[int, ...] = ()  # ascending; of these CPUs

    @property
    def policies(self) -> tuple[int, ...]:
        """The numbers of all policies, ascending."""
        return (self.policy, *self.other_policies)


class EnergyZone(msgspec.Struct, frozen=True):
    """A powercap zone that measures energy. ``path`` below the root of the powercap tree."""

    name: str  # "package-0", "package-0/dram"
    path: str
    kind: str  # "package" | "core" | "uncore" | "dram" | "psys"
    package: int
    max_energy_uj: int
    max_power_uw: int = 0  # the zone cannot draw more than this; 0 unknown


class Gpu(msgspec.Struct, frozen=True):
    """One GPU as NVML shows it. ``clocks_mhz`` ascending: supported SM clocks at the highest memory clock. ``pci``: its
    place on the bus, "0000:07:00.0"; "" where NVML does not give it, and in journals of 0.2.0.
    ``has_mig``: it can be divided."""

    index: int
    uuid: str
    name: str
    clocks_mhz: tuple[int, ...]
    memory_clock_mhz: int
    default_power_limit_w: float
    min_power_limit_w: float
    max_power_limit_w: float
    has_gpm: bool
    pci: str = ""
    has_mig: bool = False


class KnobRange(msgspec.Struct, frozen=True):
    """In which range one knob may be moved during a run, found at its start, in the unit that its name ends in.

    Knobs of which the highest counts, such as the clock limits of two threads of a core, are one row, and all get one
    value: ``also`` names the others.
    """

    name: str  # the knob's
    domain: str  # what a policy is chosen for: "cpu", "gpu", "uncore"
    low: int
    high: int
    steps: tuple[int, ...] = ()  # ascending; empty = any value between low and high
    cpus: tuple[int, ...] = ()  # indices into Layout.cpus: those that it concerns
    words: tuple[str, ...] = ()  # where values are words: the word of 1, 2, ...
    also: tuple[str, ...] = ()  # the names of the other knobs of this row

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all knobs of this row."""
        return (self.name, *self.also)


type_kind = Literal["counter", "level", "flag"]
KINDS: Final[tuple[type_kind, ...]] = get_args(type_kind)


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One number that an instrument registers (``pmu.instruments.instrument``): a column of each sweep and sample.

    ``kind`` says how two raw integers become a value in ``unit``; ``per_unit`` raw counts are one unit:

    - *counter*: grows, and starts again from 0 after ``range`` (0: never). The value is the difference between two
      sweeps. No reading in either of them, or a step backwards or faster than ``most_per_s`` units: MISSING. One wrap
      is added back: WRAPPED. So late that it may have wrapped twice: STALE, with what the counter shows as a lower
      bound. ``is_never_idle``: what it counts never stops, so a counter that has not moved is STALE, without a value.
    - *level*: the value now. Outside ``lowest`` to ``highest`` it is set to that bound: CLIPPED.
    - *flag*: bits, 0 for none. A negative number, or one above ``highest``, is MISSING.

    Levels and flags that are slow to read or to change are read every ``period_s`` only and repeated in between.
    ``part`` is what the number is about, as policies look for it: "package", "memory", ... ``is_estimated``: a sound
    reading is ESTIMATED, since it is derived from another quantity.
    """

    instrument: str  # as registered
    name: str  # "hwmon0/k10temp/Tctl"
    unit: str  # "C", "W", "J"; "" for a flag or a plain count
    kind: type_kind
    source: str = ""  # the file, where it is one
    part: str = ""
    per_unit: float = 1.0
    range: int = 0
    most_per_s: float = math.inf
    is_never_idle: bool = False
    lowest: float = -math.inf
    highest: float = math.inf
    period_s: float = 0.0
    is_estimated: bool = False

    def __post_init__(self) -> None:
        if self.kind == "counter" and self.period_s:
            raise ValueError(f"{self.name}: a counter is read at every sweep, so that its steps have the sweep's time")
        if self.per_unit <= 0:
            raise ValueError(f"{self.name}: per_unit must be positive")


class Layout(msgspec.Struct, frozen=True):
    """A node, in the order that every sample array follows."""

    cpus: tuple[int, ...]  # logical CPU numbers
    core_of: tuple[int, ...]  # per CPU: physical core, unique over the node
    package_of: tuple[int, ...]
    events: tuple[str, ...]  # counter columns: subset of pmu.instruments.counters.EVENTS
    reference_khz: int  # rate of reference cycles (TSC)
    domains: tuple[FrequencyDomain, ...]
    zones: tuple[EnergyZone, ...]
    gpus: tuple[Gpu, ...]
    estimated_events: tuple[str, ...] = ()  # of ``events``: derived from another quantity, not counted
    ranges: tuple[KnobRange, ...] = ()  # of the knobs that a run moves and nothing above describes
    columns: tuple[Column, ...] = ()  # of the registered instruments, each instrument's together
