"""What a node is made of, found once at start: logical CPUs, frequency domains, RAPL zones, GPUs.

The layout names the rows of every sample array and is stored at the head of each journal, so that a recorded
run can be replayed on another machine.
"""

from __future__ import annotations

import msgspec


class FrequencyDomain(msgspec.Struct, frozen=True):
    """CPUs that share one clock: a cpufreq policy. Kilohertz, as cpufreq writes them."""

    policy: int  # number in /sys/devices/system/cpu/cpufreq/policyN
    cpus: tuple[int, ...]  # indices into Layout.cpus, not CPU numbers
    min_khz: int
    max_khz: int
    base_khz: int  # nominal (reference) clock; 0 unknown
    steps_khz: tuple[int, ...] = ()  # ascending; empty = any value between min and max


class EnergyZone(msgspec.Struct, frozen=True):
    """A powercap zone that measures energy. ``path`` below the root of the powercap tree."""

    name: str  # "package-0", "package-0/dram"
    path: str
    kind: str  # "package" | "core" | "uncore" | "dram" | "psys"
    package: int
    max_energy_uj: int
    max_power_uw: int = 0  # the zone cannot draw more than this; 0 unknown


class Gpu(msgspec.Struct, frozen=True):
    """One GPU as NVML shows it. ``clocks_mhz`` ascending: supported SM clocks at the highest memory clock."""

    index: int
    uuid: str
    name: str
    clocks_mhz: tuple[int, ...]
    memory_clock_mhz: int
    default_power_limit_w: float
    min_power_limit_w: float
    max_power_limit_w: float
    has_gpm: bool


class KnobRange(msgspec.Struct, frozen=True):
    """In which range one knob may be moved during a run, found at its start, in the unit that its name ends in."""

    name: str  # the knob's
    domain: str  # what a policy is chosen for: "cpu", "gpu", "uncore"
    low: int
    high: int
    steps: tuple[int, ...] = ()  # ascending; empty = any value between low and high
    cpus: tuple[int, ...] = ()  # indices into Layout.cpus: those that it concerns
    words: tuple[str, ...] = ()  # where values are words: the word of 1, 2, ...


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
